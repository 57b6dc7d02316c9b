// The unsent replies to one client: small ones are copied together, large values are kept by
// reference, so that sending 8 MiB copies nothing and a thousand readers of one value share it.
// Pure (it gathers views, it does not send); one thread.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/bytes.h"
#include "rendezvous/store_wire/blob.h"

namespace ddprun::rdzv::wire {

class ReplyQueue {
 public:
  void byte(char value) { flat_.push_back(value); }

  template <std::integral T>
  void number(T value) {
    append(flat_, value);
  }

  // Length and bytes.
  void bytes(std::string_view value);
  void bytes(const std::shared_ptr<const Blob>& value);

  bool empty() const { return unsent() == 0; }
  // Bytes to be sent, referenced ones included.
  std::size_t unsent() const { return flat_.size() - flat_sent_ + blob_bytes_; }
  // Bytes kept here because they are unsent.
  std::size_t held_bytes() const { return flat_.capacity() + blob_bytes_; }

  // Puts the next bytes to send into `parts` and returns how many of them it used.
  std::size_t gather(std::span<std::string_view> parts) const;
  void consume(std::size_t sent);

 private:
  void compact();

  struct Insertion {
    std::size_t at;  // goes out before flat_[at]
    std::shared_ptr<const Blob> blob;
  };

  std::string flat_;
  std::size_t flat_sent_ = 0;
  std::vector<Insertion> blobs_;  // in order
  std::size_t blobs_done_ = 0;    // those at the front of blobs_ that are sent
  std::size_t blob_sent_ = 0;     // of the first unsent one
  std::size_t blob_bytes_ = 0;    // unsent in all
};

}  // namespace ddprun::rdzv::wire
