#include "agent/core/node_core.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/common/exit_codes.h"

namespace ddprun::agent {
namespace {

bool all(const std::vector<bool>& flags) {
  return std::all_of(flags.begin(), flags.end(), [](bool flag) { return flag; });
}

// What happens within a round is of that round; what opens or starts one names a later one.
template <typename Event>
constexpr bool kBeginsARound =
    std::is_same_v<Event, rdzv::OpenStore> || std::is_same_v<Event, rdzv::RoundStart>;

}  // namespace

NodeCore::NodeCore(NodeConfig config) : config_(config), state_(Waiting{}) {}

std::vector<NodeAction> NodeCore::step(const NodeEvent& event) {
  Out out;
  if (is_stale(event) || std::holds_alternative<Ended>(state_)) return out;
  std::visit([&](const auto& e) { on(out, e); }, event);
  return out;
}

bool NodeCore::leaves_in_its_own_time() const {
  const auto* stopping = std::get_if<Stopping>(&state_);
  return stopping != nullptr && stopping->has_only_notice;
}

bool NodeCore::has_left() const {
  const auto* stopping = std::get_if<Stopping>(&state_);
  return stopping != nullptr && stopping->is_own_outcome;
}

bool NodeCore::is_stale(const NodeEvent& event) const {
  return std::visit(
      [this](const auto& e) {
        using Event = std::decay_t<decltype(e)>;
        if constexpr (kBeginsARound<Event>) {
          return last_round_ && e.round <= last_round_->round;
        } else if constexpr (requires { e.round; }) {
          return e.round != round_;
        } else {
          return false;
        }
      },
      event);
}

// ---- what the leader says

void NodeCore::on(Out& out, const rdzv::Refused& refused) {
  if (!std::holds_alternative<Waiting>(state_)) return;
  auto outcome = own_outcome(rdzv::JobOutcome::Kind::kCannotRun, kExitUsage);
  outcome.sentence = refused.sentence;
  finish(out, std::move(outcome));
}

void NodeCore::on(Out& out, const rdzv::OpenStore& open) {
  if (!std::holds_alternative<Waiting>(state_)) return;
  close_unused_store(out, open.round);
  round_ = open.round;
  out.push_back(OpenRoundStore{open.round});
}

void NodeCore::on(Out& out, const StoreResult& result) {
  if (!std::holds_alternative<Waiting>(state_)) return;
  if (result.error.empty()) {
    out.push_back(TellLeader{rdzv::StoreOpened{result.round, result.port}});
  } else {
    out.push_back(TellLeader{rdzv::StoreNotOpened{result.round, result.error}});
  }
}

void NodeCore::on(Out& out, const rdzv::RoundStart& start) {
  auto* waiting = std::get_if<Waiting>(&state_);
  if (waiting == nullptr) return;
  if (waiting->store != start.round) close_unused_store(out, {});
  round_ = start.round;
  last_round_ = {start.round, start.node_count, start.restarts};
  state_ = Running{std::vector<bool>(static_cast<std::size_t>(config_.local_world_size), false)};
  out.push_back(StartWorkers{start});
}

void NodeCore::on(Out& out, const rdzv::RoundStop& stop) {
  if (std::holds_alternative<Waiting>(state_)) {
    out.push_back(TellLeader{rdzv::RoundStopped{stop.round, {}}});
    return;
  }
  // A stop that this node's own notice brought about leaves the workers their time.
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || !stopping->has_only_notice) {
    const bool is_failure = stop.why == rdzv::RoundStop::Why::kFailure;
    stopping = stop_workers(
        out, SIGTERM, is_failure ? ArmTimer::Limit::kGraceAfterFailure : ArmTimer::Limit::kGrace);
  }
  stopping->leader_asked = true;
  tell_of_preemption(out, *stopping);
  go_on(out);
}

void NodeCore::on(Out& out, const rdzv::DeclaredLost&) { join_anew(out); }

void NodeCore::on(Out& out, const LeaderReplaced&) { join_anew(out); }

void NodeCore::join_anew(Out& out) {
  if (std::holds_alternative<Waiting>(state_)) {
    close_unused_store(out, {});
    return rejoin(out);
  }
  Stopping* stopping = stop_workers(out, SIGTERM, ArmTimer::Limit::kGraceAfterFailure);
  tell_of_preemption(out, *stopping);
  stopping->is_disowned = true;
  go_on(out);
}

void NodeCore::rejoin(Out& out) const { out.push_back(Rejoin{last_round_}); }

void NodeCore::on(Out& out, const rdzv::JobEnd& end) {
  out.push_back(TellLeader{rdzv::Goodbye{}});
  if (std::holds_alternative<Waiting>(state_)) return finish(out, end.outcome);
  if (Stopping* stopping = stop_workers(out, SIGTERM)) {
    stopping->outcome = end.outcome;
    stopping->is_own_outcome = false;
  }
  go_on(out);
}

