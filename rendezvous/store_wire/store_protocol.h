// The requests of c10d's TCPStore protocol as values: the decoder produces them and the core
// handles them. rendezvous/README.md describes the wire format; numbers and layouts are PyTorch's
// and fixed. A Request refers to the decoder's memory: use it before the decoder is called again.
#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "rendezvous/common/bytes.h"
#include "rendezvous/common/limits.h"
#include "rendezvous/store_wire/blob.h"

namespace ddprun::rdzv::wire {

enum class Query : std::uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kGetNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
  kBarrier = 18,
};

inline constexpr std::uint32_t kValidateMagic = 0x3C85F7CE;

inline constexpr char kReady = 0;  // CHECK
inline constexpr char kNotReady = 1;
inline constexpr char kStopWaiting = 0;   // WAIT, BARRIER
inline constexpr char kWaitCanceled = 1;  // CANCEL_WAIT

// A received value: bytes in the decoder's buffer, or from kDetachedValueBytes on a blob, which the
// core may take over.
struct Payload {
  std::string_view bytes;
  Blob* blob = nullptr;

  std::string_view view() const { return blob != nullptr ? blob->view() : bytes; }
};

// Reads the fields of a request, once, in order. The decoder has checked them all.
class FieldReader {
 public:
  FieldReader() = default;
  FieldReader(const char* at, std::span<Blob> blobs) : at_(at), blobs_(blobs) {}

  template <std::integral T>
  T number() {
    return load<T>(std::exchange(at_, at_ + sizeof(T)));
  }
  std::string_view key() {
    const auto size = number<std::uint64_t>();
    return {std::exchange(at_, at_ + size), size};
  }
  Payload value() {
    if (load<std::uint64_t>(at_) < limits::kDetachedValueBytes) return {key(), nullptr};
    at_ += sizeof(std::uint64_t);
    Blob& blob = blobs_.front();
    blobs_ = blobs_.subspan(1);
    return {{}, &blob};
  }

 private:
  const char* at_ = nullptr;
  std::span<Blob> blobs_;
};

// The same for the entries of a request with a list.
class ItemReader {
 public:
  ItemReader() = default;
  explicit ItemReader(FieldReader fields)
      : left_(fields.number<std::uint64_t>()), fields_(fields) {}

  std::uint64_t left() const { return left_; }

  std::string_view next_key() {
    assert(left_ > 0);
    --left_;
    return fields_.key();
  }
  std::pair<std::string_view, Payload> next_entry() {
    const std::string_view key = next_key();
    return {key, fields_.value()};
  }

 private:
  std::uint64_t left_ = 0;
  FieldReader fields_;
};

struct Request {
  Query query = Query::kPing;
  std::string_view key;     // of every request with one key
  Payload expected;         // COMPARE_SET
  Payload value;            // SET, APPEND, QUEUE_PUSH; COMPARE_SET's desired value
  std::int64_t number = 0;  // ADD's delta, BARRIER's world size
  std::uint32_t nonce = 0;  // PING
  ItemReader items;         // CHECK, WAIT, MULTI_GET (keys), MULTI_SET (entries)
};

}  // namespace ddprun::rdzv::wire
