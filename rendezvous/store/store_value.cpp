#include "rendezvous/store/store_value.h"

#include <utility>

namespace ddprun::rdzv {

StoreValue::StoreValue(wire::Payload payload) {
  if (payload.blob != nullptr) {
    long_ = std::make_shared<wire::Blob>(std::move(*payload.blob));
  } else {
    short_ = payload.bytes;
  }
}

std::size_t StoreValue::footprint() const {
  if (long_) return sizeof(wire::Blob) + long_->capacity();
  return short_.capacity() < sizeof(std::string) ? 0 : short_.capacity();
}

void StoreValue::append(wire::Payload payload) {
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

void StoreValue::write_to(wire::ReplyQueue& reply) const {
  long_ ? reply.bytes(long_) : reply.bytes(short_);
}

}  // namespace ddprun::rdzv
