// One stored value: a short one inline, a long one (limits::kDetachedValueBytes) on a shared block
// that replies refer to instead of copying. Sharing is why a long value is never changed in place
// while a reply still holds it. One thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/store_wire/reply_queue.h"
#include "rendezvous/store_wire/store_protocol.h"

namespace ddprun::rdzv {

class StoreValue {
 public:
  StoreValue() = default;
  explicit StoreValue(wire::Payload payload);  // takes the payload's blob
  explicit StoreValue(std::string text) : short_(std::move(text)) {}

  std::string_view view() const { return long_ ? long_->view() : std::string_view(short_); }
  std::size_t size() const { return view().size(); }
  // What the value costs beyond sizeof.
  std::size_t footprint() const;

  void append(wire::Payload payload);
  void write_to(wire::ReplyQueue& reply) const;

 private:
  std::string short_;
  std::shared_ptr<wire::Blob> long_;  // instead of short_, when set
};

}  // namespace ddprun::rdzv
