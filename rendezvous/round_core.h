// The leader's decisions about one job, as a pure state machine: messages from agents in, messages
// to agents out. It alone knows who is a member, which round runs, and what is left of the restart
// budget. No I/O, no clock, no threads: whoever owns it calls step() and delivers what comes back,
// in order.
//
//   Gathering ──all nodes there──▶ Opening ──StoreOpened──▶ Running ──all WorkersDone──▶ Ended
//                                     ▲                        │ WorkerFailed, NodeLeaving
//                                     └──budget left── Stopping ◀┘ ──budget spent, leaving──▶ Ended
//
//   event           Gathering         Opening           Running           Stopping          Ended
//   NodeHello       add; all there:   -                 -                 -                 JobEnd
//                   OpenStore
//   StoreOpened     -                 RoundStart        -                 -                 -
//   StoreNotOpened  -                 end: cannot run   -                 -                 -
//   WorkerFailed    -                 -                 cause; RoundStop  a consequence     -
//   WorkersDone     -                 -                 all: end: 0       -                 -
//   RoundStopped    -                 -                 -                 all: settle       -
//   NodeLeaving     end: stopped      end: stopped      RoundStop         remember          -
//   NodeStuck       end: cannot run   end: cannot run   end: cannot run   end: cannot run   -
//
// Messages of another round than the current one are dropped first (is_stale). Cause and budget are
// settled only when every node has answered RoundStop: a leave that is announced meanwhile makes
// the failures of other nodes its consequences, and they cost nothing.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/round_messages.h"

namespace ddprun::rdzv {

struct RoundConfig {
  int node_count = 1;
  int max_restarts = 0;
};

struct ToNode {
  NodeId to{};
  ToAgent message;
  bool operator==(const ToNode&) const = default;
};

class RoundCore {
 public:
  explicit RoundCore(RoundConfig config) : config_(config) {}

  std::vector<ToNode> step(NodeId from, const ToLeader& message);

  Round round() const { return round_; }
  int restarts() const { return restarts_; }
  bool has_ended() const { return std::holds_alternative<Ended>(state_); }

 private:
  struct Gathering {};
  struct Opening {
    std::optional<WorkerFailure> after_failure;
  };
  struct Running {
    std::set<NodeId> done;
  };
  struct Stopping {
    std::set<NodeId> awaited;                 // have not answered RoundStop yet
    std::optional<WorkerFailure> cause;       // the first failure of the round
    NodeId cause_node{};                      // and where it was
    std::vector<WorkerFailure> consequences;  // in the order in which they were reported
    std::optional<NodeLeaving> leave;         // a node announced that it leaves
    bool failed_before_leave = false;         // the cause was there first, and from that same node
  };
  struct Ended {
    JobOutcome outcome;
  };
  using State = std::variant<Gathering, Opening, Running, Stopping, Ended>;
  using Out = std::vector<ToNode>;

  bool is_stale(const ToLeader& message) const;

  void on(Out& out, NodeId from, const NodeHello& hello);
  void on(Out& out, NodeId from, const StoreOpened& opened);
  void on(Out& out, NodeId from, const StoreNotOpened& refused);
  void on(Out& out, NodeId from, const WorkerFailed& failed);
  void on(Out& out, NodeId from, const WorkersDone& done);
  void on(Out& out, NodeId from, const RoundStopped& stopped);
  void on(Out& out, NodeId from, const NodeLeaving& leaving);
  void on(Out& out, NodeId from, const NodeStuck& stuck);

  void open_round(Out& out, std::optional<WorkerFailure> after_failure);
  void stop_round(Out& out, Stopping stopping);
  void settle(Out& out, Stopping stopping);
  void end(Out& out, JobOutcome outcome);

  RoundConfig config_;
  State state_ = Gathering{};
  std::map<NodeId, NodeHello> nodes_;  // in group rank order: the order of arrival
  Round round_{};
  int restarts_ = 0;
};

}  // namespace ddprun::rdzv
