// The leader's decisions about one job, as a pure state machine: what agents say, what becomes of
// their connections, and the time come in; messages to agents come out. It alone knows who is a
// member, which round runs, and what is left of the restart budget. No I/O, no clock, no threads:
// whoever owns it calls step(), delivers what comes back in order, and calls tick() at deadline().
//
// The mistake to avoid: deciding inside of an event handler. Handlers note what happened; go_on()
// then makes the step that has become possible. So the order of events that come together (a
// failure, a loss, an arrival) does not matter more than it must.
//
// clang-format off
//
//           enough nodes           StoreOpened            all WorkersDone
//   Gathering ─────────▶ Opening ───────────────▶ Running ────────────────▶ Ended
//     ▲                     ▲                        │ failure, loss, leave,  ▲
//     │ too few             │ enough                 │ newcomer with room     │
//     │                     │                        ▼                        │
//     └─────────────────── (Pausing) ◀───────── Stopping ─────────────────────┘
//                          back-off   all stopped          no budget, own node left
//
//   event \ state    Gathering         Pausing         Opening             Running             Stopping            Ended
//   NodeHello (1)    add, progress     add             add                 add; room: stop (2) add                 JobEnd
//   StoreOpened      ignore            ignore          of host: RoundStart ignore              ignore              ignore
//   StoreNotOpened   ignore            ignore          of host: end        ignore              ignore              ignore
//   WorkerFailed     ignore            ignore          ignore              cause; stop         consequence         ignore
//   SomeWorkersDone  ignore            ignore          ignore              newcomers wait      ignore              ignore
//   WorkersDone      ignore            ignore          ignore              count; all: end(0)  ignore              ignore
//   RoundStopped     ignore            ignore          ignore              ignore              count; all: settle  ignore
//   NodeLeaving      remove            remove          remove; host: (3)   remove; stop (4)    remove; count       ignore
//     of own node    end(Stopped)      end(Stopped)    end(Stopped)        stop                leave; then end     ignore
//   NodeStuck        remove            remove          remove; host: (3)   remove; stop (4)    remove; count       ignore
//     of own node    end(CannotRun)    end(CannotRun)  end(CannotRun)      end(CannotRun)      end(CannotRun)      ignore
//   RestartAsked     ignore            ignore          ignore              stop; costs nothing ignore              ignore
//   StopAsked (5)    end(Stopped)      end(Stopped)    end(Stopped)        stop                stop; then end      ignore
//   Goodbye          ignore            ignore          ignore              ignore              ignore              was told
//   Disconnected     grace             grace           grace               grace               grace               grace
//   Resumed          no grace          no grace        no grace            no grace            no grace            no grace
//   Silent, or the   remove            remove          remove; host: (3)   remove; stop (4)    remove; count       was told
//     grace is over
//   tick             last call: open;  over: open, or  host too late: (6)  ignore              too late: remove,   too late: told
//                    too late: end     gather                                                  count (6)           or not
//
//   (1) refused first where it does not fit, and where very many wait for a place already; a node
//       whose connection is broken yields its rank to it
//   (2) once a worker has ended with 0 a newcomer only waits
//   (3) the next round number, another host; in every state: too few nodes are gathered again
//   (4) the going of a spare stops nothing
//   (6) the agent is heard and does not answer (answer_timeout, stop_margin): removed, and told DeclaredLost; another host.
//       The own node: Opening: end(CannotRun); Stopping: awaited for ever, since a preempted one leaves its workers their
//       time. A leader that was paused itself waits again
//   (5) of a node that is there, or of a leader that is no node, as node 0
//
// clang-format on
//
// What is not of a node that is there, and what carries another round, is dropped first (is_stale).
// Cause and budget are settled only when every node has answered RoundStop or is gone: a loss or a
// leave that becomes known meanwhile makes the failures of other nodes its consequences, and they
// cost nothing. A failure that the node itself had reported before it went stays the cause.
//
// A leader that is started again begins with nothing, and the job goes on under it with what the
// nodes tell of their last round in NodeHello: the next round has a higher number than any of theirs,
// no spent restart is forgotten, and as many nodes are awaited as that round had, without a last
// call (as in a Resumption). Where such a hello comes in:
//
//   Gathering, Pausing  the next round has the higher number
//   Opening             when the store is open the round is opened again under the higher number
//   Running, Stopping   (this leader has begun a round without that node) as for any newcomer; the
//                       round after it has the higher number
//   Ended               JobEnd, as for any newcomer
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/round/gathering.h"
#include "rendezvous/round/membership.h"
#include "rendezvous/round/peer_requests.h"
#include "rendezvous/round/restart_policy.h"
#include "rendezvous/round/round_config.h"
#include "rendezvous/round/round_end.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// A job that another leader led, which is gone (job_record.h has what it left behind).
struct Resumption {
  Round next{};  // that was never announced
  RestartHistory history;
  // Nodes of its last round are still there: the next one begins as soon as this many are back, and
  // without a last call. Else nodes are gathered as for a first round.
  bool goes_on = false;
  int nodes_expected = 0;
  std::optional<std::chrono::microseconds> uptime;  // of that round, where it is known
  CoreTime now{};
};

