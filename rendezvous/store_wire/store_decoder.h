// Decodes the requests of one connection, in whatever pieces their bytes arrive, in linear time:
// only a complete request is read a second time. Requests that arrive whole are decoded in place;
// only an incomplete one is stored, so an idle connection holds no memory. Enforces VALIDATE (the
// core never sees it) and checks every length before it stores any of the bytes that follow.
//
//   std::string_view input = received;
//   Request request;
//   while (decoder.next(input, request) == RequestDecoder::Status::kRequest) core.handle(request);
//
// One per connection; not thread-safe. A Request is valid until the next call, and only while
// `input`'s memory exists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store_wire/store_protocol.h"

namespace ddprun::rdzv::wire {

class RequestDecoder {
 public:
  enum class Status {
    kNeedMore,  // all input is consumed
    kRequest,   // `request` is filled in; call again for the next
    kBroken,    // the peer broke the protocol: close; fault() says how
  };

  Status next(std::string_view& input, Request& request);

  // While a large value arrives, its bytes can be received directly into place: write up to size()
  // bytes here, then commit. Empty at all other times. After the last byte, call next().
  std::span<char> direct_space();
  void commit_direct(std::size_t written);

  // The memory held by an unfinished request.
  std::size_t held_bytes() const {
    return pending_.empty() ? 0 : pending_.capacity() + blob_bytes_;
  }
  const char* fault() const { return fault_; }

 private:
  // How far one request is parsed. `position` may lie beyond the received bytes: the contents of
  // keys and values are skipped.
  struct Scan {
    const char* fields = nullptr;  // the remaining fields of the head or of the list entry
    std::uint64_t items_left = 0;
    std::uint64_t position = 0;
    std::uint64_t wanted = 1;    // bytes needed before the next step can succeed
    std::uint64_t detached = 0;  // the announced size of the large value that starts at `position`
    std::uint64_t total = 0;     // bytes of the request so far, large values included
    char query = 0;
  };
  enum class Step { kDone, kMore, kDetach, kBroken };

  Step advance(Scan& scan, std::string_view flat);
  Step start(Scan& scan, char query);
  Step broken(const char* fault);
  Status deliver(std::string_view flat, Request& request);
  void receive_detached(std::string_view& input);
  void begin_detached();
  void forget_delivered();

  std::string pending_;      // the unfinished request, without its large values
  std::vector<Blob> blobs_;  // its large values
  Scan scan_;
  std::uint64_t blob_left_ = 0;
  std::size_t blob_bytes_ = 0;  // the capacity of blobs_, their own size included
  const char* fault_ = "";
  bool is_validated_ = false;
  bool is_delivered_ = false;  // the caller has seen the request that the members belong to
};

}  // namespace ddprun::rdzv::wire
