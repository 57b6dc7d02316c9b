#include "agent/events/event_log.h"

#include <algorithm>
#include <utility>

#include "rendezvous/round/job_outcomes.h"

namespace ddprun::agent {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

microseconds whole_us(steady_clock::duration duration) {
  return std::chrono::duration_cast<microseconds>(duration);
}

// The `reason` of the event round_stopping. Empty if the job has succeeded: then nothing is
// stopped.
std::string_view reason_of(const NodeEvent& cause, bool has_local_failure) {
  if (std::holds_alternative<StopSignal>(cause)) return "signal";
  const auto* ended = std::get_if<WorkerEnded>(&cause);
  if (std::holds_alternative<PreemptSignal>(cause) || (ended != nullptr && ended->has_left)) {
    return "preemption";
  }
  if (std::holds_alternative<LeaderLost>(cause)) return "leader_lost";
  if (std::holds_alternative<LeaderReplaced>(cause)) return "leader_replaced";
  if (std::holds_alternative<rdzv::DeclaredLost>(cause)) return "declared_lost";
  if (const auto* end = std::get_if<rdzv::JobEnd>(&cause)) {
    return end->outcome.kind == rdzv::JobOutcome::Kind::kSucceeded ? "" : "job_end";
  }
  return has_local_failure ? "worker_failed" : "leader";
}

}  // namespace

EventLog::EventLog(boost::asio::any_io_executor executor, Console& console, const Job& job,
                   std::string host)
    : executor_(std::move(executor)),
      console_(console),
      job_(job),
      host_(std::move(host)),
      times_(steady_clock::now(), job.local_world_size),
      history_(job.local_world_size),
      workers_(static_cast<std::size_t>(job.local_world_size)) {
  round_.world_size = 0;
}

Result<void> EventLog::open() {
  if (job_.events.file.empty() && !job_.events.descriptor) return {};
  auto sink = EventSink::open(executor_, console_, job_.events,
                              [this](std::uint64_t lines) { write(EventsLost{lines}); });
  if (!sink) return fail(std::move(sink.error()));
  sink_ = std::move(*sink);
  return {};
}

void EventLog::write(const JobEvent& event) {
  const EventHead head{std::chrono::system_clock::now(), steady_clock::now(), job_.run_id, host_};
  history_.note(head, event);
  std::erase_if(followers_, [](const auto& each) { return each.expired(); });
  if (!sink_ && followers_.empty()) return;
  const std::string line = event_line(head, event);
  if (sink_) sink_->write(line);
  // A copy, because a follower may add or remove followers.
  for (const auto& each : std::vector(followers_)) {
    if (const auto told = each.lock()) (*told)(line);
  }
}

std::shared_ptr<void> EventLog::on_line(std::function<void(const std::string&)> told) {
  const auto follower =
      std::make_shared<const std::function<void(const std::string&)>>(std::move(told));
  followers_.push_back(follower);
  return std::const_pointer_cast<std::function<void(const std::string&)>>(follower);
}

void EventLog::round_started(const rdzv::RoundStart& start, std::span<const pid_t> pids) {
  const bool is_first = round_.world_size == 0;
  const auto now = steady_clock::now();
  const Downtime downtime_before = times_.latest(now);
  const auto since_cause = whole_us(times_.round_runs(now));
  running_ = static_cast<int>(std::ranges::count_if(pids, [](pid_t pid) { return pid != 0; }));
  if (job_.events.as_torchrun) {
    // torchrun's records have the rank of the previous round and the restarts of the new one.
    TorchrunScene before = scene();
    before.round.restarts = start.restarts;
    console_.say(Stream::kStderr, torchrun_agent_line(before, "RENDEZVOUS", since_cause));
    console_.say(Stream::kStderr,
                 torchrun_agent_line(before, "ASSIGN_WORKER_RANKS", microseconds{0}));
  }
  round_ = start;
  RoundStarted started{start.round, start.master_addr, start.master_port, {},
                       since_cause, start.node_rank,   start.node_count,  start.world_size};
  for (int local_rank = 0; local_rank < static_cast<int>(pids.size()); ++local_rank) {
    const pid_t pid = pids[static_cast<std::size_t>(local_rank)];
    workers_[static_cast<std::size_t>(local_rank)] = Ended{pid, {}};
    started.workers.push_back({rank_of(local_rank), local_rank, pid});
    if (job_.events.as_torchrun && pid != 0) {
      console_.say(Stream::kStderr, torchrun_start_line(scene(), local_rank, pid));
    }
  }
  write(started);
  if (!is_first) {
    write(Restarted{start.round,
                    start.restarts,
                    start.max_restarts,
                    start.after_failure,
                    since_cause,
                    start.after_loss,
                    start.nodes_gone,
                    start.nodes_joined,
                    start.after_request,
                    start.asked_by,
                    {},
                    downtime_before});
  }
}

