#include "agent/group_core.h"

#include <algorithm>
#include <csignal>

namespace ddprun::agent {
namespace {

bool all(const std::vector<bool>& flags) {
  return std::all_of(flags.begin(), flags.end(), [](bool flag) { return flag; });
}

// The rounds that open or start something name the next round; everything else must be of this one.
std::optional<Round> round_that_must_match(const GroupEvent& event) {
  return std::visit(
      [](const auto& e) -> std::optional<Round> {
        using Event = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<Event, rdzv::OpenStore> ||
                      std::is_same_v<Event, rdzv::RoundStart> ||
                      std::is_same_v<Event, rdzv::JobEnd> || std::is_same_v<Event, StopSignal> ||
                      std::is_same_v<Event, PreemptSignal>) {
          return std::nullopt;
        } else {
          return e.round;
        }
      },
      event);
}

}  // namespace

std::vector<GroupAction> GroupCore::step(const GroupEvent& event) {
  Out out;
  if (is_stale(event) || std::holds_alternative<Ended>(state_)) return out;
  std::visit([&](const auto& e) { on(out, e); }, event);
  return out;
}

bool GroupCore::is_stale(const GroupEvent& event) const {
  const auto round = round_that_must_match(event);
  return round.has_value() && *round != round_;
}

void GroupCore::on(Out& out, const rdzv::OpenStore& open) {
  if (!std::holds_alternative<Waiting>(state_)) return;
  round_ = open.round;
  out.push_back(OpenRoundStore{open.round});
}

void GroupCore::on(Out& out, const StoreResult& result) {
  if (!std::holds_alternative<Waiting>(state_)) return;
  if (result.error.empty()) {
    out.push_back(TellLeader{rdzv::StoreOpened{result.round, result.port}});
  } else {
    out.push_back(TellLeader{rdzv::StoreNotOpened{result.round, result.error}});
  }
}

void GroupCore::on(Out& out, const rdzv::RoundStart& start) {
  if (!std::holds_alternative<Waiting>(state_)) return;
  round_ = start.round;
  state_ = Running{std::vector<bool>(static_cast<std::size_t>(config_.local_world_size), false)};
  out.push_back(StartWorkers{start});
}

void GroupCore::on(Out& out, const rdzv::RoundStop& stop) {
  if (std::holds_alternative<Waiting>(state_)) {
    out.push_back(TellLeader{rdzv::RoundStopped{stop.round, {}}});
    return;
  }
  // A stop that this node's own notice brought about leaves the workers their time.
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || !stopping->has_only_notice) stopping = stop_workers(out, SIGTERM);
  if (stopping != nullptr) stopping->leader_asked = true;
  go_on(out);
}

void GroupCore::on(Out& out, const rdzv::JobEnd& end) {
  if (std::holds_alternative<Waiting>(state_)) {
    state_ = Ended{};
    out.push_back(Finish{end.outcome});
    return;
  }
  if (Stopping* stopping = stop_workers(out, SIGTERM)) stopping->outcome = end.outcome;
  go_on(out);
}

