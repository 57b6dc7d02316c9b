// Memory for large copies: whole pages, as many as are asked for, given back to the system at once. What a
// GPU copies into it goes at full speed when it is pinned (the driver's word for memory that stays where it
// is); Torch's own pinned memory is the next power of two, and stays with its allocator for ever.
#pragma once

#include <cstddef>
#include <memory>

#include "worker_lib/process/shared_memory.h"

namespace ddprun {

class PageMemory {
 public:
  PageMemory() = default;
  // Zeroes; throws std::bad_alloc. `is_pinned`: by the CUDA driver for all of its contexts, which costs
  // some 0.3 ms per MiB once, and needs a context of this thread's; where it cannot be had the memory is
  // as any other. `driver` is for tests.
  PageMemory(std::size_t size, bool is_pinned, const char* driver = "libcuda.so.1");

  char* data() const { return memory_.data(); }
  std::size_t size() const { return memory_.size(); }  // in bytes; a multiple of a page
  bool is_pinned() const { return pinned_ != nullptr; }

 private:
  Mapping memory_;
  // Unregistered before it is unmapped: the last member is destroyed first, and Mapping's assignment swaps.
  std::unique_ptr<void, int (*)(void*)> pinned_{nullptr, nullptr};
};

}  // namespace ddprun
