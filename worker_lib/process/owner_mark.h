// Tells a process from the children that it forks: they have copies of its objects, which must not write
// into memory that is shared with others.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace ddprun {

class OwnerMark {
 public:
  // One byte that is 1 here and 0 in every child that is forked from here on; empty: not possible.
  static OwnerMark make() {
    void* const memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return {};
    OwnerMark mark;
    mark.byte_ = static_cast<char*>(memory);
    if (::madvise(memory, kBytes, MADV_WIPEONFORK) != 0) return {};
    *mark.byte_ = 1;
    return mark;
  }
  OwnerMark() = default;
  OwnerMark(OwnerMark&& other) noexcept : byte_(std::exchange(other.byte_, nullptr)) {}
  OwnerMark& operator=(OwnerMark&& other) noexcept {
    std::swap(byte_, other.byte_);
    return *this;
  }
  ~OwnerMark() {
    if (byte_ != nullptr) ::munmap(byte_, kBytes);
  }

  bool is_set() const { return byte_ != nullptr && *byte_ != 0; }

 private:
  static constexpr std::size_t kBytes = 4096;
  char* byte_ = nullptr;
};

}  // namespace ddprun