struct NodeDisconnected {};
struct NodeResumed {};
struct NodeSilent {};
using LinkEvent = std::variant<NodeDisconnected, NodeResumed, NodeSilent>;

struct ToNode {
  NodeId to{};
  ToAgent message;
  bool operator==(const ToNode&) const = default;
};

class RoundCore {
 public:
  explicit RoundCore(RoundConfig config);
  RoundCore(RoundConfig config, const Resumption& resumption);

  std::vector<ToNode> step(CoreTime now, NodeId from, const ToLeader& message);
  std::vector<ToNode> step(CoreTime now, NodeId node, const LinkEvent& event);
  std::vector<ToNode> tick(CoreTime now);
  std::optional<CoreTime> deadline() const;  // when tick() has something to do

  // Whether a new connection that names this node and session continues the old one.
  bool can_resume(NodeId node, std::uint64_t session) const;
  bool has(NodeId node) const { return members_.has(node); }

  Round round() const { return round_; }
  int restarts() const { return policy_.restarts(); }
  const RestartHistory& history() const { return policy_.history(); }
  bool is_deserted() const { return members_.is_empty(); }
  // Nodes of the round that was formed last.
  std::size_t group_size() const { return members_.group().size(); }
  bool is_running() const { return std::holds_alternative<Running>(state_); }
  // In the round that runs: newcomers only wait.
  bool are_some_done() const;
  bool has_ended() const { return std::holds_alternative<Ended>(state_); }
  const JobOutcome* outcome() const;  // null before the end
  LeaderView view(CoreTime now) const;
  // Ended, and nobody is left who does not know: the leader's process may go.
  bool was_everyone_told() const;

 private:
  struct Pausing {
    CoreTime until;
  };
  struct Opening {
    NodeId host{};
    CoreTime until;  // it is to answer
  };
  struct Running {
    CoreTime since;
    std::set<NodeId> done;
    bool are_some_done = false;  // a worker ended with 0: what it did must not be done again
  };
  struct Ended {
    JobOutcome outcome;
    std::set<NodeId> untold;
    CoreTime until;  // they are to say Goodbye
  };
  using State = std::variant<Gathering, Pausing, Opening, Running, StoppingRound, Ended>;
  using Out = std::vector<ToNode>;

  bool is_stale(NodeId from, const ToLeader& message) const;

  void on(Out& out, NodeId from, const NodeHello& hello);
  void learn_from(const LastRound& last);
  void on(Out& out, NodeId from, const StoreOpened& opened);
  void on(Out& out, NodeId from, const StoreNotOpened& refused);
  void on(Out& out, NodeId from, const WorkerFailed& failed);
  void on(Out& out, NodeId from, const SomeWorkersDone& done);
  void on(Out& out, NodeId from, const WorkersDone& done);
  void on(Out& out, NodeId from, const RoundStopped& stopped);
  void on(Out& out, NodeId from, const NodeLeaving& leaving);
  void on(Out& out, NodeId from, const NodeStuck& stuck);
  void on(Out& out, NodeId from, const Goodbye& goodbye);
  void on(Out& out, NodeId from, const RestartAsked& asked);
  void on(Out& out, NodeId from, const StopAsked& asked);
  void on(Out& out, NodeId node, const NodeDisconnected& event);
  void on(Out& out, NodeId node, const NodeResumed& event);
  void on(Out& out, NodeId node, const NodeSilent& event);

  bool may_have_its_rank(Out& out, NodeId from, const NodeHello& hello);
  bool may_wait(Out& out, NodeId from) const;
  void remove(Out& out, NodeId node, NodeGone::How how);
  void give_up_on(Out& out, NodeId node);
  std::size_t consequences_max() const;
  bool was_paused(CoreTime until) const;
  void make_last(Out& out, const NodeLeaving& why, std::optional<NodeId> leaver);

  void go_on(Out& out);
  void go_on(Out& out, Gathering& gathering);
  void go_on(Out& out, Pausing& pausing);
  void go_on(Out& out, Opening& opening);
  void go_on(Out& out, Running& running);
  void go_on(Out& out, StoppingRound& stopping);
  void go_on(Out& out, Ended& ended);

  void tell_progress(Out& out, NodeId to) const;
  void open_round(Out& out);
  void open_round_or_gather(Out& out);
  void announce_round(Out& out, std::uint16_t port);
  void stop_round(Out& out, StoppingRound stopping);
  void settle(Out& out, StoppingRound stopping);
  void end(Out& out, JobOutcome outcome);
  void end_for_want_of_nodes(Out& out);

  RoundConfig config_;
  State state_;
  Membership members_;
  RestartPolicy policy_;
  Round round_{};
  Round round_min_{};     // of the next round: every node here takes it
  bool has_run_ = false;  // some round was announced, by this leader or by one before it
  bool knows_by_nodes_ =
      false;                // has_run_ is what nodes told; this leader has announced no round yet
  int nodes_expected_ = 0;  // back from the round of another leader
  CoreTime now_{};          // of the step under way
  int asked_for_ = 0;       // restarts, by a person
  RoundStart next_;         // what it will say of the time since the last round
};

}  // namespace ddprun::rdzv
