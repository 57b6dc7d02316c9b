// Detects peers that have been silent for too long, on both ends of the connections between agents
// and leader. Pure values for one thread: the shell reports what it receives and asks every
// keep-alive interval.
//
// After a pause of our own process (own_pause.h) the last message of every peer is old, so both classes
// restart their timeouts if they were not asked for longer than two intervals.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/common/ids.h"
#include "rendezvous/common/own_pause.h"

namespace ddprun::rdzv {

struct KeepAlive {
  std::chrono::milliseconds interval{2000};  // each side sends something this often
  int attempts = 3;  // intervals without a message before a peer counts as silent
  std::chrono::milliseconds reconnect_grace{300};

  std::chrono::milliseconds timeout() const { return interval * attempts; }

  bool operator==(const KeepAlive&) const = default;
};

// The looks of an owner that is to look at every interval.
class Looks {
 public:
  explicit Looks(std::chrono::milliseconds interval) : interval_(interval) {}
  // Whether the process has paused since the last look.
  bool end_pause(CoreTime now) {
    const auto last = std::exchange(last_, now);
    return last && own_pause(*last + interval_, now, interval_) > CoreTime::duration::zero();
  }

 private:
  std::chrono::milliseconds interval_;
  std::optional<CoreTime> last_;
};

// The leader's view of its nodes.
class Liveness {
 public:
  explicit Liveness(KeepAlive keep_alive) : keep_alive_(keep_alive), looks_(keep_alive.interval) {}

  void heard(NodeId node, CoreTime now) { last_heard_[node] = now; }
  void forget(NodeId node) { last_heard_.erase(node); }

  // Forgets the nodes that it returns.
  std::vector<NodeId> take_silent(CoreTime now) {
    std::vector<NodeId> silent;
    if (looks_.end_pause(now)) {
      for (auto& [node, heard] : last_heard_) heard = now;
      return silent;
    }
    for (const auto& [node, heard] : last_heard_) {
      if (now - heard >= keep_alive_.timeout()) silent.push_back(node);
    }
    for (const NodeId node : silent) last_heard_.erase(node);
    return silent;
  }
  // When take_silent() will return a node if no message arrives; nullopt if there are no nodes.
  std::optional<CoreTime> next_silent_at() const {
    std::optional<CoreTime> earliest;
    for (const auto& [node, heard] : last_heard_) {
      if (!earliest || heard < *earliest) earliest = heard;
    }
    if (earliest) *earliest += keep_alive_.timeout();
    return earliest;
  }

 private:
  KeepAlive keep_alive_;
  Looks looks_;
  std::map<NodeId, CoreTime> last_heard_;
};

// An agent's view of its leader: a broken connection is lost after reconnect_grace, a silent one
// after timeout().
class LeaderLiveness {
 public:
  explicit LeaderLiveness(KeepAlive keep_alive)
      : keep_alive_(keep_alive), looks_(keep_alive.interval) {}

  void heard(CoreTime now) {
    last_heard_ = now;
    broken_since_.reset();
  }
  void broke(CoreTime now) {
    if (!broken_since_) broken_since_ = now;
  }

  bool is_lost(CoreTime now) {
    if (looks_.end_pause(now)) {
      last_heard_ = now;
      if (broken_since_) broken_since_ = now;
    }
    return now >= lost_at();
  }
  CoreTime lost_at() const {
    return broken_since_ ? *broken_since_ + keep_alive_.reconnect_grace
                         : last_heard_ + keep_alive_.timeout();
  }

 private:
  KeepAlive keep_alive_;
  Looks looks_;
  CoreTime last_heard_{};
  std::optional<CoreTime> broken_since_;
};

}  // namespace ddprun::rdzv
