#include "agent/core/node_core.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr milliseconds kShortGrace = 1s;
// An abort of a communicator takes a second, and a rank that is killed while it moves data between GPUs can leave the
// connection between them unusable until the node is restarted.
constexpr milliseconds kShortGraceOfGpu = 5s;
constexpr milliseconds kLookAgain = 100ms;  // at workers that may enter a collective
constexpr milliseconds kStacks = 5s;        // SIGKILL is delayed for the stacks by at most this
constexpr milliseconds kFollowers = 2s;     // clients may read slowly, and files may not answer
constexpr milliseconds kProgress = 2s;
constexpr milliseconds kReport = 2500ms;  // its copies may be on a file server
constexpr milliseconds kEvents = 5s;      // a reader of events may have stopped reading
constexpr milliseconds kNoHurry = 24h;
constexpr milliseconds kHurriedStep = 500ms;

// How long to wait until the workers' output and the report are written.
milliseconds patience_of(rdzv::JobOutcome::Kind kind) {
  // A user who stops a job does not want to wait for a slow reader.
  if (kind == rdzv::JobOutcome::Kind::kStopped) return kHurriedStep;
  // A worker that hangs in the kernel never closes its pipe.
  return kind == rdzv::JobOutcome::Kind::kCannotRun ? 5s : kNoHurry;
}

bool all(const std::vector<bool>& flags) {
  return std::all_of(flags.begin(), flags.end(), [](bool flag) { return flag; });
}

// Most events must name the current round; those that open or start a round name a later one.
template <typename Event>
constexpr bool kBeginsARound =
    std::is_same_v<Event, rdzv::OpenStore> || std::is_same_v<Event, rdzv::RoundStart>;

bool concerns_the_end(const NodeEvent& event) {
  return std::holds_alternative<StepTaken>(event) || std::holds_alternative<TimerExpired>(event) ||
         std::holds_alternative<StopSignal>(event) || std::holds_alternative<PreemptSignal>(event);
}

}  // namespace

NodeCore::NodeCore(NodeConfig config) : config_(config), state_(Waiting{}) {}

std::vector<NodeAction> NodeCore::step(const NodeEvent& event) {
  Out out;
  if (is_stale(event) || std::holds_alternative<Ended>(state_)) return out;
  if (is_over() && !concerns_the_end(event)) return out;
  std::visit([&](const auto& e) { on(out, e); }, event);
  return out;
}

