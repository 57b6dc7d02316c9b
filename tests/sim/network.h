// The network between agents and the leader: connections that keep their own order, with delays
// that differ, and that can be cut (nothing passes, in one direction or both, until healed) or
// reset.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "rendezvous/common/ids.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/random.h"

namespace ddprun::sim {

enum End : std::size_t { kAgentEnd = 0, kLeaderEnd = 1 };
constexpr End other(End end) { return end == kAgentEnd ? kLeaderEnd : kAgentEnd; }

struct Connection {
  int slot = 0;
  std::optional<NodeId> node;  // whom the leader takes the agent for
  bool is_reset = false;
  struct Side {
    ProcessPtr process;
    std::function<void()> when_broken;
    bool is_open = true;
    CoreTime last_arrival{};
    std::vector<std::function<void()>> held;  // on its way here, and cut off
  };
  std::array<Side, 2> sides;
};
using ConnectionPtr = std::shared_ptr<Connection>;

class Network {
 public:
  Network(EventQueue& queue, Random& random, std::size_t slots, CoreTime::duration delay_max)
      : queue_(queue), random_(random), delay_max_(delay_max), is_cut_(slots) {}
  // What a connection holds may hold the connection.
  ~Network() {
    for (const auto& each : connections_) {
      const auto connection = each.lock();
      if (!connection) continue;
      for (auto& side : connection->sides) {
        side.held.clear();
        side.when_broken = nullptr;
      }
    }
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  ConnectionPtr connect(int slot, const ProcessPtr& agent, const ProcessPtr& leader) {
    auto connection = std::make_shared<Connection>();
    connection->slot = slot;
    connection->sides[kAgentEnd].process = agent;
    connection->sides[kLeaderEnd].process = leader;
    std::erase_if(connections_, [](const auto& each) { return each.expired(); });
    connections_.push_back(connection);
    return connection;
  }

  CoreTime::duration delay() { return random_.time(CoreTime::duration(50), delay_max_); }
  bool is_cut(int slot) const { return cut(slot, kAgentEnd) || cut(slot, kLeaderEnd); }

  void send(const ConnectionPtr& connection, End from, std::function<void()> message) {
    if (connection->is_reset) return;
    auto& side = connection->sides[other(from)];
    if (cut(connection->slot, other(from))) {
      side.held.push_back(std::move(message));
    } else {
      deliver(connection, other(from), std::move(message));
    }
  }

  // In order: what was sent before arrives before.
  void close(const ConnectionPtr& connection, End from) {
    if (!std::exchange(connection->sides[from].is_open, false)) return;
    send(connection, from, [connection, to = other(from)] { break_end(connection, to); });
  }

  // What is on its way is lost; each end hears of it unless the network is cut.
  void reset(const ConnectionPtr& connection) {
    if (std::exchange(connection->is_reset, true)) return;
    for (const End end : {kAgentEnd, kLeaderEnd}) {
      connection->sides[end].held.clear();
      if (cut(connection->slot, end)) continue;
      queue_.after(delay(), connection->sides[end].process,
                   [connection, end] { break_end(connection, end); });
    }
  }
  template <typename Predicate>
  void reset_all(Predicate predicate) {
    for (const auto& each : connections_) {
      if (const auto connection = each.lock(); connection && predicate(*connection)) {
        reset(connection);
      }
    }
  }

  void set_cut(int slot, End towards, bool is_cut) {
    is_cut_[static_cast<std::size_t>(slot)][towards] = is_cut;
    if (is_cut) return;
    for (const auto& each : connections_) {
      const auto connection = each.lock();
      if (!connection || connection->slot != slot) continue;
      for (auto& message : std::exchange(connection->sides[towards].held, {})) {
        deliver(connection, towards, std::move(message));
      }
    }
  }

 private:
  bool cut(int slot, End towards) const { return is_cut_[static_cast<std::size_t>(slot)][towards]; }
  static void break_end(const ConnectionPtr& connection, End end) {
    auto& side = connection->sides[end];
    if (std::exchange(side.is_open, false) && side.when_broken) side.when_broken();
  }
  void deliver(const ConnectionPtr& connection, End to, std::function<void()> message) {
    auto& side = connection->sides[to];
    side.last_arrival = std::max(side.last_arrival, queue_.now() + delay());
    queue_.after(side.last_arrival - queue_.now(), side.process,
                 [connection, to, message = std::move(message)] {
                   if (!connection->is_reset && connection->sides[to].is_open) message();
                 });
  }

  EventQueue& queue_;
  Random& random_;
  CoreTime::duration delay_max_;
  std::vector<std::array<bool, 2>> is_cut_;  // by slot: towards the agent, towards the leader
  std::vector<std::weak_ptr<Connection>> connections_;
};

}  // namespace ddprun::sim
