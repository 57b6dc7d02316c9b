// A large value in memory of its own, which grows as its bytes arrive. It is never zeroed, not
// copied when it grows (the allocator moves pages), and never allocated according to an announced
// length alone. One owner; movable. Share it as std::shared_ptr<const Blob> when it is complete.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>

namespace ddprun::rdzv::wire {

class Blob {
 public:
  Blob() = default;
  explicit Blob(std::string_view bytes) { append(bytes); }

  std::string_view view() const { return {data_.get(), size_}; }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }

  void append(std::string_view bytes);

  // Room for up to `wanted` more bytes (maybe fewer at a time: growth is bounded by the bytes that
  // have arrived, here and `beside` other bytes of the same request); then commit what was written
  // there.
  std::span<char> space(std::size_t wanted, std::size_t beside);
  void commit(std::size_t written) { size_ += written; }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  void grow(std::size_t capacity);

  std::unique_ptr<char[], Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace ddprun::rdzv::wire