bool NodeCore::is_stale(const NodeEvent& event) const {
  return std::visit(
      [this](const auto& e) {
        using Event = std::decay_t<decltype(e)>;
        if constexpr (kBeginsARound<Event>) {
          return last_round_ && e.round <= last_round_->round;
        } else if constexpr (std::is_same_v<Event, TimerExpired>) {
          return !armed_ || armed_->timer != e.timer;
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
  const auto count = static_cast<std::size_t>(config_.local_world_size);
  Running running;
  running.first_rank = start.rank_offset;
  running.has_started.resize(count);
  running.has_ended.resize(count);
  running.generations.resize(count);
  running.cannot_regroup.resize(count);
  state_ = std::move(running);
  out.push_back(StartWorkers{start});
}

void NodeCore::on(Out& out, const rdzv::RoundStop& stop) {
  if (std::holds_alternative<Waiting>(state_)) {
    out.push_back(TellLeader{rdzv::RoundStopped{stop.round, {}}});
    return;
  }
  // If this node was preempted, its workers keep leaving without a deadline.
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || !stopping->has_only_notice) {
    const bool is_failure = stop.why == rdzv::RoundStop::Why::kFailure;
    stopping = stop_workers(out, SIGTERM, is_failure ? Limit::kGraceAfterFailure : Limit::kGrace);
  }
  stopping->leader_asked = true;
  tell_of_preemption(out, *stopping);
  go_on(out);
}

void NodeCore::on(Out& out, const LeaderFound& found) {
  if (!is_waiting()) return;
  config_.hosts_leader = found.is_hosted;
  out.push_back(Join{});
}

void NodeCore::join_anew(Out& out) {
  if (std::holds_alternative<Waiting>(state_)) {
    close_unused_store(out, {});
    out.push_back(Join{last_round_});
    return;
  }
  Stopping* stopping = stop_workers(out, SIGTERM, Limit::kGraceAfterFailure);
  tell_of_preemption(out, *stopping);
  stopping->is_disowned = true;
  go_on(out);
}

void NodeCore::on(Out& out, const rdzv::JobEnd& end) {
  out.push_back(TellLeader{rdzv::Goodbye{}});
  if (std::holds_alternative<Waiting>(state_)) return finish(out, end.outcome);
  if (Stopping* stopping = stop_workers(out, SIGTERM)) {
    stopping->outcome = end.outcome;
    stopping->is_own_outcome = false;
  }
  go_on(out);
}

void NodeCore::on(Out& out, const rdzv::GroupBroken& broken) {
  if (is_waiting()) return;
  out.push_back(TellGroupBroken{broken.round, broken.rank});
  if (Workers* workers = taking_part()) workers->undecided.clear();
}

void NodeCore::on(Out& out, const rdzv::ReplaceWorker& replace) {
  if (last_round_) last_round_->restarts = std::max(last_round_->restarts, replace.restarts);
  Workers* workers = taking_part();
  if (workers == nullptr || replace.generation <= workers->generation) return;
  workers->generation = replace.generation;
  Replace action{replace.round,   replace.generation, replace.rank,        std::nullopt,
                 replace.failure, replace.restarts,   replace.max_restarts};
  const auto dead = workers->undecided.extract(replace.rank);
  if (dead) {
    action.local_rank = dead.mapped();
    workers->has_ended[static_cast<std::size_t>(dead.mapped())] = false;
    workers->cannot_regroup[static_cast<std::size_t>(dead.mapped())] = false;
  }
  out.push_back(action);
  const auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping != nullptr && dead) {
    out.push_back(AskToLeave{dead.mapped(), stopping->untold->signal});
  }
  tell_who_cannot_regroup(out, *workers);
}

void NodeCore::on(Out& out, const LeaderLost& lost) {
  auto outcome = own_outcome(rdzv::JobOutcome::Kind::kCannotRun,
                             lost.was_reached ? kExitLeaderLost : kExitRendezvousTimeout);
  outcome.sentence = lost.sentence;
  if (std::holds_alternative<Waiting>(state_)) return finish(out, std::move(outcome));
  auto* stopping = std::get_if<Stopping>(&state_);
  // This node was preempted, and its workers have their own time, so it no longer needs the leader.
  if (stopping != nullptr && stopping->has_only_notice) return tell_of_preemption(out, *stopping);
  stop_workers(out, SIGTERM);
  finish_by_ourselves(out, std::move(outcome));
}

// ---- what happens here

void NodeCore::on(Out& out, const CannotRun& cannot) {
  if (!is_waiting()) return;
  auto outcome = own_outcome(rdzv::JobOutcome::Kind::kCannotRun, cannot.exit_code);
  outcome.sentence = cannot.sentence;
  finish(out, std::move(outcome));
}

void NodeCore::on(Out& out, const WorkerEnded& ended) {
  const auto index = static_cast<std::size_t>(ended.local_rank);
  if (auto* running = std::get_if<Running>(&state_)) {
    running->has_ended[index] = true;
    if (!ended.failure && !running->has_failed) {
      running->done.push_back(running->first_rank + ended.local_rank);
    }
    std::erase(running->hung, ended.local_rank);
    if (ended.failure && ended.replaceable) {
      const auto& [committed, generation, has_standby] = *ended.replaceable;
      running->undecided[ended.failure->rank] = ended.local_rank;
      out.push_back(TellLeader{rdzv::WorkerReplaceable{ended.round, *ended.failure, committed,
                                                       generation, has_standby}});
    } else if (ended.failure) {
      if (!all(running->has_ended)) {
        out.push_back(TellGroupBroken{ended.round, ended.failure->rank});
      }
      running->has_failed = true;
      out.push_back(TellLeader{rdzv::WorkerFailed{ended.round, *ended.failure}});
    } else if (all(running->has_ended) && running->undecided.empty()) {
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

void NodeCore::on(Out&, const WorkerStarted& started) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  running->has_started.at(static_cast<std::size_t>(started.local_rank)) = true;
}

void NodeCore::on(Out& out, const StartIsLate& late) {
  const auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  ShowStarting action{late.round, {}};
  for (std::size_t i = 0; i < running->has_started.size(); ++i) {
    if (running->has_started[i] || running->has_ended[i]) continue;
    action.local_ranks.push_back(static_cast<int>(i));
  }
  if (!action.local_ranks.empty()) out.push_back(std::move(action));
}

void NodeCore::on(Out& out, const WorkersCanRecover& can) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr || std::exchange(running->can_recover, true)) return;
  out.push_back(TellLeader{rdzv::WorkersRecover{can.round}});
}

void NodeCore::on(Out& out, const WorkerRegrouped& regrouped) {
  Workers* workers = taking_part();
  if (workers == nullptr || regrouped.generation != workers->generation) return;
  auto& its = workers->generations[static_cast<std::size_t>(regrouped.local_rank)];
  if (std::exchange(its, regrouped.generation) == regrouped.generation) return;
  const bool have_all = std::ranges::all_of(
      workers->generations, [&](auto each) { return each == regrouped.generation; });
  if (!have_all || !workers->undecided.empty()) return;
  out.push_back(TellLeader{rdzv::Regrouped{regrouped.round, regrouped.generation}});
}

void NodeCore::on(Out& out, const WorkerCannotRegroup& refusal) {
  Workers* workers = taking_part();
  if (workers == nullptr) return;
  workers->cannot_regroup[static_cast<std::size_t>(refusal.local_rank)] = true;
  tell_who_cannot_regroup(out, *workers);
}

void NodeCore::tell_who_cannot_regroup(Out& out, const Workers& workers) const {
  for (std::size_t i = 0; i < workers.has_ended.size(); ++i) {
    if (!workers.cannot_regroup[i] || !workers.is_awaited(i)) continue;
    out.push_back(TellLeader{rdzv::CannotRegroup{round_, workers.generation}});
    return;
  }
}

void NodeCore::on(Out& out, const RegroupIsLate& late) {
  const auto* running = std::get_if<Running>(&state_);
  if (running == nullptr || late.generation != running->generation) return;
  ShowLate action{late.round, {}};
  for (std::size_t i = 0; i < running->has_ended.size(); ++i) {
    if (running->is_awaited(i)) action.local_ranks.push_back(static_cast<int>(i));
  }
  if (!action.local_ranks.empty()) out.push_back(std::move(action));
}

void NodeCore::on(Out& out, const WorkerHung& hung) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr || running->has_ended.at(static_cast<std::size_t>(hung.local_rank)))
    return;
  running->hung.push_back(hung.local_rank);
  out.push_back(SignalWorker{hung.local_rank, SIGKILL});
  arm(out, Limit::kKillOfHung, config_.kill_timeout);
}

