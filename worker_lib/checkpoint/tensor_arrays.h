// Torch's tensors as the arrays of a safetensors file, and back. Blocking; one thread.
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker_lib/checkpoint/safetensors.h"
#include "worker_lib/process/page_memory.h"

namespace ddprun {

using NamedTensors = std::map<std::string, torch::Tensor>;

// On the CPU, and where possible in the memory of the file's data: for as long as that lives, and only to be
// read. Throws UsageError for a type that Torch does not have.
torch::Tensor tensor_of(const safetensors::Place& place, std::string_view data);

// What an array of a file will be, without its values. Of the place or tensor that it describes, which outlives it.
struct Described {
  std::string_view name;
  torch::ScalarType type{};
  torch::IntArrayRef sizes;
};
// Throws as tensor_of().
std::vector<Described> described_by(const std::vector<safetensors::Place>& places);

// Puts a file's data, which comes in pieces, into tensors on whichever device.
class ArrayReceiver {
 public:
  // One tensor for each place, of its size and type. Both outlive this.
  ArrayReceiver(const std::vector<safetensors::Place>& places,
                const std::vector<torch::Tensor>& tensors);

  // The next bytes of the data; copy(to, from, size) copies them to a tensor.
  template <typename Copy>
  void take(std::string_view bytes, const Copy& copy) {
    while (!bytes.empty()) {
      const auto [to, size] = room_for(bytes.size());
      copy(to, bytes.data(), size);
      took(size);
      bytes.remove_prefix(size);
    }
  }
  void take(std::string_view bytes);

 private:
  std::pair<char*, std::size_t> room_for(std::size_t size);  // in the array that is next
  void took(std::size_t size);

  const std::vector<safetensors::Place>& places_;
  const std::vector<torch::Tensor>& tensors_;
  std::size_t array_ = 0;    // of which bytes come next
  std::uint64_t taken_ = 0;  // of it
  torch::Tensor tensor_;     // its place
  torch::Tensor values_;     // that, or one that is copied there when it is full
};

// Throws UsageError for a tensor that safetensors has no form for.
void check_storable(const NamedTensors& tensors);

// Where tensors lie in the data of a file. They are storable, and outlive this.
class ArrayLayout {
 public:
  explicit ArrayLayout(const NamedTensors& tensors);

  std::size_t size() const { return size_; }  // of the data, in bytes
  // Without bytes, in the order of the data.
  std::vector<safetensors::Place> places() const;
  // Of names, types and shapes.
  std::uint64_t sum() const;

  // Gives the bytes of [from, to) of the data to sink(bytes, size), in their order. Waits for the GPU.
  template <typename Sink>
  void each_piece(std::size_t from, std::size_t to, const Sink& sink) const {
    for (const Part& part : parts_) {
      const std::size_t begin = std::max(part.begin, from);
      const std::size_t end = std::min(part.begin + part.size(), to);
      if (begin >= end) continue;
      const torch::Tensor plain = part.plain();
      const auto* const bytes = static_cast<const char*>(plain.const_data_ptr());
      sink(bytes + (begin - part.begin), end - begin);
    }
  }

 private:
  friend class ArrayBuffer;
  struct Part {
    const std::string* name;
    const torch::Tensor* tensor;
    std::size_t begin = 0;

    std::size_t size() const { return tensor->nbytes(); }
    torch::Tensor plain()
        const;  // the tensor, or a copy whose bytes lie one after the other on the CPU
  };

  std::vector<Part> parts_;
  std::size_t size_ = 0;
};

// A copy of tensors, laid out as the data of a file. The memory is kept from one copy to the next,
// which makes the second one as fast as a memcpy: fresh pages cost more than the copying.
class ArrayBuffer {
 public:
  // Of storable tensors, from whichever device they are on, with as many threads as Torch has.
  void copy(const NamedTensors& tensors);

  // Of the last copy.
  const std::vector<safetensors::Place>& places() const { return places_; }
  // The memory's, in bytes: that of the largest copy so far, in whole pages.
  std::size_t capacity() const { return memory_.size(); }
  std::string_view bytes() const;

 private:
  PageMemory memory_;  // may be larger than what is used
  std::size_t size_ = 0;
  std::vector<safetensors::Place> places_;
};

}  // namespace ddprun
