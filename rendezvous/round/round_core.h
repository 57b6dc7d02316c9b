// The leader's decisions about one job, as a pure state machine. Input: the agents' messages, the
// state of their connections, and the time. Output: messages to agents. It alone knows the members,
// the current round, and the rest of the restart budget. No I/O, no clock, no threads: its owner
// calls step(), delivers the returned messages in order, and calls tick() at deadline().
//
// An event handler does only what its event alone decides: it records it, begins a round whose
// store is open, stops or ends one. Steps that wait for several nodes belong in go_on(), so that
// the order of nearly simultaneous events (a failure, a loss, an arrival) matters as little as
// possible.
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
//   NodeHello (1)    add, progress     add             add                 add; room: stop (5) add                 JobEnd
//   StoreOpened      ignore            ignore          of host: RoundStart ignore              ignore              ignore
//   StoreNotOpened   ignore            ignore          of host: end        ignore              ignore              ignore
//   WorkerFailed     ignore            ignore          ignore              cause; stop (2)     consequence         ignore
//   WorkerReplaceable ignore           ignore          ignore              replace or stop (3) consequence         ignore
//   WorkersRecover   ignore            ignore          ignore              note                ignore              ignore
//   Regrouped        ignore            ignore          ignore              count (3)           ignore              ignore
//   CannotRegroup    ignore            ignore          ignore              ignore; stop (3)    ignore              ignore
//   LeaveWanted      ignore            ignore          ignore              HoldSteps (5)       ignore              ignore
//   StopWanted       ignore            ignore          ignore              stop (5)            ignore              ignore
//   StepsHeld        ignore            ignore          ignore              all: LeaveAt (5), stop (5) ignore         ignore
//   SomeWorkersDone  ignore            ignore          ignore              newcomers wait (3)  ignore              ignore
//   WorkersDone      ignore            ignore          ignore              count (3); all: end (6) ignore          ignore
//   RoundStopped     ignore            ignore          ignore              ignore              count; all: settle  ignore
//   NodeLeaving      remove            remove          remove; host gone   remove; stop        remove; count       ignore
//     of own node    end(Stopped)      end(Stopped)    end(Stopped)        stop                leave; then end     ignore
//   NodeStuck        remove            remove          remove; host gone   remove; stop (2)    remove; count       ignore
//     of own node    end(CannotRun)    end(CannotRun)  end(CannotRun)      end(CannotRun)      end(CannotRun)      ignore
//   RestartAsked     ignore            ignore          ignore              stop (5); costs nothing ignore          ignore
//   StopAsked        end(Stopped)      end(Stopped)    end(Stopped)        stop (5)            stop; then end      ignore
//   DrainAsked       note (7)          note (7)        note (7)            note; stop (7)      note (7)            ignore
//   NodeFit          note              note            note                note; for a newcomer stop (5) note        ignore
//   NodeUnfit        note (7)          note (7)        note (7)            note; stop (7)      note (7)            ignore
//   Goodbye          ignore            ignore          ignore              ignore              ignore              was told
//   Disconnected     grace             grace           grace               grace               grace               grace
//   Resumed          no grace          no grace        no grace            no grace            no grace            no grace
//   TurnedAway       note              note            note                note                note                note
//   Silent, or the   remove            remove          remove; host gone   remove; stop (2)    remove; count       was told
//     grace is over
//   tick             last call: open;  over: open, or  host too late (4)   too late: stop (3)  too late (4)        too late: told
//                    too late: end     gather                                                                      or not
//
//   "stop" if the node is one of the round: for a spare nothing stops. "host gone": the next round number with another
//   host; in every state: if too few nodes are left, Gathering again. StopAsked may come from a leader that is no node,
//   as node 0.
//   (1) refused if its settings do not fit, or if there are too many spares already. A node whose connection is broken
//       loses its rank to it; for the rank of a connected one it waits (waiting_hellos.h), because that may be dead as well,
//       and this node its successor. While it waits, only the end of its connection is handled. Once a worker has ended
//       with 0, a newcomer only waits
//   (2) first of all GroupBroken to the other nodes of the round, whose workers may wait for those that are gone for ever
//   (3) as replacements.h decides: ReplaceWorker with the next generation to all nodes of the round, which costs one restart
//       at once; or the round is stopped, with GroupBroken to all nodes of the round. A step that is poison ends the job
//   (4) the agent is connected and does not answer (answer_timeout, stop_margin): removed, and told DeclaredLost. Our own
//       node: Opening: end(CannotRun); Stopping: no time limit, since a preempted one leaves its workers their time. A
//       leader that was paused itself waits again
//   (5) as step_agreement.h says, to all nodes of the round: HoldSteps first, and when all have answered LeaveAt, or RoundStop
//       with that step. RoundStop comes at once if a node says that its workers cannot be stopped between two steps, or does
//       not answer (kHoldLimit); if workers leave, are replaced, or have ended with 0; and whatever else stops the round
//   (6) with success; if workers of a node have left because of a preemption, and no node says that it is preempted, with the
//       outcome of one
//   (7) left_out.h has the hosts that take part in no round. If one of them is in the round and can be spared (membership.h),
//       the round is stopped as in (5), also when another node has arrived for it; at once if a user says so. Not after a
//       worker has ended with 0
//
// clang-format on
//
// A message from a node that is not present, or with another round's number, is dropped first
// (is_stale). Cause and budget are settled only when every node has answered RoundStop or is gone:
// if a loss or a leave becomes known meanwhile, the failures of other nodes are its consequences
// and cost nothing. A failure that the node itself reported before it went stays the cause.
//
// A leader that is started again has no state; the job continues with what the nodes report of
// their last round in NodeHello: the next round has a higher number than any of theirs, spent
// restarts are counted, and it waits for as many nodes as that round had, without a last call (as
// in a Resumption). What such a hello does in each state:
//
//   Gathering, Pausing  the next round has the higher number
//   Opening             when the store is open, the round is opened again with the higher number
//   Running, Stopping   (this leader has begun a round without that node) as for any newcomer; the
//                       round after it has the higher number
//   Ended               JobEnd, as for any newcomer
#pragma once