void NodeCore::on(Out& out, const StopSignal& stop) {
  if (is_over()) return hurry(out);
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping != nullptr && stopping->is_leaving) {
    kill_workers(out, *stopping);
    return;
  }
  // A preemption that came before the signal is the reason why this node leaves.
  const bool is_preempted = stopping != nullptr && stopping->untold;
  const rdzv::NodeLeaving leaving = is_preempted ? *std::exchange(stopping->untold, std::nullopt)
                                                 : rdzv::NodeLeaving{stop.signal};
  // Before the workers are signalled, so that the leader does not count their ends as failures.
  out.push_back(TellLeader{leaving});
  stopping = stop_workers(out, stop.signal);
  if (stopping != nullptr) stopping->is_leaving = true;
  leave(out, leaving);
}

// No timer: the scheduler that sent the notice also sends a stop signal when the time is over.
void NodeCore::on(Out& out, const PreemptSignal& preempt) {
  if (is_over()) return hurry(out);
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
  tell_of_undecided(out, stopping);
  const rdzv::NodeLeaving leaving = *std::exchange(stopping.untold, std::nullopt);
  out.push_back(TellLeader{leaving});
  leave(out, leaving);
}

// The job goes on without a node that leaves, unless that node hosts the leader.
void NodeCore::leave(Out& out, const rdzv::NodeLeaving& leaving) {
  if (leads()) return go_on(out);
  auto outcome = own_outcome(rdzv::JobOutcome::Kind::kStopped,
                             leaving.is_preemption ? kExitPreempted : 128 + leaving.signal);
  outcome.stop_signal = leaving.signal;
  if (std::holds_alternative<Waiting>(state_)) return finish(out, std::move(outcome));
  finish_by_ourselves(out, std::move(outcome));
}