void EventLog::worker_exited(const rdzv::WorkerFailure& ended) {
  if (!ended.status.is_success()) {
    if (!ended.was_told_to_stop) times_.failed(steady_clock::now());
    workers_[static_cast<std::size_t>(ended.local_rank)].failure = ended;
  }
  if (ended.pid != 0 && --running_ == 0) times_.all_ended(steady_clock::now());
  write(WorkerExited{round_.round,
                     {ended.rank, ended.local_rank, ended.pid},
                     ended.status,
                     ended.was_told_to_stop,
                     ended.killed_for_memory,
                     ended.message,
                     ended.progress});
}

void EventLog::worker_ending(int local_rank, const std::optional<WorkerProgress>& progress,
                             const StepMarks& marks, ExitStatus status, bool was_told_to_stop) {
  times_.stepped(local_rank, marks);
  const WorkerProgress last = progress.value_or(WorkerProgress{});
  times_.worker_ended(local_rank, last.step, last.step_kind, status.is_success(),
                      steady_clock::now());
  look_for_recovery();
  if (!status.is_success() && !was_told_to_stop) times_.failed(steady_clock::now());
}

void EventLog::stepped(int local_rank, const StepMarks& marks) {
  times_.stepped(local_rank, marks);
  look_for_recovery();
}

void EventLog::replaced(const Replace& what, pid_t newcomer) {
  const auto now = steady_clock::now();
  const Downtime downtime_before = times_.latest(now);
  Restarted restarted{what.round, what.restarts, what.max_restarts, what.failure,
                      whole_us(times_.replaced(what.generation, now))};
  restarted.in_place = {what.generation, what.rank, {}};
  restarted.downtime_before = downtime_before;
  round_.restarts = what.restarts;
  if (what.local_rank) {
    restarted.in_place->newcomer = {what.rank, *what.local_rank, newcomer};
    workers_[static_cast<std::size_t>(*what.local_rank)] = Ended{newcomer, {}};
    running_ += 1;
    if (job_.events.as_torchrun) {
      console_.say(Stream::kStderr, torchrun_start_line(scene(), *what.local_rank, newcomer));
    }
  }
  write(restarted);
}

void EventLog::regrouped(int local_rank, std::uint32_t generation) {
  times_.regrouped(local_rank, generation, steady_clock::now());
}

void EventLog::committed(int local_rank, std::uint32_t generation) {
  times_.committed(local_rank, generation, steady_clock::now());
  look_for_recovery();
}

void EventLog::look_for_recovery() {
  if (const auto downtime = times_.take_recovered(steady_clock::now())) {
    write(Recovered{round_.round, *downtime, times_.generation()});
  }
}

void EventLog::round_stopping(Round round, const NodeEvent& cause) {
  bool has_local_failure = false;
  for (const Ended& worker : workers_) has_local_failure |= worker.failure.has_value();
  const std::string_view reason = reason_of(cause, has_local_failure);
  if (reason.empty()) return;
  times_.failed(steady_clock::now());
  write(RoundStopping{round, reason});
}

void EventLog::finished(const rdzv::JobOutcome& outcome, int exit_code) {
  const auto now = steady_clock::now();
  times_.finished(now);
  write(JobFinished{outcome, exit_code, whole_us(times_.wall(now)), times_.all(now),
                    times_.goodput(now)});
  if (!job_.events.as_torchrun) return;
  using Kind = rdzv::JobOutcome::Kind;
  if (outcome.kind == Kind::kStopped || outcome.kind == Kind::kCannotRun) {
    const std::string why = outcome.kind == Kind::kCannotRun
                                ? outcome.sentence
                                : "stopped by " + rdzv::what_stopped(outcome);
    console_.say(Stream::kStderr, torchrun_agent_line(scene(), "FAILED", std::nullopt, why));
    return;
  }
  for (int local_rank = 0; local_rank < job_.local_world_size; ++local_rank) {
    const Ended& worker = workers_[static_cast<std::size_t>(local_rank)];
    console_.say(Stream::kStderr,
                 torchrun_end_line(scene(), local_rank, worker.pid,
                                   outcome.kind == Kind::kSucceeded, worker.failure));
  }
  console_.say(Stream::kStderr, torchrun_agent_line(scene(), "SUCCEEDED", std::nullopt));
}

TorchrunScene EventLog::scene() const {
  const auto wall = times_.wall(steady_clock::now());
  return {job_, host_, std::chrono::duration_cast<std::chrono::seconds>(wall), round_};
}

void EventLog::when_written(std::function<void()> done) {
  sink_ ? sink_->when_written(std::move(done)) : done();
}

}  // namespace ddprun::agent
