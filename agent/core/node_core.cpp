#include "agent/core/node_core.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/must_hold.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/round/step_agreement.h"

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

// The nodes have so long to agree upon the step after which workers are stopped; the leader awaits each of them for 1 s.
constexpr milliseconds kAgreement = 2s;
// So many steps the workers have to come there. Shorter ones count as kLeastStep: a rank may wait for a processor.
constexpr int kStepsAhead = 3;
constexpr milliseconds kLeastStep = 30ms;

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
  why_ = {};
  if (const char* why = why_stale(event)) {
    because(why);
    return out;
  }
  std::visit([&](const auto& e) { on(out, e); }, event);
  check();
  return out;
}

// Why the event is dropped; null: it is not.
const char* NodeCore::why_stale(const NodeEvent& event) const {
  if (has_ended() || (is_over() && !concerns_the_end(event))) return "the job is over here";
  return std::visit(
      [this](const auto& e) -> const char* {
        using Event = std::decay_t<decltype(e)>;
        if constexpr (kBeginsARound<Event>) {
          return last_round_ && e.round <= last_round_->round
                     ? "its workers have been in that round"
                     : nullptr;
        } else if constexpr (std::is_same_v<Event, TimerExpired>) {
          return armed_ != e.timer ? "that time limit counts no more" : nullptr;
        } else if constexpr (requires { e.round; }) {
          return e.round != round_ ? "it is about another round" : nullptr;
        } else {
          return nullptr;
        }
      },
      event);
}

// What no order of events may lead to.
void NodeCore::check() const {
  bool needs_timer = std::holds_alternative<Ending>(state_);
  bool may_have_timer = needs_timer || is_running();
  if (const auto* stopping = std::get_if<Stopping>(&state_)) {
    must_hold(stopping->is_closing() == stopping->have_all_ended(),
              "a round is closed when all workers have ended, and not before");
    const auto* asked = std::get_if<Asked>(&stopping->stage);
    must_hold(
        asked == nullptr || stopping->was_told || armed_ || asked->is_looked_at || asked->is_saving,
        "only workers that were told of a preemption have no time limit");
    const auto* grace = std::get_if<Grace>(&stopping->stage);
    needs_timer = stopping->is<Parking>() || stopping->is<Stacks>() || stopping->is<Killed>() ||
                  (grace && grace->limit);
    may_have_timer = needs_timer || stopping->is<Asked>();
  }
  must_hold(!needs_timer || armed_, "what is awaited has a time limit");
  must_hold(may_have_timer || !armed_, "no time limit runs where nothing is awaited");
}

bool NodeCore::Workers::have_all_ended() const {
  return std::ranges::all_of(has_ended, [](bool flag) { return flag; });
}

std::vector<int> NodeCore::Workers::live() const {
  std::vector<int> local_ranks;
  for (std::size_t i = 0; i < has_ended.size(); ++i) {
    if (!has_ended[i]) local_ranks.push_back(static_cast<int>(i));
  }
  return local_ranks;
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
  running.regrouping = Regrouping(count);
  state_ = std::move(running);
  out.push_back(StartWorkers{start});
}

void NodeCore::on(Out& out, const rdzv::RoundStop& stop) {
  if (std::holds_alternative<Waiting>(state_)) {
    because("nothing of that round is left here");
    out.push_back(TellLeader{rdzv::RoundStopped{stop.round, {}}});
    return;
  }
  const bool after_failure = stop.why == rdzv::RoundStop::Why::kFailure;
  const std::optional<StopAhead> ahead = stop_ahead();
  if (leaves_in_its_own_time() && !ahead) {
    because("the workers were told of a preemption, and have their own time");
    let_leave(out, after_failure);
  } else if (stop.after_step && is_running() && !after_failure) {
    because("all workers of the round are stopped after the same step");
    park_workers(out, *stop.after_step);
  } else {
    stop_workers(out, SIGTERM, after_failure);
  }
  auto& stopping = std::get<Stopping>(state_);
  stopping.follow_with(AnswerStop{});
  tell_of_preemption(out, stopping);
  if (ahead) tell_of_stop(out, stopping, ahead->signal);
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
  because("the leader goes on without this node, which joins it again");
  stop_without_leader(out, /*after_failure=*/true);
  std::get<Stopping>(state_).follow_with(JoinAnew{});
  go_on(out);
}