void NodeCore::on(Out& out, const TimerExpired&) {
  const Armed expired = *std::exchange(armed_, std::nullopt);
  if (expired.limit == Limit::kEndStep) return take_next_step(out);
  if (const auto* running = std::get_if<Running>(&state_)) {
    if (!running->hung.empty()) stop_workers(out, SIGTERM, Limit::kGraceAfterFailure);
    return;
  }
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || all(stopping->has_ended)) return;
  if (expired.limit == Limit::kStacks) {
    kill_workers(out, *stopping);
  } else if (expired.limit == Limit::kKill) {
    give_up_on_workers(out, *stopping);
  } else {
    const bool after_failure = expired.limit == Limit::kGraceAfterFailure;
    stopping->waited += expired.after;
    if (after_failure && !config_.failure_shutdown_timeout &&
        stopping->waited < config_.shutdown_timeout) {
      out.push_back(LookAtWorkers{round_, stopping->signal});
      return;
    }
    out.push_back(GraceOver{stopping->waited, after_failure});
    if (after_failure || expired.after == 0ms) return kill_workers(out, *stopping);
    out.push_back(TakeStacks{round_});
    arm(out, Limit::kStacks, kStacks);
  }
}

void NodeCore::on(Out& out, const WorkersSeen& seen) {
  auto* stopping = std::get_if<Stopping>(&state_);
  const bool was_asked = !armed_;  // from LookAtWorkers on, until the next timer is armed
  if (stopping == nullptr || !was_asked || all(stopping->has_ended)) return;
  std::vector<int> late;
  std::vector<int> saving;
  milliseconds next = kLookAgain;
  for (std::size_t i = 0; i < stopping->has_ended.size(); ++i) {
    const int local_rank = static_cast<int>(i);
    if (stopping->has_ended[i] || std::ranges::count(stopping->killed, local_rank) > 0) continue;
    const WorkerSeen& worker = seen.workers.at(i);
    const milliseconds left = time_left(*stopping, worker);
    if (left <= 0ms) {
      late.push_back(local_rank);
      continue;
    }
    next = std::min(next, left);
    if (worker.handles_stop && worker.has_record && !worker.in_call) saving.push_back(local_rank);
  }
  if (!late.empty()) out.push_back(GraceOver{stopping->waited, /*after_failure=*/true});
  for (const int local_rank : late) out.push_back(SignalWorker{local_rank, SIGKILL});
  stopping->killed.insert(stopping->killed.end(), late.begin(), late.end());
  const auto live = std::ranges::count(stopping->has_ended, false);
  const auto killed = std::ranges::count_if(stopping->killed, [&](int local_rank) {
    return !stopping->has_ended[static_cast<std::size_t>(local_rank)];
  });
  if (killed == live) {
    stopping->was_killed = true;
    return arm(out, Limit::kKill, config_.kill_timeout);
  }
  if (!saving.empty() && !std::exchange(stopping->was_saving_said, true)) {
    out.push_back(WaitForSaving{std::move(saving), config_.shutdown_timeout - stopping->waited});
  }
  arm(out, Limit::kGraceAfterFailure, next);
}

milliseconds NodeCore::short_grace(bool has_gpu) const {
  return config_.failure_shutdown_timeout.value_or(
      std::min(config_.shutdown_timeout, has_gpu ? kShortGraceOfGpu : kShortGrace));
}

// Until its SIGKILL (12).
milliseconds NodeCore::time_left(const Stopping& stopping, const WorkerSeen& worker) const {
  const milliseconds until_last = config_.shutdown_timeout - stopping.waited;
  if (!worker.handles_stop || !worker.has_record) {
    return std::min(until_last, short_grace(worker.has_gpu) - stopping.waited);
  }
  if (!worker.in_call) return until_last;
  // A collective that it entered before the stop counts from the stop.
  return std::min(until_last,
                  short_grace(worker.has_gpu) - std::min(*worker.in_call, stopping.waited));
}

