// Makes a connection that breaks and is resumed look like one that never broke: both ends number
// their messages, keep them until the other end has confirmed them, and send unconfirmed ones again
// over the new connection; duplicates are dropped. So the cores get every message once and in
// order. A value without I/O for one thread; each end of each connection owns one, and creates a
// new one when a node joins again.
//
// To resume, both ends send received(); each then confirms the other's number and sends
// unconfirmed(). Heartbeats carry received() too, so that the queue stays short.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

namespace ddprun::rdzv {

template <typename Message>
struct Numbered {
  std::uint64_t number = 0;  // from 1
  Message message;
};

template <typename Sent>
class ResendQueue {
 public:
  enum class Arrival { kNew, kRepeated, kGap };  // kGap: the other end breaks the protocol

  const Numbered<Sent>& send(Sent message) {
    unconfirmed_.push_back({++sent_, std::move(message)});
    return unconfirmed_.back();
  }
  const std::deque<Numbered<Sent>>& unconfirmed() const { return unconfirmed_; }
  bool is_confirmed() const { return unconfirmed_.empty(); }  // all that was sent
  void confirm(std::uint64_t number) {
    while (!unconfirmed_.empty() && unconfirmed_.front().number <= number) unconfirmed_.pop_front();
  }

  Arrival receive(std::uint64_t number) {
    if (number <= received_) return Arrival::kRepeated;
    if (number != received_ + 1) return Arrival::kGap;
    received_ = number;
    return Arrival::kNew;
  }
  std::uint64_t received() const { return received_; }

 private:
  std::deque<Numbered<Sent>> unconfirmed_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

}  // namespace ddprun::rdzv