void NodeCore::on(Out& out, const rdzv::JobEnd& end) {
  out.push_back(TellLeader{rdzv::Goodbye{}});
  if (std::holds_alternative<Waiting>(state_)) return finish(out, end.outcome);
  stop_workers(out, SIGTERM)->follow_with(FinishJob{end.outcome});
  go_on(out);
}

void NodeCore::on(Out& out, const rdzv::GroupBroken& broken) {
  if (is_waiting()) return;
  out.push_back(TellGroupBroken{broken.round, broken.rank});
  if (Workers* workers = taking_part()) workers->regrouping.not_replaced();
}

void NodeCore::on(Out& out, const rdzv::ReplaceWorker& replace) {
  if (last_round_) last_round_->restarts = std::max(last_round_->restarts, replace.restarts);
  Workers* workers = taking_part();
  if (workers == nullptr) return because("this node takes part in no replacement any more");
  const auto begun = workers->regrouping.replace(replace.generation, replace.rank);
  if (!begun) return because("a later generation has begun");
  const std::optional<int> dead = *begun;
  if (dead) workers->has_ended[static_cast<std::size_t>(*dead)] = false;
  out.push_back(Replace{replace.round, replace.generation, replace.rank, dead, replace.failure,
                        replace.restarts, replace.max_restarts});
  if (const auto signal = workers->leaving.untold_signal(); signal && dead) {
    because("this node is preempted, so that the one that takes the place is asked to leave, too");
    out.push_back(AskToLeave{*dead, *signal});
  }
  tell_if_in_vain(out, *workers);
}

void NodeCore::on(Out& out, const rdzv::HoldSteps& hold) {
  if (taking_part() != nullptr) out.push_back(HoldWorkers{hold.round, hold.until});
}

void NodeCore::on(Out& out, const rdzv::LeaveAt& leave) {
  Running* running = taking_part();
  if (running == nullptr) return;
  running->is_agreed = true;
  out.push_back(LetWorkersLeave{leave.round, leave.boundary});
}

void NodeCore::on(Out& out, const WorkersHeld& held) {
  Running* running = taking_part();
  if (running == nullptr) return;
  if (held.step) running->step = *held.step;
  auto& ahead = running->stop_ahead;
  if (!ahead || ahead->is_told) {
    out.push_back(TellLeader{rdzv::StepsHeld{held.round, held.passed, held.until}});
  } else if (held.passed < 0) {
    because("the workers handle the signal themselves, or count no steps: they get it at once");
    stop_now(out);
  } else {
    because("the workers of all nodes are stopped after the same step");
    ahead->is_told = true;
    out.push_back(TellLeader{rdzv::StopWanted{held.round}});
    arm(out, std::min(kAgreement, config_.shutdown_timeout / rdzv::kPartForStep));
  }
}

void NodeCore::on(Out& out, const WorkersParked&) {
  const auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || !stopping->is<Parking>()) return;
  because("all workers have done the step");
  stop_workers(out, SIGTERM);
}

void NodeCore::on(Out& out, const LeaderLost& lost) {
  auto outcome = own_outcome(rdzv::JobOutcome::Kind::kCannotRun,
                             lost.was_reached ? kExitLeaderLost : kExitRendezvousTimeout);
  outcome.sentence = lost.sentence;
  if (std::holds_alternative<Waiting>(state_)) return finish(out, std::move(outcome));
  if (leaves_in_its_own_time()) {
    because(
        "the workers were told of a preemption: they have their own time, and need the leader no "
        "more");
  }
  stop_without_leader(out, /*after_failure=*/false);
  finish_alone(out, std::move(outcome));
}

// ---- what happens here

