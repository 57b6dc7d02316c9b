#include "rendezvous/wire/blob.h"

#include <algorithm>
#include <cstring>

namespace ddprun::rdzv::wire {
namespace {

constexpr std::size_t kFirstCapacity = 256 * 1024;
constexpr std::size_t kGrowth = 4;

}  // namespace

void Blob::append(std::string_view bytes) {
  if (bytes.empty()) return;
  if (capacity_ - size_ < bytes.size())
    grow(std::max(size_ + bytes.size(), capacity_ + capacity_ / 2));
  std::memcpy(data_.get() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
}

std::span<char> Blob::space(std::size_t wanted) {
  if (size_ == capacity_)
    grow(std::min(size_ + wanted, std::max(kFirstCapacity, capacity_ * kGrowth)));
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
