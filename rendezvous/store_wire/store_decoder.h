// Makes requests out of the bytes of one connection, however TCP cut or glued them, in time linear
// in their number: nothing is looked at twice but the finished request. Requests that arrive whole
// are decoded in place; only an unfinished one is stored, so an idle connection holds nothing.
// Enforces VALIDATE (which is the decoder's alone; the core never sees it) and checks every length
// before it keeps a byte of what follows.
//
//   std::string_view input = received;
//   Request request;
//   while (decoder.next(input, request) == RequestDecoder::Status::kRequest) core.handle(request);
//
// One connection's; not thread-safe. The mistake to avoid: using a Request after the next call, or
// after `input`'s memory is gone.
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
    kRequest,   // one request is out; call again for the next
    kBroken,    // the peer broke the protocol: close; fault() says how
  };

  Status next(std::string_view& input, Request& request);

  // While a large value is on its way its bytes may be received straight into place: write up to
  // size() bytes here, then commit. Empty at all other times. A finished value is then found by
  // next().
  std::span<char> direct_space();
  void commit_direct(std::size_t written);

  // The memory held by an unfinished request.
  std::size_t held_bytes() const {
    return pending_.empty() ? 0 : pending_.capacity() + blob_bytes_;
  }
  const char* fault() const { return fault_; }

 private:
  // How far one request is understood. `position` may lie beyond the bytes at hand: what it skips
  // over (the inside of keys and values) is not looked at.
  struct Scan {
    const char* fields = nullptr;  // what is still to come of the head or of the current list entry
    std::uint64_t items_left = 0;
    std::uint64_t position = 0;
    std::uint64_t wanted = 1;    // bytes that must be there before the next step is worth trying
    std::uint64_t detached = 0;  // the announced size of the large value that starts at `position`
    std::uint64_t total = 0;     // bytes of the request so far, large values included
    char query = 0;
  };
  enum class Step { kDone, kMore, kDetach, kBroken };

  Step advance(Scan& scan, std::string_view flat);
  Step start(Scan& scan, char query);
  Step broken(const char* fault);
  Status deliver(std::string_view flat, Request& request);
  Status next_in_place(std::string_view& input, Request& request, bool& finished);
  void begin_detached();
  void forget_delivered();

  std::string pending_;      // the unfinished request, without its large values
  std::vector<Blob> blobs_;  // its large values
  Scan scan_;
  std::uint64_t blob_left_ = 0;
  std::size_t blob_bytes_ = 0;  // the capacity of blobs_, their own size included
  const char* fault_ = "";
  bool is_validated_ = false;
  bool is_delivered_ = false;  // pending_ and blobs_ belong to a request that the caller has seen
};

}  // namespace ddprun::rdzv::wire