void NodeCore::on(Out& out, const CannotRun& cannot) {
  if (!is_waiting()) return;
  auto outcome = own_outcome(rdzv::JobOutcome::Kind::kCannotRun, cannot.exit_code);
  outcome.sentence = cannot.sentence;
  finish(out, std::move(outcome));
}

void NodeCore::on(Out& out, const WorkerEnded& ended) {
  if (is_waiting()) return;
  if (ended.failure && stop_ahead()) {
    std::get<Running>(state_).has_ended.at(static_cast<std::size_t>(ended.local_rank)) = true;
    stop_now(out);
    WorkerEnded told = ended;  // by the same sender, perhaps: some signal all processes of a job
    told.failure->was_told_to_stop = true;
    return on(out, told);
  }
  const auto index = static_cast<std::size_t>(ended.local_rank);
  auto* running = std::get_if<Running>(&state_);
  auto* stopping = std::get_if<Stopping>(&state_);
  Workers& workers = running != nullptr ? static_cast<Workers&>(*running) : *stopping;
  workers.has_ended.at(index) = true;
  std::erase(workers.hung, ended.local_rank);
  if (stopping != nullptr) {
    if (ended.failure) {
      because("the workers are stopped, so that its failure is a consequence");
      stopping->failures.push_back(*ended.failure);
      if (stopping->is<Parking>()) stop_workers(out, SIGTERM);  // the others may wait for it
    } else if (stopping->is<Parking>() && !ended.has_left) {
      stopping->done.push_back(stopping->first_rank + ended.local_rank);
    }
    auto* asked = std::get_if<Asked>(&stopping->stage);
    if (asked != nullptr && asked->is_saving && !stopping->have_all_ended()) {
      asked->is_looked_at = true;
      out.push_back(LookAtWorkers{round_, SIGTERM});
    }
    return go_on(out);
  }
  running->has_left = running->has_left || ended.has_left;
  if (running->has_left) return worker_has_left(out, ended);
  const bool is_done = !ended.failure && !running->has_failed;
  if (is_done) running->done.push_back(running->first_rank + ended.local_rank);
  if (ended.failure && ended.replaceable) {
    because("the leader decides whether it is replaced or all are restarted");
    const auto& [committed, generation, has_standby] = *ended.replaceable;
    running->regrouping.died(ended.failure->rank, ended.local_rank);
    out.push_back(TellLeader{
        rdzv::WorkerReplaceable{ended.round, *ended.failure, committed, generation, has_standby}});
  } else if (ended.failure) {
    because("the leader stops the round; until then the others must not wait for this worker");
    if (!running->have_all_ended()) {
      out.push_back(TellGroupBroken{ended.round, ended.failure->rank});
    }
    running->has_failed = true;
    out.push_back(TellLeader{rdzv::WorkerFailed{ended.round, *ended.failure}});
  } else if (running->have_all_ended() && !running->regrouping.has_dead()) {
    because("all workers of this node have ended with 0");
    out.push_back(TellLeader{rdzv::WorkersDone{ended.round}});
  } else if (is_done && running->done.size() == 1) {
    because("it is the first one, and newcomers must wait from now on");
    out.push_back(TellLeader{rdzv::SomeWorkersDone{ended.round}});
  }
}

// The others of this node leave, too, or have left: a node that is preempted itself tells the leader when all have ended.
void NodeCore::worker_has_left(Out& out, const WorkerEnded& ended) {
  auto& running = std::get<Running>(state_);
  if (ended.failure) {
    because("the workers leave, so that its failure ends nothing else");
    running.failures.push_back(*ended.failure);
    if (!running.have_all_ended()) {
      out.push_back(TellGroupBroken{ended.round, ended.failure->rank});
    }
  }
  if (!running.have_all_ended()) return;
  if (running.leaving.untold_signal()) return tell_of_preemption(out, *begin_stopping());
  because("the workers have left because another node is preempted, whose NodeLeaving follows");
  out.push_back(TellLeader{rdzv::WorkersDone{ended.round, /*has_left=*/true}});
}