#include <optional>
#include <set>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/round/gathering.h"
#include "rendezvous/round/left_out.h"
#include "rendezvous/round/membership.h"
#include "rendezvous/round/peer_requests.h"
#include "rendezvous/round/replacements.h"
#include "rendezvous/round/restart_policy.h"
#include "rendezvous/round/round_config.h"
#include "rendezvous/round/round_end.h"
#include "rendezvous/round/round_messages.h"
#include "rendezvous/round/step_agreement.h"
#include "rendezvous/round/turned_away.h"
#include "rendezvous/round/waiting_hellos.h"

namespace ddprun::rdzv {

// The job of an earlier leader that is gone (job_record.h has the state that it left).
struct Resumption {
  Round next{};  // the first round number that was never announced
  RestartHistory history;
  // Nodes of its last round still exist: the next one begins without a last call as soon as the
  // expected number is back. Otherwise nodes are gathered as for a first round.
  bool goes_on = false;
  int nodes_expected = 0;
  std::optional<std::chrono::microseconds> uptime;  // of that round, if known
  CoreTime now{};
  std::vector<LeftOutHost> left_out = {};
};

struct NodeDisconnected {};
struct NodeResumed {};
struct NodeSilent {};
// NodeTurnedAway: a node that the shell has refused, so no NodeId belongs to it.
using LinkEvent = std::variant<NodeDisconnected, NodeResumed, NodeSilent, NodeTurnedAway>;

// What the leader's log names at once.
struct ToBeLeftOut {  // the next round is without it, if enough others are there
  NodeGone node;
};
using LeaderNews = std::variant<NodeTurnedAway, NodeGone, ToBeLeftOut>;
// "node 1 (b3) is to be left out: GPU 5 is lost; until it can be spared, it takes part"
std::string describe(const ToBeLeftOut& news);

struct ToNode {
  NodeId to{};
  ToAgent message;
  bool operator==(const ToNode&) const = default;
};

struct Tick {};  // deadline() has come

// One input: for the shell, and for recording and replaying a job (agent/events/core_record.h).
struct RoundInput {
  CoreTime at;
  NodeId node{};  // unused for Tick
  std::variant<Tick, ToLeader, LinkEvent> what;
};

class RoundCore {
 public:
  explicit RoundCore(RoundConfig config);
  RoundCore(RoundConfig config, const Resumption& resumption);

  std::vector<ToNode> step(CoreTime now, NodeId from, const ToLeader& message);
  std::vector<ToNode> step(CoreTime now, NodeId node, const LinkEvent& event);
  std::vector<ToNode> tick(CoreTime now);
  std::vector<ToNode> step(const RoundInput& input);
  std::optional<CoreTime> deadline() const;                      // when to call tick()
  const std::vector<LeaderNews>& news() const { return news_; }  // from the last step
  // The reasons of what the last step decided, as sentences, in the order of the decisions.
  const std::vector<std::string_view>& why() const { return why_; }

