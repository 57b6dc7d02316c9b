// One stored value: a short one inline, a long one (from limits::kDetachedValueBytes on) in a
// shared block that replies refer to instead of copying. So a long value is never changed in place
// while a reply still refers to it. One thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/store_wire/reply_queue.h"
#include "rendezvous/store_wire/store_protocol.h"

namespace ddprun::rdzv {

class StoreValue {
 public:
  StoreValue() = default;
  // takes the payload's blob
  explicit StoreValue(wire::Payload payload) {
    if (payload.blob != nullptr) {
      long_ = std::make_shared<wire::Blob>(std::move(*payload.blob));
    } else {
      short_ = payload.bytes;
    }
  }

  explicit StoreValue(std::string text) : short_(std::move(text)) {}

  std::string_view view() const { return long_ ? long_->view() : std::string_view(short_); }
  std::size_t size() const { return view().size(); }
  // The memory of the value beyond sizeof.
  std::size_t footprint() const {
    if (long_) return sizeof(wire::Blob) + long_->capacity();
    return short_.capacity() < sizeof(std::string) ? 0 : short_.capacity();
  }

  void append(wire::Payload payload) {
    const std::string_view more = payload.view();
    if (!long_ && short_.size() + more.size() < limits::kDetachedValueBytes) {
      short_.append(more);
      return;
    }
    if (!long_ || long_.use_count() > 1) {
      long_ = std::make_shared<wire::Blob>(view());
      std::string().swap(short_);
    }
    long_->append(more);
  }

  void write_to(wire::ReplyQueue& reply) const { long_ ? reply.bytes(long_) : reply.bytes(short_); }

 private:
  std::string short_;
  std::shared_ptr<wire::Blob> long_;  // used instead of short_ if set
};

}  // namespace ddprun::rdzv