void NodeCore::on(Out&, const WorkerTold&) {
  if (auto* running = std::get_if<Running>(&state_)) running->was_told = true;
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
  if (running == nullptr) return;
  out.push_back(TellLeader{rdzv::WorkersRecover{can.round}});
}

void NodeCore::on(Out& out, const WorkerRegrouped& regrouped) {
  Workers* workers = taking_part();
  if (workers == nullptr) return;
  if (!workers->regrouping.regrouped(regrouped.local_rank, regrouped.generation)) {
    return because("others have not, or it is no news");
  }
  out.push_back(TellLeader{rdzv::Regrouped{regrouped.round, regrouped.generation}});
}

void NodeCore::on(Out& out, const WorkerCannotRegroup& refusal) {
  Workers* workers = taking_part();
  if (workers == nullptr) return;
  workers->regrouping.cannot(refusal.local_rank);
  tell_if_in_vain(out, *workers);
}

void NodeCore::tell_if_in_vain(Out& out, const Workers& workers) const {
  if (!workers.regrouping.awaits_in_vain(workers.has_ended)) return;
  out.push_back(TellLeader{rdzv::CannotRegroup{round_, workers.regrouping.generation()}});
}

void NodeCore::on(Out& out, const RegroupIsLate& late) {
  const auto* running = std::get_if<Running>(&state_);
  if (running == nullptr || late.generation != running->regrouping.generation()) return;
  ShowLate action{late.round, running->regrouping.awaited(running->has_ended)};
  if (!action.local_ranks.empty()) out.push_back(std::move(action));
}

void NodeCore::on(Out& out, const WorkerHung& hung) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr || running->has_ended.at(static_cast<std::size_t>(hung.local_rank)))
    return;
  if (stop_ahead()) return stop_now(out);
  running->hung.push_back(hung.local_rank);
  out.push_back(SignalWorker{hung.local_rank, SIGKILL});
  arm(out, config_.kill_timeout);
}

void NodeCore::on(Out& out, const StopSignal& stop) {
  if (auto* ending = std::get_if<Ending>(&state_)) {
    return go_on_with(out, ending->steps.signalled());
  }
  auto* running = std::get_if<Running>(&state_);
  if (running != nullptr && may_end_step(*running, stop.signal)) {
    because("the workers may end their step first, unless they handle the signal themselves");
    running->stop_ahead = StopAhead{stop.signal};
    out.push_back(HoldWorkers{round_, rdzv::HoldSteps::Until::kRoundStop});
    return;
  }
  if (stop_ahead()) stop_now(out);
  Stopping* stopping = begin_stopping();
  const auto leaving = stopping != nullptr ? stopping->leaving.signalled(stop.signal)
                                           : rdzv::NodeLeaving{stop.signal};
  if (!leaving) {
    because("it is the second signal");
    return kill_workers(out, *stopping);
  }
  because("the leader hears it first, so that the ends of the workers are no failures");
  out.push_back(TellLeader{*leaving});
  const bool ends_its_step = stopping != nullptr && stopping->is<Parking>();
  if (!ends_its_step || stop.signal != SIGTERM) stop_workers(out, stop.signal);
  leave(out, *leaving);
}

bool NodeCore::may_end_step(const Running& running, int signal) const {
  const bool is_first = !running.stop_ahead && running.leaving.stays();
  return signal == SIGTERM && is_first && !running.has_failed && running.hung.empty() &&
         !leaves_in_its_own_time() && !running.have_all_ended();
}

std::optional<NodeCore::StopAhead> NodeCore::stop_ahead() const {
  const auto* running = std::get_if<Running>(&state_);
  return running != nullptr ? running->stop_ahead : std::nullopt;
}

// Workers that were told of a preemption have their own time.
void NodeCore::stop_without_leader(Out& out, bool after_failure) {
  if (stop_ahead()) stop_now(out);
  if (leaves_in_its_own_time()) {
    let_leave(out, after_failure);
  } else {
    stop_workers(out, SIGTERM, after_failure);
  }
  tell_of_preemption(out, std::get<Stopping>(state_));
}

