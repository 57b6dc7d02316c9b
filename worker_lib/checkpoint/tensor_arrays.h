// Torch's tensors as the arrays of a safetensors file, and back. Blocking; one thread.
#pragma once

#include <torch/types.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "worker_lib/checkpoint/safetensors.h"
#include "worker_lib/process/page_memory.h"

namespace ddprun {

using NamedTensors = std::map<std::string, torch::Tensor>;

// On the CPU, and where possible in the arrays' own memory: for as long as that lives, and only to be
// read. Throws UsageError for a type that Torch does not have.
NamedTensors tensors_of(const std::vector<safetensors::Array>& arrays);

// What the arrays of a file will be, without their values: on the device "meta". Throws as tensors_of().
NamedTensors described_by(const std::vector<safetensors::Place>& places);

// Puts a file's data, which comes in pieces, into tensors on whichever device.
class ArrayReceiver {
 public:
  // `tensors` has those of all places, of their sizes and types.
  ArrayReceiver(std::vector<safetensors::Place> places, const NamedTensors& tensors);

  // The next bytes of the data (uint8, one dimension, on the CPU).
  void take(torch::Tensor bytes);

 private:
  void begin_array();

  std::vector<safetensors::Place> places_;
  const NamedTensors& tensors_;
  std::size_t array_ = 0;    // of which bytes come next
  std::uint64_t taken_ = 0;  // of it
  torch::Tensor values_;     // its tensor, or one that is copied there when it is full
  torch::Tensor row_;        // the memory of values_ as bytes
};

// Throws UsageError for a tensor that safetensors has no form for.
void check_storable(const NamedTensors& tensors);

// A copy of tensors, laid out as the data of a file. The memory is kept from one copy to the next,
// which makes the second one as fast as a memcpy: fresh pages cost more than the copying.
class ArrayBuffer {
 public:
  // Of storable tensors, from whichever device they are on, with as many threads as Torch has.
  void copy(const NamedTensors& tensors);

  // Of the last copy.
  const std::vector<safetensors::Array>& arrays() const { return arrays_; }
  // The memory's, in bytes: that of the largest copy so far, in whole pages.
  std::size_t capacity() const { return memory_.size(); }
  std::string_view bytes() const;

 private:
  struct Part;

  PageMemory memory_;  // may be larger than what is used
  std::size_t size_ = 0;
  std::vector<safetensors::Array> arrays_;
};

}  // namespace ddprun