void NodeCore::on(Out& out, const LeaderLost& lost) {
  auto outcome = own_outcome(rdzv::JobOutcome::Kind::kCannotRun,
                             lost.was_reached ? kExitLeaderLost : kExitRendezvousTimeout);
  outcome.sentence = lost.sentence;
  if (std::holds_alternative<Waiting>(state_)) return finish(out, std::move(outcome));
  auto* stopping = std::get_if<Stopping>(&state_);
  // Preempted, too, and sooner done: the workers here still have their time.
  if (stopping != nullptr && stopping->has_only_notice) return tell_of_preemption(out, *stopping);
  stop_workers(out, SIGTERM);
  finish_by_ourselves(out, std::move(outcome));
}

// ---- what happens here

void NodeCore::on(Out& out, const WorkerEnded& ended) {
  const auto index = static_cast<std::size_t>(ended.local_rank);
  if (auto* running = std::get_if<Running>(&state_)) {
    running->has_ended[index] = true;
    if (ended.failure) {
      out.push_back(TellLeader{rdzv::WorkerFailed{ended.round, *ended.failure}});
    } else if (all(running->has_ended)) {
      out.push_back(TellLeader{rdzv::WorkersDone{ended.round}});
    } else if (!std::exchange(running->are_some_done, true)) {
      out.push_back(TellLeader{rdzv::SomeWorkersDone{ended.round}});
    }
  } else if (auto* stopping = std::get_if<Stopping>(&state_)) {
    stopping->has_ended[index] = true;
    if (ended.failure) {
      stopping->failures.push_back(*ended.failure);
      stopping->failures.back().was_told_to_stop = true;
    }
    go_on(out);
  }
}

void NodeCore::on(Out& out, const StopSignal& stop) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping != nullptr && stopping->is_leaving) {
    kill_workers(out, *stopping);
    return;
  }
  // What came first is why this node leaves.
  const bool is_preempted = stopping != nullptr && stopping->untold;
  const rdzv::NodeLeaving leaving = is_preempted ? *std::exchange(stopping->untold, std::nullopt)
                                                 : rdzv::NodeLeaving{stop.signal};
  // Before the workers are signalled, so that the leader takes what follows for no failure.
  out.push_back(TellLeader{leaving});
  stopping = stop_workers(out, stop.signal);
  if (stopping != nullptr) stopping->is_leaving = true;
  leave(out, leaving);
}

// No timer: the scheduler that gave notice will also say when its patience ends.
void NodeCore::on(Out& out, const PreemptSignal& preempt) {
  const rdzv::NodeLeaving leaving{preempt.signal, /*is_preemption=*/true};
  const bool was_running = std::holds_alternative<Running>(state_);
  Stopping* stopping = begin_stopping();
  if (stopping != nullptr && std::exchange(stopping->is_preempted, true)) return;
  if (!was_running) {
    out.push_back(TellLeader{leaving});
    return leave(out, leaving);
  }
  stopping->has_only_notice = true;
  stopping->untold = leaving;
  for (std::size_t i = 0; i < stopping->has_ended.size(); ++i) {
    if (stopping->has_ended[i]) continue;
    out.push_back(AskToLeave{static_cast<int>(i), preempt.signal});
  }
  go_on(out);
}

void NodeCore::tell_of_preemption(Out& out, Stopping& stopping) {
  if (!stopping.untold) return;
  const rdzv::NodeLeaving leaving = *std::exchange(stopping.untold, std::nullopt);
  out.push_back(TellLeader{leaving});
  leave(out, leaving);
}

// The leader goes on without a node that leaves, unless it is the leader's own.
void NodeCore::leave(Out& out, const rdzv::NodeLeaving& leaving) {
  if (config_.hosts_leader) return go_on(out);
  auto outcome = own_outcome(rdzv::JobOutcome::Kind::kStopped,
                             leaving.is_preemption ? kExitPreempted : 128 + leaving.signal);
  outcome.stop_signal = leaving.signal;
  if (std::holds_alternative<Waiting>(state_)) return finish(out, std::move(outcome));
  finish_by_ourselves(out, std::move(outcome));
}