// As if the signal had come at this moment.
void NodeCore::stop_now(Out& out) {
  const int signal = stop_ahead().value().signal;
  Stopping& stopping = *begin_stopping();
  tell_of_stop(out, stopping, signal);
  stop_workers(out, signal);
}

void NodeCore::tell_of_stop(Out& out, Stopping& stopping, int signal) {
  const auto leaving = *stopping.leaving.signalled(signal);
  out.push_back(TellLeader{leaving});
  leave(out, leaving);
}

// No timer: the scheduler that sent the notice also sends a stop signal when the time is over.
void NodeCore::on(Out& out, const PreemptSignal& preempt) {
  if (auto* ending = std::get_if<Ending>(&state_)) {
    return go_on_with(out, ending->steps.signalled());
  }
  if (auto* running = std::get_if<Running>(&state_))
    return preempted_while_running(out, *running, preempt.signal);
  auto* stopping = std::get_if<Stopping>(&state_);
  const auto leaving = stopping != nullptr
                           ? stopping->leaving.preempted(preempt.signal, /*is_running=*/false)
                           : rdzv::NodeLeaving{preempt.signal, /*is_preemption=*/true};
  if (!leaving) return because("this node leaves already");
  out.push_back(TellLeader{*leaving});
  leave(out, *leaving);
}

void NodeCore::preempted_while_running(Out& out, Running& running, int signal) {
  if (!running.leaving.stays() || running.stop_ahead) return because("this node leaves already");
  running.leaving.preempted(signal, /*is_running=*/true);
  if (running.have_all_ended() && running.has_left)
    return tell_of_preemption(out, *begin_stopping());
  if (running.have_all_ended()) return because("the program has come to its end here");
  because("the workers finish their step together with those of other nodes");
  for (const int local_rank : running.live()) out.push_back(AskToLeave{local_rank, signal});
  out.push_back(TellLeader{rdzv::LeaveWanted{round_}});
}

void NodeCore::tell_of_preemption(Out& out, Stopping& stopping) {
  if (!stopping.leaving.untold_signal()) return;
  tell_of_dead(out, stopping);
  const auto leaving = *stopping.leaving.is_due();
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
  finish_alone(out, std::move(outcome));
}

void NodeCore::on(Out& out, const TimerExpired&) {
  armed_.reset();
  if (auto* ending = std::get_if<Ending>(&state_)) {
    because("the step has had its time");
    return go_on_with(out, ending->steps.taken());
  }
  if (stop_ahead()) {
    because("the leader has not said after which step: the workers are stopped at once");
    return stop_now(out);
  }
  if (const auto* running = std::get_if<Running>(&state_)) {
    return stop_with_hung_ones(out, *running);
  }
  auto& stopping = std::get<Stopping>(state_);  // no timer runs in Waiting
  if (stopping.is<Asked>() && (stopping.was_told || !stopping.hung.empty())) {
    return stop_with_hung_ones(out, stopping);
  }
  if (auto* asked = std::get_if<Asked>(&stopping.stage)) {
    asked->is_looked_at = asked->has_had_time = true;
    out.push_back(LookAtWorkers{round_, SIGTERM});
    return;
  }
  if (stopping.is<Parking>()) {
    because("they have had their time to end the step");
    stop_workers(out, SIGTERM);
    return;
  }
  if (stopping.is<Grace>()) return grace_is_over(out, stopping);
  if (stopping.is<Stacks>()) {
    because("the stacks have had their time");
    return kill_workers(out, stopping);
  }
  because("they have not ended after SIGKILL");
  give_up_on_workers(out, stopping);
}

void NodeCore::stop_with_hung_ones(Out& out, const Workers& workers) {
  if (workers.hung.empty()) return because("the workers that hung have ended");
  because("a worker that hangs has not ended after SIGKILL");
  Stopping* stopping = stop_workers(out, SIGTERM, /*after_failure=*/true);
  tell_of_preemption(out, *stopping);
}

