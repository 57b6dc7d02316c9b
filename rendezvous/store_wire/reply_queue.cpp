#include "rendezvous/store_wire/reply_queue.h"

#include <algorithm>
#include <cstdint>

namespace ddprun::rdzv::wire {
namespace {

// The sent front of the buffer is freed when it has at least this size and is half of the buffer,
// so that the cost per byte stays constant for a client that is always a little behind. An empty
// queue keeps no more than this.
constexpr std::size_t kCompactFrom = std::size_t{64} * 1024;

}  // namespace

void ReplyQueue::bytes(std::string_view value) {
  number<std::uint64_t>(value.size());
  flat_.append(value);
}

void ReplyQueue::bytes(const std::shared_ptr<const Blob>& value) {
  number<std::uint64_t>(value->size());
  if (value->size() == 0) return;
  blobs_.push_back({flat_.size(), value});
  blob_bytes_ += value->size();
}

std::size_t ReplyQueue::gather(std::span<std::string_view> parts) const {
  std::size_t used = 0;
  std::size_t flat_at = flat_sent_;
  std::size_t blob_offset = blob_sent_;
  const auto add = [&](std::string_view part) {
    if (!part.empty()) parts[used++] = part;
  };
  for (std::size_t i = blobs_done_; i < blobs_.size(); ++i) {
    if (parts.size() - used < 2) return used;
    add(std::string_view(flat_).substr(flat_at, blobs_[i].at - flat_at));
    add(blobs_[i].blob->view().substr(blob_offset));
    flat_at = blobs_[i].at;
    blob_offset = 0;
  }
  if (used < parts.size()) add(std::string_view(flat_).substr(flat_at));
  return used;
}

void ReplyQueue::consume(std::size_t sent) {
  while (blobs_done_ < blobs_.size() && sent > 0) {
    Insertion& next = blobs_[blobs_done_];
    const std::size_t flat = std::min(sent, next.at - flat_sent_);
    flat_sent_ += flat;
    sent -= flat;
    const std::size_t part = std::min(sent, next.blob->size() - blob_sent_);
    blob_sent_ += part;
    blob_bytes_ -= part;
    sent -= part;
    if (blob_sent_ < next.blob->size()) break;
    next.blob.reset();
    blob_sent_ = 0;
    ++blobs_done_;
  }
  flat_sent_ += sent;
  compact();
}

void ReplyQueue::compact() {
  if (empty()) {
    if (flat_.capacity() > kCompactFrom) std::string().swap(flat_);
    flat_.clear();
    flat_sent_ = 0;
    blobs_.clear();
    blobs_done_ = 0;
  } else if (flat_sent_ >= kCompactFrom && flat_sent_ >= flat_.size() / 2) {
    blobs_.erase(blobs_.begin(), blobs_.begin() + static_cast<std::ptrdiff_t>(blobs_done_));
    blobs_done_ = 0;
    for (Insertion& insertion : blobs_) insertion.at -= flat_sent_;
    flat_.erase(0, flat_sent_);
    flat_sent_ = 0;
  }
}

}  // namespace ddprun::rdzv::wire