void NodeCore::on(Out& out, const TimerExpired&) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || all(stopping->has_ended)) return;
  if (!stopping->was_killed) {
    kill_workers(out, *stopping);
    return;
  }
  std::string ranks;
  for (std::size_t i = 0; i < stopping->has_ended.size(); ++i) {
    if (stopping->has_ended[i]) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(i);
    stopping->has_ended[i] = true;
  }
  const std::string sentence =
      "local rank " + ranks + " did not end even after SIGKILL: it hangs inside the kernel, and " +
      "only what it waits for (a device, a network file system) can free it";
  if (stopping->is_disowned || stopping->is_own_outcome) {
    stopping->outcome = own_outcome(rdzv::JobOutcome::Kind::kCannotRun, kExitWorkerStuck);
    stopping->outcome->sentence = sentence;
    stopping->is_own_outcome = true;
  } else {
    out.push_back(TellLeader{rdzv::NodeStuck{sentence}});
  }
  go_on(out);
}

void NodeCore::on(Out& out, const RoundClosed&) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr) return;
  stopping->is_closed = true;
  go_on(out);
}

// From Running to Stopping; otherwise the state stays. Returns it when it is Stopping.
NodeCore::Stopping* NodeCore::begin_stopping() {
  if (auto* running = std::get_if<Running>(&state_)) {
    Stopping stopping;
    stopping.has_ended = std::move(running->has_ended);
    state_ = std::move(stopping);
  }
  return std::get_if<Stopping>(&state_);
}

// Signals the workers unless that was done before.
NodeCore::Stopping* NodeCore::stop_workers(Out& out, int signal, ArmTimer::Limit grace) {
  const bool was_running = std::holds_alternative<Running>(state_);
  Stopping* stopping = begin_stopping();
  if (stopping == nullptr || (!was_running && !stopping->has_only_notice)) return stopping;
  stopping->has_only_notice = false;
  signal_live_workers(out, stopping->has_ended, signal);
  if (!all(stopping->has_ended)) {
    const bool is_short = grace == ArmTimer::Limit::kGraceAfterFailure;
    out.push_back(ArmTimer{
        round_, is_short ? config_.failure_shutdown_timeout : config_.shutdown_timeout, grace});
  }
  return stopping;
}

void NodeCore::signal_live_workers(Out& out, const std::vector<bool>& has_ended, int signal) {
  for (std::size_t i = 0; i < has_ended.size(); ++i) {
    if (has_ended[i]) continue;
    const int local_rank = static_cast<int>(i);
    out.push_back(SignalWorker{local_rank, signal});
    // A stopped process does not act on the signal before it is continued.
    if (signal != SIGKILL) out.push_back(SignalWorker{local_rank, SIGCONT});
  }
}

void NodeCore::kill_workers(Out& out, Stopping& stopping) {
  if (stopping.was_killed) return;
  stopping.was_killed = true;
  signal_live_workers(out, stopping.has_ended, SIGKILL);
  out.push_back(ArmTimer{round_, config_.kill_timeout, ArmTimer::Limit::kKill});
}

// The next step of stopping that has become possible: close the round when all workers have ended,
// then end the job or answer the leader, whichever it asked for.
void NodeCore::go_on(Out& out) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || !all(stopping->has_ended)) return;
  if (stopping->untold) return tell_of_preemption(out, *stopping);
  if (!stopping->is_closing) {
    stopping->is_closing = true;
    out.push_back(CloseRound{round_});
  }
  if (!stopping->is_closed) return;
  if (stopping->outcome) {
    if (stopping->is_own_outcome) stopping->outcome->consequences = std::move(stopping->failures);
    finish(out, std::move(*stopping->outcome));
  } else if (stopping->is_disowned) {
    rejoin(out);
    state_ = Waiting{};
  } else if (stopping->leader_asked) {
    out.push_back(TellLeader{rdzv::RoundStopped{round_, std::move(stopping->failures)}});
    state_ = Waiting{};
  }
}

// ---- the end

rdzv::JobOutcome NodeCore::own_outcome(rdzv::JobOutcome::Kind kind, int exit_code) const {
  rdzv::JobOutcome outcome;
  outcome.kind = kind;
  outcome.exit_code = exit_code;
  outcome.restarts = last_round_ ? last_round_->restarts : 0;
  outcome.last_round = round_;
  return outcome;
}

// When the workers have ended; what the leader has said of the job's end goes before.
void NodeCore::finish_by_ourselves(Out& out, rdzv::JobOutcome outcome) {
  auto& stopping = std::get<Stopping>(state_);
  if (!stopping.outcome) {
    stopping.outcome = std::move(outcome);
    stopping.is_own_outcome = true;
  }
  go_on(out);
}

void NodeCore::finish(Out& out, rdzv::JobOutcome outcome) {
  out.push_back(Finish{std::move(outcome)});
  state_ = Ended{};
}

void NodeCore::close_unused_store(Out& out, std::optional<Round> next_store) {
  auto& waiting = std::get<Waiting>(state_);
  if (waiting.store) out.push_back(CloseStore{*waiting.store});
  waiting.store = next_store;
}

}  // namespace ddprun::agent