void NodeCore::grace_is_over(Out& out, Stopping& stopping) {
  auto& grace = std::get<Grace>(stopping.stage);
  const milliseconds limit = *std::exchange(grace.limit, std::nullopt);
  grace.waited += limit;
  if (grace.after_failure && !config_.failure_shutdown_timeout &&
      grace.waited < config_.shutdown_timeout) {
    because("a worker may still save something");
    out.push_back(LookAtWorkers{round_, grace.signal});
    return;
  }
  out.push_back(GraceOver{grace.waited, grace.after_failure});
  if (grace.after_failure || limit == 0ms) {
    because("their time is over, and no diagnosis is needed");
    return kill_workers(out, stopping);
  }
  because("the stacks show why they have not ended");
  stopping.stage = Stacks{};
  out.push_back(TakeStacks{round_});
  arm(out, kStacks);
}

void NodeCore::on(Out& out, const WorkersSeen& seen) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping != nullptr && stopping->is<Asked>()) return seen_while_leaving(out, *stopping, seen);
  auto* grace = stopping != nullptr ? std::get_if<Grace>(&stopping->stage) : nullptr;
  if (grace == nullptr || grace->limit) return because("they are not looked at any more");
  std::vector<int> late;
  std::vector<int> saving;
  milliseconds next = kLookAgain;
  for (const int local_rank : stopping->live()) {
    if (std::ranges::count(grace->killed, local_rank) > 0) continue;
    const WorkerSeen& worker = seen.workers.at(static_cast<std::size_t>(local_rank));
    const milliseconds left = time_left(*grace, worker);
    if (left <= 0ms) {
      late.push_back(local_rank);
      continue;
    }
    next = std::min(next, left);
    if (worker.handles_stop && worker.has_record && !worker.in_call) saving.push_back(local_rank);
  }
  if (!late.empty()) out.push_back(GraceOver{grace->waited, /*after_failure=*/true});
  for (const int local_rank : late) out.push_back(SignalWorker{local_rank, SIGKILL});
  grace->killed.insert(grace->killed.end(), late.begin(), late.end());
  const bool was_each_killed = std::ranges::all_of(stopping->live(), [&](int local_rank) {
    return std::ranges::count(grace->killed, local_rank) > 0;
  });
  if (was_each_killed) {
    stopping->stage = Killed{};
    return arm(out, config_.kill_timeout);
  }
  if (!saving.empty() && !std::exchange(grace->was_saving_said, true)) {
    out.push_back(WaitForSaving{std::move(saving), config_.shutdown_timeout - grace->waited});
  }
  because("some may save something, or have time left");
  grace->limit = next;
  arm(out, next);
}

milliseconds NodeCore::short_grace(bool has_gpu) const {
  return config_.failure_shutdown_timeout.value_or(
      std::min(config_.shutdown_timeout, has_gpu ? kShortGraceOfGpu : kShortGrace));
}

// Until its SIGKILL.
milliseconds NodeCore::time_left(const Grace& grace, const WorkerSeen& worker) const {
  const milliseconds until_last = config_.shutdown_timeout - grace.waited;
  if (!worker.handles_stop || !worker.has_record) {
    return std::min(until_last, short_grace(worker.has_gpu) - grace.waited);
  }
  if (!worker.in_call) return until_last;
  // A collective that it entered before the stop counts from the stop.
  return std::min(until_last,
                  short_grace(worker.has_gpu) - std::min(*worker.in_call, grace.waited));
}

void NodeCore::on(Out& out, const StacksTaken&) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping != nullptr && stopping->is<Stacks>()) kill_workers(out, *stopping);
}

