// Mapped memory; and for that of a file, which other processes read after this one has died at any instant, the
// number that says whether what lies there is whole. Without LibTorch.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace ddprun {

// To be read and written. False: there is none, and errno says why.
class Mapping {
 public:
  Mapping() = default;
  // Of a file, shared.
  Mapping(int file, std::size_t bytes) : Mapping(file, bytes, MAP_SHARED) {}
  // Zeroes, of no file; a child that is forked has a copy.
  static Mapping of_this_process(std::size_t bytes) {
    return {-1, bytes, MAP_PRIVATE | MAP_ANONYMOUS};
  }
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (base_ != nullptr) ::munmap(base_, bytes_);
  }

  explicit operator bool() const { return base_ != nullptr; }
  char* data() const { return base_; }
  std::size_t size() const { return bytes_; }

 private:
  Mapping(int file, std::size_t bytes, int flags) : bytes_(bytes) {
    void* const base =
        bytes == 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    if (base != MAP_FAILED) base_ = static_cast<char*>(base);
  }

  char* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// Lies in the memory, before what it is about. One writer, one thread. Zeroes are a valid one, of memory that
// was never written.
class Turn {
 public:
  void begin() {
    value_.store(value_.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  void end() {
    value_.store(value_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  bool is_whole() const {
    const std::uint64_t value = value_.load(std::memory_order_acquire);
    return value != 0 && value % 2 == 0;
  }

 private:
  std::atomic<std::uint64_t> value_;  // odd: it is being written
};

}  // namespace ddprun
