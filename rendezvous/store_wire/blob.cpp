#include "rendezvous/store_wire/blob.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

namespace ddprun::rdzv::wire {
namespace {

constexpr std::size_t kFirstCapacity = std::size_t{256} * 1024;
constexpr std::size_t kGrowth = 4;
constexpr std::size_t kMostPagesAhead = std::size_t{1024} * 1024;

// Populates all pages of a receive buffer at once: page faults one by one during recv cost more
// than the copying. A kernel before 5.14 refuses, and the pages then fault in one by one.
void fetch_pages(char* from, std::size_t size) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  const std::uintptr_t first = (address + page - 1) / page * page;
  const std::uintptr_t end = (address + std::min(size, kMostPagesAhead)) / page * page;
  if (first >= end) return;
  ::madvise(from + (first - address), end - first, MADV_POPULATE_WRITE);
}

}  // namespace

void Blob::append(std::string_view bytes) {
  if (bytes.empty()) return;
  if (capacity_ - size_ < bytes.size())
    grow(std::max(size_ + bytes.size(), capacity_ + capacity_ / 2));
  std::memcpy(data_.get() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
}

std::span<char> Blob::space(std::size_t wanted, std::size_t beside) {
  if (size_ == capacity_) {
    const std::size_t most = kGrowth * (beside + size_) - beside;
    grow(std::min(size_ + wanted, std::max(kFirstCapacity, most)));
    fetch_pages(data_.get() + size_, capacity_ - size_);
  }
  return {data_.get() + size_, std::min(wanted, capacity_ - size_)};
}

void Blob::grow(std::size_t capacity) {
  void* moved = std::realloc(data_.get(), capacity);
  if (moved == nullptr) throw std::bad_alloc();
  static_cast<void>(data_.release());
  data_.reset(static_cast<char*>(moved));
  capacity_ = capacity;
}

}  // namespace ddprun::rdzv::wire