void NodeCore::give_up_on_workers(Out& out, Stopping& stopping) {
  const std::string sentence =
      "local rank " + joined(stopping.live()) +
      " did not end even after SIGKILL: it hangs inside the kernel, and " +
      "only what it waits for (a device, a network file system) can free it";
  stopping.has_ended.assign(stopping.has_ended.size(), true);
  if (std::holds_alternative<JoinAnew>(stopping.then) ||
      std::holds_alternative<FinishAlone>(stopping.then)) {
    auto outcome = own_outcome(rdzv::JobOutcome::Kind::kCannotRun, kExitWorkerStuck);
    outcome.sentence = sentence;
    stopping.then = FinishAlone{std::move(outcome)};
  } else {
    out.push_back(TellLeader{rdzv::NodeStuck{sentence}});
  }
  go_on(out);
}

void NodeCore::on(Out& out, const RoundClosed&) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || !stopping->is<Closing>()) return;
  stopping->stage = Closed{};
  go_on(out);
}

// The workers, as long as this node takes part in replacements.
NodeCore::Running* NodeCore::taking_part() {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return nullptr;
  return running->has_failed ? nullptr : running;
}

// Dead workers are not replaced any more.
void NodeCore::tell_of_dead(Out& out, Workers& workers) {
  for (const auto& [rank, local_rank] : workers.regrouping.not_replaced()) {
    if (!workers.have_all_ended()) out.push_back(TellGroupBroken{round_, rank});
  }
}

// From Running to Stopping, where no worker is stopped yet; otherwise the state stays. Returns it when it is Stopping.
NodeCore::Stopping* NodeCore::begin_stopping() {
  if (auto* running = std::get_if<Running>(&state_)) {
    Stopping stopping;
    static_cast<Workers&>(stopping) = std::move(*running);
    stopping.failures = std::move(running->failures);
    state_ = std::move(stopping);
  }
  return std::get_if<Stopping>(&state_);
}

// The round is stopped while its workers leave.
void NodeCore::let_leave(Out& out, bool after_failure) {
  const bool was_running = is_running();
  Stopping& stopping = *begin_stopping();
  if (!was_running || stopping.was_told || stopping.have_all_ended()) return;
  stopping.stage = Asked{.is_looked_at = true,
                         .after_failure = after_failure,
                         .has_had_time = false,
                         .is_saving = false};
  out.push_back(LookAtWorkers{round_, SIGTERM});
}

void NodeCore::seen_while_leaving(Out& out, Stopping& stopping, const WorkersSeen& seen) {
  auto& asked = std::get<Asked>(stopping.stage);
  if (!std::exchange(asked.is_looked_at, false)) return because("it was not asked for");
  asked.is_saving = std::ranges::any_of(stopping.live(), [&](int local_rank) {
    return seen.workers.at(static_cast<std::size_t>(local_rank)).leaves;
  });
  if (asked.is_saving) return because("a worker leaves, and may be saving");
  if (asked.after_failure || asked.has_had_time) {
    because("no worker leaves, and they may wait for others that are gone");
    stop_workers(out, SIGTERM, asked.after_failure);
  } else if (!armed_) {
    arm(out, config_.shutdown_timeout);
  }
}

milliseconds NodeCore::time_for_step(const Workers& workers) const {
  const milliseconds most = config_.shutdown_timeout / rdzv::kPartForStep;
  const milliseconds step = std::max(workers.step, kLeastStep);
  return step > most / kStepsAhead ? most : step * kStepsAhead;
}

void NodeCore::park_workers(Out& out, std::int64_t after_step) {
  Stopping& stopping = *begin_stopping();
  tell_of_dead(out, stopping);
  if (stopping.have_all_ended()) return;
  stopping.stage = Parking{};
  out.push_back(ParkWorkers{round_, after_step});
  arm(out, time_for_step(stopping));
}

// Signals the workers, unless they were signalled before, and begins the grace period. Returns null in Waiting.
NodeCore::Stopping* NodeCore::stop_workers(Out& out, int signal, bool after_failure) {
  Stopping* stopping = begin_stopping();
  if (stopping == nullptr) return nullptr;
  tell_of_dead(out, *stopping);
  if (!stopping->is<Asked>() && !stopping->is<Parking>()) return stopping;
  if (stopping->have_all_ended()) return stopping;
  signal_live_workers(out, *stopping, signal);
  const milliseconds limit =
      after_failure ? short_grace(/*has_gpu=*/false) : config_.shutdown_timeout;
  stopping->stage = Grace{.signal = signal, .after_failure = after_failure, .limit = limit};
  arm(out, limit);
  return stopping;
}