  // Whether a new connection for this node and session may resume the old one.
  bool can_resume(NodeId node, std::uint64_t session) const;
  // A member, or a node that waits for its rank.
  bool has(NodeId node) const { return members_.has(node) || waiting_.has(node); }

  Round round() const { return round_; }
  int restarts() const { return policy_.restarts(now_); }  // that count now
  int restarts_in_all() const { return policy_.restarts_in_all(); }
  RestartHistory history() const { return policy_.history(now_); }
  const std::vector<LeftOutHost>& left_out() const { return left_out_.all(); }
  bool is_deserted() const { return members_.is_empty(); }
  // The number of nodes in the group formed last.
  std::size_t group_size() const { return members_.group().size(); }
  std::optional<NodeId> first_node() const;  // the one of that group with rank 0
  bool is_running() const { return std::holds_alternative<Running>(state_); }
  // Whether a worker of the running round has ended with 0: newcomers only wait then.
  bool are_some_done() const;
  bool has_ended() const { return std::holds_alternative<Ended>(state_); }
  const JobOutcome* outcome() const;  // null before the end
  LeaderView view(CoreTime now) const;
  std::optional<WaitForNodes> wait(CoreTime now) const;  // nothing: it does not wait for nodes
  // A node of the running round that is to be left out is spared at once: nothing comes first.
  bool may_spare_now() const {
    const auto* running = std::get_if<Running>(&state_);
    return running != nullptr && !running->stop && !running->are_some_done &&
           !running->replacements.under_way && running->leave.stays();
  }
  // The round runs, and is stopped as soon as it is known after which step.
  bool is_stop_ahead() const {
    const auto* running = std::get_if<Running>(&state_);
    return running != nullptr && running->stop;
  }
  // The job has ended and every node knows: the leader's process may exit.
  bool was_everyone_told() const;

 private:
  struct Pausing {
    CoreTime until;
  };
  struct Opening {
    NodeId host{};
    CoreTime until;  // the time limit for the answer
  };
  // The round is about to be stopped as planned, between two steps.
  struct StopAhead {
    StepAgreement steps = {};
    CoreTime until = {};                           // the time limit for StepsHeld
    std::optional<StoppingRound::Stop> last = {};  // no round follows
    std::optional<NodeGone> gone = {};             // the node that is about to leave
    bool is_for_newcomer = false;                  // and for nothing else
    bool is_leave_wanted = false;  // which counts if the round is not stopped after all
  };
  struct Running {
    CoreTime since;
    int world_size = 0;
    std::set<NodeId> done = {};
    bool are_some_done = false;  // a worker ended with 0: its work must not be repeated
    bool has_left = false;       // workers of a node have left because of a preemption
    Replacements replacements = {};
    StepAgreement leave = {};
    std::optional<StopAhead> stop = {};
  };
  struct Ended {
    JobOutcome outcome;
    std::set<NodeId> untold;
    CoreTime until;  // the time limit for Goodbye
  };
  using State = std::variant<Gathering, Pausing, Opening, Running, StoppingRound, Ended>;

  // What is known of the round before the next one. Nodes that should come back are expected from another leader's only.
  struct NoRound {};
  struct OfRecord {  // an earlier leader has announced it, as its record says
    int nodes_expected = 0;
  };
  struct OfNodes {  // the same, as nodes say
    int nodes_expected = 0;
  };
  struct Led {};  // by this leader
  using RoundBefore = std::variant<NoRound, OfRecord, OfNodes, Led>;
  using Out = std::vector<ToNode>;

  void begin_step(CoreTime now);
  void because(std::string_view sentence) { why_.push_back(sentence); }
  bool is_stale(NodeId from, const ToLeader& message) const;

