// One stored value: a short one inline, a long one (from limits::kDetachedValueBytes on) in a
// shared block that replies refer to instead of copying. So a long value is never changed in place
// while a reply still refers to it. One thread.
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
  // The memory of the value beyond sizeof.
  std::size_t footprint() const;

  void append(wire::Payload payload);
  void write_to(wire::ReplyQueue& reply) const;

 private:
  std::string short_;
  std::shared_ptr<wire::Blob> long_;  // used instead of short_ if set
};

}  // namespace ddprun::rdzv