void NodeCore::signal_live_workers(Out& out, const Workers& workers, int signal) {
  for (const int local_rank : workers.live()) {
    out.push_back(SignalWorker{local_rank, signal});
    // A stopped process handles the signal only after it is continued.
    if (signal != SIGKILL) out.push_back(SignalWorker{local_rank, SIGCONT});
  }
}

void NodeCore::kill_workers(Out& out, Stopping& stopping) {
  if (stopping.is<Killed>() || stopping.is_closing()) return;
  stopping.stage = Killed{};
  signal_live_workers(out, stopping, SIGKILL);
  arm(out, config_.kill_timeout);
}

// Takes the next step of stopping if all workers have ended: close the round; after that finish,
// join again or answer the leader.
void NodeCore::go_on(Out& out) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || !stopping->have_all_ended()) return;
  const bool is_job_over = std::holds_alternative<FinishJob>(stopping->then);
  if (stopping->leaving.untold_signal() && !is_job_over) return tell_of_preemption(out, *stopping);
  if (!stopping->is_closing()) {
    stopping->stage = Closing{};
    armed_.reset();
    const auto* job = std::get_if<FinishJob>(&stopping->then);
    const bool has_succeeded =
        job != nullptr && job->outcome.kind == rdzv::JobOutcome::Kind::kSucceeded;
    out.push_back(CloseRound{round_, has_succeeded && !config_.kills_orphans});
  }
  if (!stopping->is<Closed>()) return;
  if (auto* job = std::get_if<FinishJob>(&stopping->then)) {
    finish(out, std::move(job->outcome));
  } else if (auto* alone = std::get_if<FinishAlone>(&stopping->then)) {
    alone->outcome.consequences = std::move(stopping->failures);
    finish(out, std::move(alone->outcome));
  } else if (std::holds_alternative<JoinAnew>(stopping->then)) {
    out.push_back(Join{last_round_});
    state_ = Waiting{};
  } else if (std::holds_alternative<AnswerStop>(stopping->then)) {
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
void NodeCore::finish_alone(Out& out, rdzv::JobOutcome outcome) {
  std::get<Stopping>(state_).follow_with(FinishAlone{std::move(outcome)});
  go_on(out);
}

void NodeCore::finish(Out& out, rdzv::JobOutcome outcome) {
  state_ = Ending{EndOfJob(outcome.kind, config_.leader_leave_timeout)};
  out.push_back(Finish{std::move(outcome)});
  go_on_with(out, EndOfJob::Then::kTakeStep);
}

void NodeCore::go_on_with(Out& out, EndOfJob::Then then) {
  const EndOfJob& steps = std::get<Ending>(state_).steps;
  switch (then) {
    case EndOfJob::Then::kWait:
      return;
    case EndOfJob::Then::kTakeStep:
      out.push_back(TakeStep{steps.step()});
      return arm(out, steps.limit());
    case EndOfJob::Then::kShorten:
      return arm(out, steps.limit());
    case EndOfJob::Then::kExit:
      break;
  }
  armed_.reset();
  state_ = Ended{};
  out.push_back(Exit{});
}

void NodeCore::on(Out& out, const StepTaken& taken) {
  auto* ending = std::get_if<Ending>(&state_);
  if (ending != nullptr && ending->steps.step() == taken.step) {
    go_on_with(out, ending->steps.taken());
  }
}

void NodeCore::arm(Out& out, milliseconds after) {
  armed_ = TimerId{++timers_};
  out.push_back(ArmTimer{*armed_, after});
}

void NodeCore::close_unused_store(Out& out, std::optional<Round> next_store) {
  auto& waiting = std::get<Waiting>(state_);
  if (waiting.store) out.push_back(CloseStore{*waiting.store});
  waiting.store = next_store;
}

}  // namespace ddprun::agent