void NodeCore::on(Out& out, const StacksTaken&) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping != nullptr) kill_workers(out, *stopping);
}

void NodeCore::give_up_on_workers(Out& out, Stopping& stopping) {
  std::vector<std::size_t> ranks;
  for (std::size_t i = 0; i < stopping.has_ended.size(); ++i) {
    if (stopping.has_ended[i]) continue;
    ranks.push_back(i);
    stopping.has_ended[i] = true;
  }
  const std::string sentence =
      "local rank " + joined(ranks) +
      " did not end even after SIGKILL: it hangs inside the kernel, and " +
      "only what it waits for (a device, a network file system) can free it";
  if (stopping.is_disowned || stopping.is_own_outcome) {
    stopping.outcome = own_outcome(rdzv::JobOutcome::Kind::kCannotRun, kExitWorkerStuck);
    stopping.outcome->sentence = sentence;
    stopping.is_own_outcome = true;
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

// The workers, as long as this node takes part in replacements (8, 9).
NodeCore::Workers* NodeCore::taking_part() {
  if (auto* running = std::get_if<Running>(&state_)) {
    return running->has_failed ? nullptr : running;
  }
  auto* stopping = std::get_if<Stopping>(&state_);
  return stopping != nullptr && stopping->untold ? stopping : nullptr;
}

// They are not replaced any more.
void NodeCore::tell_of_undecided(Out& out, Workers& workers) {
  for (const auto& [rank, local_rank] : std::exchange(workers.undecided, {})) {
    if (!all(workers.has_ended)) out.push_back(TellGroupBroken{round_, rank});
  }
}

// From Running to Stopping; otherwise the state stays. Returns it when it is Stopping.
NodeCore::Stopping* NodeCore::begin_stopping() {
  if (auto* running = std::get_if<Running>(&state_)) {
    Stopping stopping;
    static_cast<Workers&>(stopping) = std::move(*running);
    state_ = std::move(stopping);
  }
  return std::get_if<Stopping>(&state_);
}

// Signals the workers, unless they were signalled before, and begins the grace period.
NodeCore::Stopping* NodeCore::stop_workers(Out& out, int signal, Limit grace) {
  const bool was_running = std::holds_alternative<Running>(state_);
  Stopping* stopping = begin_stopping();
  if (stopping != nullptr) tell_of_undecided(out, *stopping);
  if (stopping == nullptr || (!was_running && !stopping->has_only_notice)) return stopping;
  stopping->has_only_notice = false;
  stopping->signal = signal;
  signal_live_workers(out, stopping->has_ended, signal);
  if (!all(stopping->has_ended)) {
    const bool is_short = grace == Limit::kGraceAfterFailure;
    arm(out, grace, is_short ? short_grace(/*has_gpu=*/false) : config_.shutdown_timeout);
  }
  return stopping;
}

void NodeCore::signal_live_workers(Out& out, const std::vector<bool>& has_ended, int signal) {
  for (std::size_t i = 0; i < has_ended.size(); ++i) {
    if (has_ended[i]) continue;
    const int local_rank = static_cast<int>(i);
    out.push_back(SignalWorker{local_rank, signal});
    // A stopped process handles the signal only after it is continued.
    if (signal != SIGKILL) out.push_back(SignalWorker{local_rank, SIGCONT});
  }
}

void NodeCore::kill_workers(Out& out, Stopping& stopping) {
  if (stopping.was_killed) return;
  stopping.was_killed = true;
  signal_live_workers(out, stopping.has_ended, SIGKILL);
  arm(out, Limit::kKill, config_.kill_timeout);
}

// Takes the next step of stopping if all workers have ended: close the round; after that finish,
// join again or answer the leader.
void NodeCore::go_on(Out& out) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || !all(stopping->has_ended)) return;
  if (stopping->untold) return tell_of_preemption(out, *stopping);
  if (!stopping->is_closing) {
    stopping->is_closing = true;
    armed_.reset();
    const bool has_succeeded =
        stopping->outcome && stopping->outcome->kind == rdzv::JobOutcome::Kind::kSucceeded;
    out.push_back(CloseRound{round_, has_succeeded && !config_.kills_orphans});
  }
  if (!stopping->is_closed) return;
  if (stopping->outcome) {
    if (stopping->is_own_outcome) stopping->outcome->consequences = std::move(stopping->failures);
    finish(out, std::move(*stopping->outcome));
  } else if (stopping->is_disowned) {
    out.push_back(Join{last_round_});
    state_ = Waiting{};
  } else if (stopping->leader_asked) {
    out.push_back(TellLeader{
        rdzv::RoundStopped{round_, std::move(stopping->failures), std::move(stopping->done)}});
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

// Takes effect when the workers have ended. A JobEnd that came before has precedence.
void NodeCore::finish_by_ourselves(Out& out, rdzv::JobOutcome outcome) {
  auto& stopping = std::get<Stopping>(state_);
  if (!stopping.outcome) {
    stopping.outcome = std::move(outcome);
    stopping.is_own_outcome = true;
  }
  go_on(out);
}

void NodeCore::finish(Out& out, rdzv::JobOutcome outcome) {
  state_ = Ending{.kind = outcome.kind};
  out.push_back(Finish{std::move(outcome)});
  take_step(out, EndStep::kLogs);
}

void NodeCore::take_step(Out& out, EndStep step) {
  auto& ending = std::get<Ending>(state_);
  ending.step = step;
  out.push_back(TakeStep{step});
  arm(out, Limit::kEndStep, limit_of(ending));
}

void NodeCore::take_next_step(Out& out) {
  const Ending ending = std::get<Ending>(state_);
  if (ending.step == EndStep::kLeader && ending.is_signalled) {
    return take_step(out, EndStep::kOutput);
  }
  if (ending.step != EndStep::kConsole) {
    return take_step(out, static_cast<EndStep>(static_cast<int>(ending.step) + 1));
  }
  armed_.reset();
  state_ = Ended{};
  out.push_back(Exit{});
}

void NodeCore::on(Out& out, const StepTaken& taken) {
  const auto* ending = std::get_if<Ending>(&state_);
  if (ending != nullptr && ending->step == taken.step) take_next_step(out);
}

// The first signal skips the steps that only observers need. It does not skip kLeader, because the
// exit codes of other nodes depend on it. The next signals end that step and the wait for the
// workers' output. The report and the steps after it get their time, however many signals come.
void NodeCore::hurry(Out& out) {
  auto& ending = std::get<Ending>(state_);
  const bool was_signalled = std::exchange(ending.is_signalled, true);
  if (ending.step < EndStep::kLeader) return take_step(out, EndStep::kLeader);
  if (ending.step == EndStep::kLeader && !was_signalled) return;
  if (ending.step < EndStep::kOutput) return take_step(out, EndStep::kOutput);
  const bool was_hurried = std::exchange(ending.is_hurried, true);
  if (ending.step == EndStep::kOutput) return take_next_step(out);
  if (!was_hurried) arm(out, Limit::kEndStep, kHurriedStep);
}

milliseconds NodeCore::limit_of(const Ending& ending) const {
  if (ending.is_hurried) return kHurriedStep;
  const milliseconds patience = patience_of(ending.kind);
  switch (ending.step) {
    case EndStep::kLogs:
    case EndStep::kFollowers:
      return kFollowers;
    case EndStep::kLeader:  // one here; for one elsewhere LeaderPort has a shorter limit
      return config_.leader_leave_timeout;
    case EndStep::kProgress:
      return kProgress;
    case EndStep::kReport:
      return kReport;
    case EndStep::kEvents:
      return std::min(patience, kEvents);
    case EndStep::kOutput:
    case EndStep::kConsole:
      break;
  }
  return patience;
}

void NodeCore::arm(Out& out, Limit limit, milliseconds after) {
  armed_ = Armed{TimerId{++timers_}, limit, after};
  out.push_back(ArmTimer{armed_->timer, after});
}

void NodeCore::close_unused_store(Out& out, std::optional<Round> next_store) {
  auto& waiting = std::get<Waiting>(state_);
  if (waiting.store) out.push_back(CloseStore{*waiting.store});
  waiting.store = next_store;
}

}  // namespace ddprun::agent