void GroupCore::on(Out& out, const WorkerEnded& ended) {
  const auto index = static_cast<std::size_t>(ended.local_rank);
  if (auto* running = std::get_if<Running>(&state_)) {
    running->has_ended[index] = true;
    if (ended.failure) {
      out.push_back(TellLeader{rdzv::WorkerFailed{ended.round, *ended.failure}});
    } else if (all(running->has_ended)) {
      out.push_back(TellLeader{rdzv::WorkersDone{ended.round}});
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

void GroupCore::on(Out& out, const StopSignal& stop) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping != nullptr && stopping->is_leaving) {
    kill_workers(out, *stopping);
    return;
  }
  // Before the workers are signalled, so that the leader takes what follows for no failure.
  out.push_back(TellLeader{rdzv::NodeLeaving{stop.signal}});
  stopping = stop_workers(out, stop.signal);
  if (stopping != nullptr) stopping->is_leaving = true;
  go_on(out);
}

// No timer: the scheduler that gave notice will also say when its patience ends.
void GroupCore::on(Out& out, const PreemptSignal& preempt) {
  if (std::holds_alternative<Stopping>(state_)) return;
  out.push_back(TellLeader{rdzv::NodeLeaving{preempt.signal, /*is_preemption=*/true}});
  Stopping* stopping = begin_stopping();
  if (stopping == nullptr) return;
  stopping->has_only_notice = true;
  for (std::size_t i = 0; i < stopping->has_ended.size(); ++i) {
    if (stopping->has_ended[i]) continue;
    out.push_back(AskToLeave{static_cast<int>(i), preempt.signal});
  }
  go_on(out);
}

void GroupCore::on(Out& out, const TimerExpired&) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || all(stopping->has_ended)) return;
  if (!stopping->was_killed) {
    kill_workers(out, *stopping);
    return;
  }
  std::string stuck;
  for (std::size_t i = 0; i < stopping->has_ended.size(); ++i) {
    if (stopping->has_ended[i]) continue;
    stuck += (stuck.empty() ? "" : ", ") + std::to_string(i);
    stopping->has_ended[i] = true;
  }
  out.push_back(TellLeader{rdzv::NodeStuck{
      "local rank " + stuck + " did not end even after SIGKILL: it hangs inside the kernel, and " +
      "only what it waits for (a device, a network file system) can free it"}});
  go_on(out);
}

void GroupCore::on(Out& out, const RoundClosed&) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr) return;
  stopping->is_closed = true;
  go_on(out);
}

// From Running to Stopping; otherwise the state stays. Returns it when it is Stopping.
GroupCore::Stopping* GroupCore::begin_stopping() {
  if (auto* running = std::get_if<Running>(&state_)) {
    Stopping stopping;
    stopping.has_ended = std::move(running->has_ended);
    state_ = std::move(stopping);
  }
  return std::get_if<Stopping>(&state_);
}

// Signals the workers unless that was done before.
GroupCore::Stopping* GroupCore::stop_workers(Out& out, int signal) {
  const bool was_running = std::holds_alternative<Running>(state_);
  Stopping* stopping = begin_stopping();
  if (stopping == nullptr || (!was_running && !stopping->has_only_notice)) return stopping;
  stopping->has_only_notice = false;
  signal_live_workers(out, stopping->has_ended, signal);
  if (!all(stopping->has_ended)) out.push_back(ArmTimer{round_, config_.shutdown_timeout});
  return stopping;
}

void GroupCore::signal_live_workers(Out& out, const std::vector<bool>& has_ended, int signal) {
  for (std::size_t i = 0; i < has_ended.size(); ++i) {
    if (has_ended[i]) continue;
    const int local_rank = static_cast<int>(i);
    out.push_back(SignalWorker{local_rank, signal});
    // A stopped process does not act on the signal before it is continued.
    if (signal != SIGKILL) out.push_back(SignalWorker{local_rank, SIGCONT});
  }
}

void GroupCore::kill_workers(Out& out, Stopping& stopping) {
  if (stopping.was_killed) return;
  stopping.was_killed = true;
  signal_live_workers(out, stopping.has_ended, SIGKILL);
  out.push_back(ArmTimer{round_, config_.kill_timeout});
}

// The next step of stopping that has become possible: close the round when all workers have ended,
// then end the job or answer the leader, whichever it asked for.
void GroupCore::go_on(Out& out) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || !all(stopping->has_ended)) return;
  if (!stopping->is_closing) {
    stopping->is_closing = true;
    out.push_back(CloseRound{round_});
  }
  if (!stopping->is_closed) return;
  if (stopping->outcome) {
    out.push_back(Finish{*stopping->outcome});
    state_ = Ended{};
  } else if (stopping->leader_asked) {
    out.push_back(TellLeader{rdzv::RoundStopped{round_, std::move(stopping->failures)}});
    state_ = Waiting{};
  }
}

}  // namespace ddprun::agent