  void on(NodeId from, const NodeHello& hello);
  bool has_run() const;  // a round was announced, by this leader or an earlier one
  int nodes_expected() const;
  void learn_from(const LastRound& last);
  void on(NodeId from, const StoreOpened& opened);
  void on(NodeId from, const StoreNotOpened& refused);
  void on(NodeId from, const WorkerFailed& failed);
  void on(NodeId from, const SomeWorkersDone& done);
  void on(NodeId from, const WorkersDone& done);
  void on(NodeId from, const RoundStopped& stopped);
  void on(NodeId from, const NodeLeaving& leaving);
  void on(NodeId from, const NodeStuck& stuck);
  void on(NodeId from, const Goodbye& goodbye);
  void on(NodeId from, const RestartAsked& asked);
  void on(NodeId from, const StopAsked& asked);
  void on(NodeId from, const WorkersRecover& recover);
  void on(NodeId from, const WorkerReplaceable& failed);
  void on(NodeId from, const Regrouped& regrouped);
  void on(NodeId from, const CannotRegroup& refusal);
  void on(NodeId from, const LeaveWanted& wanted);
  void on(NodeId from, const StopWanted& wanted);
  void on(NodeId from, const StepsHeld& held);
  void on(NodeId from, const DrainAsked& asked);
  void on(NodeId from, const NodeUnfit& unfit);
  void on(NodeId from, const NodeFit& fit);
  void on(NodeId node, const NodeDisconnected& event);
  void on(NodeId node, const NodeResumed& event);
  void on(NodeId node, const NodeSilent& event);
  void on(NodeId node, const NodeTurnedAway& event);

  void refuse(NodeId from, const NodeHello& hello, std::string sentence, std::string why);
  bool may_have_its_rank(NodeId from, const NodeHello& hello);
  void settle_waiting();
  bool may_wait(NodeId from, const NodeHello& hello);
  void turned_away(NodeTurnedAway node);
  void remove(NodeId node, NodeGone::How how);
  void give_up_on(NodeId node);
  HostName host_of(NodeId node) const;
  bool may_blame(NodeId node) const;
  void blame(NodeId node, const WorkerFailure& failure);
  void settle_left_out();
  void wait_left_out(NodeId node);
  NodeGone as_left_out(NodeId node) const;
  void form_group();
  std::size_t consequences_max() const;
  bool was_paused(CoreTime until) const;
  void make_last(const NodeLeaving& why, std::optional<NodeId> leaver,
                 const std::string& asked_by = {});
  void note_request(const std::string& by);

  void check() const;
  void go_on();
  void go_on(Gathering& gathering);
  void go_on(Pausing& pausing);
  void go_on(Opening& opening);
  void go_on(Running& running);
  void change_nodes(Running& running);
  void go_on(StoppingRound& stopping);
  void go_on(Ended& ended);

  WaitForNodes wait(const Gathering& gathering, CoreTime now, std::string remark) const;
  std::string missing_ranks() const;
  void open_round();
  void open_round_or_gather();
  void announce_round(std::uint16_t port);
  void tell_group(const ToAgent& message);
  void tell_of_break(int rank, std::optional<NodeId> knows);
  Replacements::Situation as_seen(const Running& running, const WorkerFailure& failure) const;
  void replace(Running& running, NodeId node, const WorkerReplaceable& failed);
  void stop_after(NodeId node, WorkerFailure cause, std::string why_last = {});
  void stop_replacing(Running& running, const std::optional<WorkerFailure>& last = {});
  void regrouping_is_in_vain(Running& running);
  void workers_ended_on(NodeId node);
  bool have_common_step(const Running& running) const;
  static bool is_stopped_as_planned(const Running& running);
  void fails_while_stopped(const WorkerFailure& failure);
  void stop_between_steps(Running& running, StopAhead why);
  void stop_round(StoppingRound stopping, const std::optional<NodeGone>& gone = {},
                  std::optional<std::int64_t> after_step = {});
  void settle(StoppingRound stopping);
  void end(JobOutcome outcome);

  Out out_;  // of the current step
  std::vector<LeaderNews> news_;
  std::vector<std::string_view> why_;  // literals
  RoundConfig config_;
  State state_;
  Membership members_;
  WaitingHellos waiting_;
  TurnedAwayNodes turned_away_;  // since the last round
  LeftOutHosts left_out_;
  std::vector<LeftOutHost> settled_left_out_;  // that the nodes here know of
  RestartPolicy policy_;
  Round round_{};
  Round round_min_{};  // the lowest number of the next round that every node accepts
  RoundBefore before_;
  CoreTime now_{};                     // when the current step began
  int asked_for_ = 0;                  // restarts that users have requested
  std::vector<std::string> requests_;  // what users have asked for, the latest
  int in_place_ = 0;                   // restarts without another round
  RoundStart next_;  // what has changed since the last round, for the next RoundStart
};

}  // namespace ddprun::rdzv
