#include "agent/supervisor/workers.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "agent/failure/error_file.h"
#include "agent/failure/failure_report.h"
#include "agent/process/child_end.h"
#include "agent/process/orphans.h"
#include "agent/process/worker_facts.h"
#include "agent/python/python_archives.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/ranks.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kErrorFileLimit = 2s;  // a failure waits for its file
// Whether a worker reacts to a preemption is looked at so often, and said after so many looks.
constexpr std::chrono::milliseconds kLookAgain = 1s;
constexpr int kLooksUntilWord = 5;

void add_error(rdzv::WorkerFailure& failure, const WorkerError& error, const std::string& file) {
  failure.error_file = file;
  // The tail of stderr contains the call stack already.
  const bool shows_stack = failure.stderr_tail.empty() && !error.callstack.empty();
  failure.message = shows_stack ? error.callstack : error.message;
}

// The program of this worker was not executed. What its process did in its place does not count.
void note_refusal(rdzv::WorkerFailure& failure, const Error& refusal) {
  failure.message = refusal.to_string();
  failure.is_worth_a_retry =
      refusal.code != ErrorCode::kNotFound && refusal.code != ErrorCode::kPermissionDenied;
  failure.status = ExitStatus::exited(refusal.code == ErrorCode::kNotFound ? kExitNotFound
                                      : failure.is_worth_a_retry           ? kExitCannotRun
                                                                           : kExitNotExecutable);
}

// No start follows (--on-nan=stop). What it says of its end itself does not count.
void note_nan(rdzv::WorkerFailure& failure, const std::string& why) {
  failure.message = why;
  failure.is_worth_a_retry = false;
  failure.status = ExitStatus::exited(kExitNoProgress);
}

constexpr std::chrono::milliseconds kDyingLimit = 2s;  // as that of orphans
// For the last thread of a worker that is dead, which has no process any more and gets what the others leave over.
constexpr std::chrono::milliseconds kLastThreadLimit = 500ms;

}  // namespace

Workers::Workers(AgentParts parts, std::optional<Keeper>& keeper, OnEvent on_event,
                 StartProcess start)
    : parts_(std::move(parts)),
      job_(parts_.job),
      output_(parts_.output),
      on_event_(std::move(on_event)),
      start_process_(start),
      reaper_(parts_.io, parts_.agent_id, keeper, parts_.log, reaper_hooks()),
      standbys_(parts_.io, job_, parts_.agent_id, standby_hooks()),
      death_watch_(parts_.io.get_executor()),
      files_(parts_.io.get_executor(), "ddprun-files"),
      blueprints_(parts_, round_),
      workers_(static_cast<std::size_t>(job_.local_world_size)),
      view_(job_, round_, workers_),
      replacement_(job_.local_world_size),
      close_timer_(parts_.io),
      leave_timer_(parts_.io),
      stacks_(parts_, view_) {
  if (job_.standbys.prepares) output_.keep_files_of_rounds();
}

ChildReaper::Hooks Workers::reaper_hooks() {
  return {.is_owned = [this](pid_t pid) { return is_owned(pid); },
          .on_keeper_replaced = [this](pid_t pid) { emit(worker_event::KeeperReplaced{pid}); }};
}

StandbyPool::Hooks Workers::standby_hooks() {
  std::function<void(ProcessSpec&, ChildEnvironment&)> add_hooks;
  if (wants_python_hooks(job_)) {
    add_hooks = [this](ProcessSpec& spec, ChildEnvironment& environment) {
      blueprints_.add_python_hooks(spec, environment);
    };
  }
  return {.keeper_slot =
              [this](std::size_t index) { return reaper_.keeper_slot(workers_.size() + index); },
          .next_control_group = [this] { return reaper_.next_control_group(); },
          .add_python_hooks = std::move(add_hooks),
          .are_workers_starting = [this] { return are_workers_starting(); },
          .worker_like_a_zygote = [this] { return worker_like_a_zygote(); },
          .blueprint = [this](int local_rank) { return blueprint_of_prepared(local_rank); },
          .start =
              [this](const ProcessSpec& spec, WorkerProcess::OnEnd on_end,
                     WorkerProcess::OnStarted on_started) {
                return start_prepared(spec, std::move(on_end), std::move(on_started));
              },
          .worker =
              [this](int local_rank) {
                const auto& process = worker(local_rank).process;
                return process ? process->pid() : 0;
              },
          .remove_file =
              [this](const std::string& path) {
                files_.run<int>([path] { return ::unlink(path.c_str()); }, [](int) {});
              },
          .is_replacing = [this] { return replacement_.is_replacing(); },
          .gpus =
              [this] {
                std::vector<link::GpuUse> gpus;
                for (const Worker& each : workers_) {
                  gpus.push_back(each.link ? each.link->gpu() : link::GpuUse{});
                }
                return gpus;
              },
          .reaped =
              [this] {
                reaper_.reap();
                go_on_closing();
              },
          .tell =
              [log = parts_.log](std::string_view sentence, bool is_warning) {
                log.write(is_warning ? Log::Level::kWarning : Log::Level::kInfo, sentence);
              }};
}

// ---- a round begins

void Workers::begin(const rdzv::RoundStart& start, WantedSteps wanted_steps) {
  round_ = start;
  wanted_steps_ = std::move(wanted_steps);
  is_stopping_ = false;
  boundaries_ = {};
  leave_timer_.cancel();
  grace_.reset();
  replacement_.round_begins();
  for (Worker& each : workers_) each.before.reset();
  process_groups_.clear();
  stacks_.round_begins();
  std::vector<int> local_ranks(workers_.size());
  std::iota(local_ranks.begin(), local_ranks.end(), 0);
  is_about_to_start_ = true;
  output_.prepare_round(number(round_.round), local_ranks, [this](Result<void> made) {
    if (!made) return start_all(std::move(made));
    gpus_.await_memory([this, round = round_.round] {
      if (!is_about_to_start_ || round_.round != round) return;  // it was stopped meanwhile
      standbys_.round_begins([this] { start_all({}); });
    });
  });
}

void Workers::do_not_start() {
  if (!std::exchange(is_about_to_start_, false)) return;
  output_.cancel_round();
  standbys_.do_not_begin();
  for (int local_rank = 0; local_rank < count(); ++local_rank) {
    emit(worker_event::NotStarted{local_rank});
  }
}

void Workers::start_all(Result<void> files) {
  is_about_to_start_ = false;
  std::optional<Error> refused;
  if (!files) refused = std::move(files.error());
  std::vector<rdzv::WorkerFailure> not_started;
  for (int local_rank = 0; local_rank < count(); ++local_rank) {
    if (!refused) {
      auto started = start_one(local_rank);
      if (started) continue;
      refused = std::move(started.error());
    }
    // After the first failure the remaining workers are not tried.
    rdzv::WorkerFailure failure =
        failure_of(local_rank, ExitStatus::exited(kExitCannotRun), /*pid=*/0);
    failure.message = refused->to_string();
    not_started.push_back(std::move(failure));
  }
  std::vector<pid_t> pids;
  for (const Worker& each : workers_) pids.push_back(each.process ? each.process->pid() : 0);
  emit(worker_event::Started{std::move(pids)});
  oom_watch_.begin_round(own_groups_);
  reaper_.remove_abandoned_groups();
  for (rdzv::WorkerFailure& each : not_started) emit(worker_event::Ended{std::move(each)});
  for (int local_rank = 0; local_rank < count(); ++local_rank) {
    if (worker(local_rank).process && !worker(local_rank).is_starting) worker_runs(local_rank);
  }
  look_whether_all_run();
}

void Workers::on_started(int local_rank, std::uint64_t number, Result<void> started) {
  Worker& its = worker(local_rank);
  if (its.number != number) return;
  its.is_starting = false;
  started ? worker_runs(local_rank) : void(its.not_started = std::move(started.error()));
  look_whether_all_run();
}

void Workers::worker_runs(int local_rank) {
  const int rank = identity_of(local_rank).rank;
  if (std::ranges::count(job_.debugged_ranks, rank) > 0) {
    // It looks for gdbserver in the folders of PATH.
    files_.run<std::string>(
        [rank, pid = worker(local_rank).process->pid(), host = parts_.host,
         environment = job_.environment] {
          return printable_lines(waits_for_debugger_text(rank, pid, host, environment));
        },
        [this](const std::string& text) { parts_.console.say(Stream::kStderr, text); });
  }
  emit(worker_event::Executed{local_rank});
}

// Standbys are made beside workers that run, not beside those that wait for a file server.
void Workers::look_whether_all_run() {
  if (is_stopping_ || std::ranges::any_of(workers_, &Worker::is_starting)) return;
  standbys_.round_runs();
}

WorkerIdentity Workers::identity_of(int local_rank) const {
  return {local_rank, round_.rank_offset + local_rank, job_.role, parts_.host};
}

StandbyPool::Blueprint Workers::blueprint(int local_rank, const std::string& error_file) {
  return blueprints_.make(local_rank, error_file,
                          {reaper_.control_group(), /*may_be_replaced=*/standbys_.prepares()});
}

Result<void> Workers::start_one(int local_rank) {
  const WorkerIdentity identity = identity_of(local_rank);
  auto streams = output_.open(number(round_.round), identity);
  if (!streams) return fail(std::move(streams.error()));
  const auto index = static_cast<std::size_t>(local_rank);
  const std::string error_file = output_.error_file_of(number(round_.round), local_rank);
  if (output_.removes_error_files()) reaper_.keep_error_file(index, error_file);
  auto [spec, link, its_error_file] = blueprint(local_rank, error_file);
  if (local_rank == 0) standbys_.add_imports_file(spec);
  spec.stdout_fd = streams->stdout_fd;
  spec.stderr_fd = streams->stderr_fd;
  spec.keeper_slot = reaper_.keeper_slot(index);
  spec.waits_for_debugger = std::ranges::count(job_.debugged_ranks, identity.rank) > 0;
  if (const auto& wanted = wanted_steps_.at(index); link && wanted) {
    spec.wanted_kind = wanted->kind;
    spec.wanted_step = wanted->step;
  }
  const std::uint64_t number = ++processes_;
  const auto on_its_end = teller_of_end(local_rank, number);
  Result<std::unique_ptr<WorkerProcess>> process = standbys_.take(spec, on_its_end);
  const bool is_starting = *process == nullptr;
  if (is_starting) {
    process = start_process_(parts_.io, spec, on_its_end,
                             [this, local_rank, number](Result<void> started) {
                               on_started(local_rank, number, std::move(started));
                             });
  }
  output_.started(local_rank);
  if (!process) {
    output_.ended(local_rank);
    return fail(std::move(process.error()));
  }
  const pid_t pid = (*process)->pid();
  parts_.log.debug("rank " + std::to_string(identity.rank) + " is pid " + std::to_string(pid));
  if (!(*process)->is_in_control_group()) reaper_.leave_control_group();
  if (!(*process)->has_pidfd() && !std::exchange(has_told_no_pidfd_, true)) {
    parts_.log.debug("there are no pidfds here: SIGCHLD tells of the ends of workers");
  }
  note_process(local_rank, **process);
  if (link) link->started(pid, link_hooks(local_rank));
  worker(local_rank) = {.process = std::move(*process),
                        .link = link,
                        .number = number,
                        .error_file = error_file,
                        .is_starting = is_starting};
  return {};
}

WorkerProcess::OnEnd Workers::teller_of_end(int local_rank, std::uint64_t number) {
  return [this, local_rank, number](ExitStatus status) { on_end(local_rank, number, status); };
}

void Workers::note_process(int local_rank, WorkerProcess& process) {
  process_groups_.insert(process.pid());
  process.tell_of_rest([log = parts_.log,
                        rank = identity_of(local_rank).rank](const std::string& processes) {
    log.warn("rank " + std::to_string(rank) +
             " has succeeded, and what it left in its process group is killed (what setsid starts "
             "lives on): " +
             processes);
  });
}

WorkerLink::Hooks Workers::link_hooks(int local_rank) {
  return {.misuse =
              [log = parts_.log, rank = identity_of(local_rank).rank](std::string_view what) {
                log.warn("rank " + std::to_string(rank) + " " + std::string(what));
              },
          .stepped =
              [this, local_rank](const StepMarks& marks) {
                emit(worker_event::Stepped{local_rank, marks});
              },
          .replicas_differ =
              [this](std::int64_t step, int rank, int other, const std::string& what) {
                emit(worker_event::ReplicasDiffer{step, rank, other, what});
              },
          .not_finite =
              [this, local_rank](std::int64_t step, const NamedValue& value) {
                emit(worker_event::NotFinite{local_rank, step, value});
              },
          .hello = [this, local_rank] { on_hello(local_rank); },
          .cannot_recover =
              [this, local_rank](const std::string& why, bool nor_later) {
                standbys_.worker_cannot(why, nor_later);
                if (replacement_.refused(local_rank)) {
                  emit(worker_event::CannotRegroup{local_rank});
                }
              },
          .regrouped =
              [this, local_rank](std::uint32_t generation) {
                emit(worker_event::Regrouped{local_rank, generation});
              },
          .committed = [this, local_rank](
                           std::uint32_t generation) { on_committed(local_rank, generation); },
          .parked = [this] { look_whether_all_are_parked(); }};
}

// ---- a round is stopped

void Workers::signal(int local_rank, int signal) {
  do_not_start();
  standbys_.round_is_over();
  WorkerProcess* const process = worker(local_rank).process.get();
  if (process == nullptr) return;
  process->tell_of_rest(nullptr);  // a worker that is told to stop leaves nothing on purpose
  if (signal == SIGKILL) stacks_.finish();
  if (signal == SIGKILL && grace_) {
    emit(worker_event::Killed{local_rank, process->pid(), *grace_});
  }
  const bool asks_to_end = signal != SIGKILL && signal != SIGCONT;
  asks_to_end ? process->stop(signal) : process->signal_group(signal);
}

void Workers::ask_to_leave(int local_rank, int signal) {
  do_not_start();
  if (!worker(local_rank).process) return;
  worker(local_rank).leave_signal = signal != 0 ? signal : job_.preempt_signal.value_or(0);
  if (!tell_to_leave(local_rank) && !leave_timer_.is_armed())
    look_whether_all_are_told(/*looks=*/0);
}

// False: it does not react, at least for now.
bool Workers::tell_to_leave(int local_rank) {
  Worker& asked = worker(local_rank);
  if (!asked.process || !asked.leave_signal || asked.was_told_to_leave) return true;
  const int signal = *asked.leave_signal;
  if (asked.link && asked.link->asks_at_boundaries()) return asked.was_told_to_leave = true;
  asked.was_told_to_leave = asked.link && asked.link->ask_to_leave();
  if (!asked.was_told_to_leave && signal != 0 && !asked.is_starting) {
    asked.was_signalled_to_leave = asked.was_told_to_leave = asked.process->give_notice(signal);
  }
  if (asked.was_told_to_leave) emit(worker_event::ToldToLeave{local_rank});
  return asked.was_told_to_leave;
}

// A program may take some time until it can be told.
void Workers::look_whether_all_are_told(int looks) {
  bool are_all_told = true;
  for (int local_rank = 0; local_rank < count(); ++local_rank)
    are_all_told &= tell_to_leave(local_rank);
  if (are_all_told) return;
  if (looks == kLooksUntilWord) parts_.log.warn(word_on_ranks_that_do_not_react());
  leave_timer_.arm(kLookAgain, [this, looks] { look_whether_all_are_told(looks + 1); });
}

std::string Workers::word_on_ranks_that_do_not_react() const {
  std::vector<int> ranks;
  int signal = 0;
  for (int local_rank = 0; local_rank < count(); ++local_rank) {
    const Worker& each = worker(local_rank);
    if (!each.process || !each.leave_signal || each.was_told_to_leave) continue;
    ranks.push_back(view_.rank_of(local_rank));
    signal = *each.leave_signal;
  }
  const bool is_one = ranks.size() == 1;
  return printable(ranks_in_words(ranks)) + (is_one ? " does" : " do") +
         " not react to the preemption, and " + (is_one ? "runs" : "run") +
         " on until the scheduler ends the job: nothing is saved for it. To save and leave in "
         "time, call "
         "ddprun.should_leave() after each step, or give on_leave to ddprun.recoverable()" +
         (signal != 0 ? ", or handle " + signal_name(signal) : "");
}

void Workers::hold_at_boundary(rdzv::HoldSteps::Until until) {
  if (until == rdzv::HoldSteps::Until::kRoundStop) return hold_to_stop();
  if (until == rdzv::HoldSteps::Until::kNow) return set_boundaries({});
  set_boundaries({.state = link::BoundaryState::kHold});
  std::int64_t passed = 0;
  for (const Worker& each : workers_) {
    if (each.process && each.link) passed = std::max(passed, each.link->boundary_passed());
  }
  emit(worker_event::Held{passed});
}

void Workers::let_leave(std::int64_t boundary) {
  set_boundaries({.state = link::BoundaryState::kLeave, .leave_at = boundary});
  for (int local_rank = 0; local_rank < count(); ++local_rank) {
    Worker& each = worker(local_rank);
    if (each.process && !each.leave_signal) each.leave_signal = 0;
    tell_to_leave(local_rank);
  }
}

// Unless all workers count their steps, and would die of SIGTERM, they go on.
void Workers::hold_to_stop() {
  using Until = rdzv::HoldSteps::Until;
  std::optional<std::chrono::milliseconds> longest;
  for (const Worker& each : workers_) {
    if (!each.process || !each.link || each.link->steps() <= 0 ||
        !dies_of(each.process->pid(), SIGTERM)) {
      return emit(worker_event::Held{-1, {}, Until::kRoundStop});
    }
    const auto step = each.link->last_step();
    if (!step) continue;
    longest = std::max(longest.value_or(std::chrono::milliseconds::zero()),
                       std::chrono::ceil<std::chrono::milliseconds>(*step));
  }
  set_boundaries({.state = link::BoundaryState::kHold});
  std::int64_t steps = 0;
  for (const Worker& each : workers_) steps = std::max(steps, each.link->steps());
  emit(worker_event::Held{steps, longest, Until::kRoundStop});
}

void Workers::park(std::int64_t after_step) {
  set_boundaries({.state = link::BoundaryState::kPark, .leave_at = after_step});
  look_whether_all_are_parked();
}

void Workers::look_whether_all_are_parked() {
  if (boundaries_.state != link::BoundaryState::kPark || view_.running() == 0) return;
  const bool are_all = std::ranges::all_of(workers_, [](const Worker& each) {
    return !each.process || (each.link && each.link->is_parked());
  });
  if (are_all) emit(worker_event::Parked{});
}

void Workers::set_boundaries(const WorkerLink::Boundaries& boundaries) {
  boundaries_ = boundaries;
  for (const Worker& each : workers_) {
    if (each.process && each.link) each.link->set(boundaries);
  }
}

void Workers::tell_group_broken(int rank) {
  for (const Worker& each : workers_) {
    if (each.process && each.link) each.link->tell_group_broken(round_.round, rank);
  }
}

void Workers::take_stacks() {
  stacks_.take([this] { emit(worker_event::StacksTaken{}); });
}

void Workers::close(bool spares_orphans) {
  spares_orphans_ = spares_orphans;
  stacks_.round_closes();
  standbys_.round_is_over();
  for (Worker& each : workers_) each.before.reset();
  dying_.let_end(std::chrono::milliseconds::zero());
  is_closing_ = true;
  close_timer_.arm(kDyingLimit, [this] {
    dying_.give_up(parts_.log);
    go_on_closing();
  });
  go_on_closing();
}

// Processes that were killed and whose end is awaited must not be taken for orphans.
void Workers::go_on_closing() {
  const bool are_gone =
      dying_.are_all_gone() && (standbys_.are_all_for_ranks_gone() || !close_timer_.is_armed());
  if (!is_closing_ || !are_gone) return;
  is_closing_ = false;
  close_timer_.cancel();
  reaper_.end_orphans({process_groups_, spares_orphans_}, [this] { emit(worker_event::Closed{}); });
}

// ---- workers end

void Workers::on_end(int local_rank, std::uint64_t number, ExitStatus status) {
  if (dying_.ended(number)) {
    reaper_.reap();
    return go_on_closing();
  }
  worker_ended(local_rank, status, worker(local_rank).process->pid());
}

void Workers::worker_ended(int local_rank, ExitStatus status, pid_t pid) {
  if (const auto link = worker(local_rank).link) link->ended();
  output_.ended(local_rank);
  rdzv::WorkerFailure end = failure_of(local_rank, status, pid);
  const bool is_preempted = job_.preempt_signal && status.signal == job_.preempt_signal;
  const Worker& ending = worker(local_rank);
  const bool has_left =
      is_preempted || ending.was_signalled_to_leave || (ending.link && ending.link->has_left());
  end.was_told_to_stop = is_stopping_ || is_preempted || (has_left && status.is_success());
  emit(worker_event::Ending{local_rank, status, end.was_told_to_stop});
  death_watch_.forget(pid);
  Worker ended = std::exchange(worker(local_rank), Worker());
  if (ended.not_started) note_refusal(end, *ended.not_started);
  if (job_.standbys.prepares) worker(local_rank).before = std::move(ended.link);
  replacement_.ended(local_rank);
  reaper_.reap();
  if (is_preempted) emit(worker_event::Preempted{status.signal});
  // If it was told to stop, only SIGKILL may mean that it ran out of memory.
  const bool may_be_out_of_memory = status.signal == SIGKILL || !end.was_told_to_stop;
  if (!status.is_success() && may_be_out_of_memory) {
    end.killed_for_memory = oom_watch_.take_kill();
  }
  if (status.is_success() || ended.not_started || !ended.nan.empty()) {
    return report_end(std::move(end), has_left);
  }
  if (ended.error_file.empty()) return explain_end(std::move(end), has_left);
  files_.run<std::optional<WorkerError>>(
      kErrorFileLimit, [file = ended.error_file] { return read_error_file(file); },
      [this, end = std::move(end), has_left,
       file = ended.error_file](std::optional<std::optional<WorkerError>> read) {
        rdzv::WorkerFailure known = end;
        if (!read) parts_.log.warn(file + " cannot be read: its file system does not answer");
        if (read && *read) add_error(known, **read, file);
        explain_end(std::move(known), has_left);
      });
}

// A worker that ends by itself may do so because of its GPU.
void Workers::explain_end(rdzv::WorkerFailure end, bool has_left) {
  if (!end.was_told_to_stop && end.hang.empty() && end.asked_by.empty()) gpus_.explain(end);
  report_end(std::move(end), has_left);
}

void Workers::report_end(rdzv::WorkerFailure end, bool has_left) {
  worker_event::Ended event{std::move(end), std::nullopt, has_left};
  if (event.end.status.is_success()) {
    standbys_.round_is_over();  // no worker is replaced from now on: the part of this one is done
  } else {
    event.replaceable = replaceable(event.end);
  }
  emit(std::move(event));
  look_whether_all_are_parked();
}

rdzv::WorkerFailure Workers::failure_of(int local_rank, ExitStatus status, pid_t pid) const {
  const Worker& its = worker(local_rank);
  rdzv::WorkerFailure failure;
  failure.rank = round_.rank_offset + local_rank;
  failure.local_rank = local_rank;
  failure.node_rank = round_.node_rank;
  failure.host = parts_.host;
  failure.pid = pid;
  failure.status = status;
  failure.when = std::chrono::system_clock::now();
  if (!its.nan.empty()) note_nan(failure, its.nan);  // it may have ended before it was killed
  if (pid == 0 || failure.status.is_success()) return failure;
  failure.stderr_tail = output_.stderr_tail(local_rank);
  failure.log_dir = output_.log_directory_of(local_rank);
  if (its.link) failure.progress = with_calls(its.link->progress(), view_.calls(local_rank));
  if (status.signal == SIGKILL && !its.hang.empty()) {
    failure.hang = its.hang;
    failure.message = its.hang_stack;
  }
  if (status.signal == SIGKILL) failure.asked_by = its.asked_by;
  return failure;
}

// ---- replacement in place

Result<StandbyPool::Blueprint> Workers::blueprint_of_prepared(int local_rank) {
  std::atomic<pid_t>* const slot = standbys_.free_slot();
  if (slot == nullptr && reaper_.keeper_slot(0) != nullptr) {
    return fail(ErrorCode::kResourceExhausted, "too many workers are still ending");
  }
  // Not the one of the worker, which may fail while this one makes its set-up.
  const int number_of_file = ++made_for_replacement_;
  std::string error_file = output_.error_file_of(number(round_.round), local_rank);
  if (!error_file.empty()) error_file += "." + std::to_string(number_of_file);
  StandbyPool::Blueprint made = blueprint(local_rank, error_file);
  if (!made.link) return fail(ErrorCode::kResourceExhausted, "a standby got no link");
  made.spec.environment.push_back(std::string(link::kPreparedVariable) + "=1");
  if (const auto& its = worker(local_rank).link; its && its->mirror() >= 0) {
    made.spec.link_mirror_fd = its->mirror();
    made.spec.environment.push_back(std::string(link::kMirrorVariable) + "=" +
                                    std::to_string(its->mirror()));
  }
  made.spec.keeper_slot = slot;
  if (output_.removes_error_files() && slot != nullptr) {
    const auto of_rank =
        static_cast<std::size_t>(local_rank) * 2 + static_cast<std::size_t>(number_of_file % 2);
    reaper_.keep_error_file(workers_.size() + 1 + of_rank, error_file);
  }
  return made;
}

// From a blank standby, if one waits.
Result<std::unique_ptr<WorkerProcess>> Workers::start_prepared(
    const ProcessSpec& spec, WorkerProcess::OnEnd on_end, WorkerProcess::OnStarted on_started) {
  Result<std::unique_ptr<WorkerProcess>> process = standbys_.take(spec, on_end);
  if (*process != nullptr) {
    // It waits in the group of the next round.
    if (!reaper_.move_into_control_group((*process)->pid())) reaper_.leave_control_group();
    return process;
  }
  process = start_process_(parts_.io, spec, std::move(on_end), std::move(on_started));
  if (process && !(*process)->is_in_control_group()) reaper_.leave_control_group();
  return process;
}

bool Workers::takes_part(const Worker& worker) {
  return worker.process && worker.link &&
         (worker.link->can_recover() || worker.link->is_prepared());
}

ReplacementCore::Standing Workers::standing_of(const Worker& worker) {
  using Standing = ReplacementCore::Standing;
  if (!worker.process) return Standing::kGone;
  if (takes_part(worker)) return Standing::kTakesPart;
  return status_of_dying(worker.process->pid()) ? Standing::kDying : Standing::kCannotCome;
}

// Called when a worker has ended. A second dying worker has closed its link already; it gets a call of its own.
std::optional<Replaceable> Workers::replaceable(const rdzv::WorkerFailure& failure) {
  const auto& before = worker(failure.local_rank).before;
  if (!before) return std::nullopt;  // the node has no standbys
  const auto [committed, generation] = before->recovered();
  const ReplacementCore::Remains remains{before->mirror() >= 0, before->has_refused(), committed,
                                         generation};
  std::vector<ReplacementCore::Standing> standings;
  std::ranges::transform(workers_, std::back_inserter(standings), &standing_of);
  return replacement_.failed(failure, remains, standbys_.waits_for(failure.local_rank), standings);
}

void Workers::on_hello(int local_rank) {
  if (!job_.standbys.prepares) return;
  const Worker& its = worker(local_rank);
  if (!its.process || !its.link) return;
  std::vector<bool> can_recover;
  for (const Worker& each : workers_) {
    can_recover.push_back(each.link && each.link->can_recover());
  }
  const ReplacementCore::Hello hello = replacement_.hello(local_rank, can_recover);
  if (hello.cannot_regroup) emit(worker_event::CannotRegroup{local_rank});
  if (!hello.is_watched) return;
  death_watch_.watch(its.process->pid(), its.link->worker_page(),
                     [this, local_rank, number = its.number](int wait_status) {
                       on_early_death(local_rank, number, wait_status);
                     });
  if (!hello.can_all_recover) return;
  emit(worker_event::CanRecover{});
  standbys_.all_can_recover();
}

// The pidfd reports this end again later.
void Workers::on_early_death(int local_rank, std::uint64_t number, int wait_status) {
  Worker& its = worker(local_rank);
  if (!its.process || its.number != number) return;
  if (!replacement_.takes_early_death(standbys_.waits_for(local_rank))) return;
  const pid_t pid = its.process->pid();
  dying_.add(std::move(its.process), number);
  worker_ended(local_rank, status_of(wait_status), pid);
}

void Workers::replace(const Replace& what) {
  const std::optional<rdzv::WorkerFailure> failure = replacement_.replaced(what);
  pid_t newcomer = 0;
  if (what.local_rank) {
    // Else the leader starts a new round.
    if (!take_place(*what.local_rank, what)) {
      return emit(worker_event::NotReplaced{*what.local_rank, failure.value()});
    }
    newcomer = worker(*what.local_rank).process->pid();
  }
  for (int local_rank = 0; local_rank < count(); ++local_rank) {
    if (local_rank == what.local_rank) continue;
    const Worker& each = worker(local_rank);
    if (!takes_part(each) || each.link->tell_regroup(what.rank, what.generation)) continue;
    parts_.log.warn("rank " + std::to_string(round_.rank_offset + local_rank) +
                    " does not read what its agent sends over its link");
  }
  emit(worker_event::Replaced{what, newcomer});
}

bool Workers::take_place(int local_rank, const Replace& what) {
  const auto before = std::exchange(worker(local_rank).before, nullptr);
  if (!before || !standbys_.waits_for(local_rank)) return false;
  auto streams = output_.open(number(round_.round), identity_of(local_rank));
  if (!streams) {
    parts_.log.warn("rank " + std::to_string(what.rank) + ": " + streams.error().to_string());
    return false;
  }
  const std::uint64_t number = ++processes_;
  const bool waits_for_memory = standbys_.is_unprepared(local_rank);
  auto taken = standbys_.take_place(local_rank, what.rank, what.generation,
                                    streams->stdout_fd >= 0 ? streams->stdout_fd : STDOUT_FILENO,
                                    streams->stderr_fd >= 0 ? streams->stderr_fd : STDERR_FILENO,
                                    *before, teller_of_end(local_rank, number));
  output_.started(local_rank);
  if (!taken) {
    output_.ended(local_rank);
    return false;
  }
  if (waits_for_memory) dying_.let_end(kLastThreadLimit);  // which the one before still has
  output_.set_error_file(local_rank, taken->error_file);
  note_process(local_rank, *taken->process);
  taken->link->listen(link_hooks(local_rank));
  parts_.log.debug("rank " + std::to_string(what.rank) + " is pid " +
                   std::to_string(taken->process->pid()) + " now");
  worker(local_rank) = {.process = std::move(taken->process),
                        .link = std::move(taken->link),
                        .number = number,
                        .error_file = std::move(taken->error_file)};
  worker(local_rank).link->set(boundaries_);
  replacement_.took_place(local_rank);
  return true;
}

void Workers::on_committed(int local_rank, std::uint32_t generation) {
  const bool is_over = replacement_.committed(local_rank, generation);
  emit(worker_event::Committed{local_rank, generation});
  if (is_over) dying_.let_end(kLastThreadLimit);
}

std::string Workers::why_no_standby() const {
  if (job_.restarts.max_restarts == 0) return "--max-restarts is 0, so there can be no restart";
  if (!job_.standbys.why_none.empty()) return job_.standbys.why_none;
  if (job_.standbys.wanted == 0) return "--standby is off";
  return "--standby=auto prepares no standby where there is a GPU; --standby=N does";
}

Result<void> Workers::kill_to_replace(int rank, const std::string& by) {
  const int local_rank = rank - round_.rank_offset;
  const auto refuse = [](const std::string& why) { return fail(ErrorCode::kUnavailable, why); };
  if (local_rank < 0 || local_rank >= count() || !worker(local_rank).process) {
    return refuse("no worker with rank " + std::to_string(rank) + " runs here");
  }
  if (!standbys_.waits_for(local_rank)) {
    const auto status = standbys_.replacement();
    return refuse("rank " + std::to_string(rank) + " cannot be replaced in place: " +
                  (!status                     ? why_no_standby()
                   : !status->why_none.empty() ? status->why_none
                   : !replacement_.could_all_recover()
                       ? "not all workers of its node have said that they can recover"
                       : "its standby is not ready yet"));
  }
  worker(local_rank).asked_by = by;
  worker(local_rank).process->signal_group(SIGKILL);
  return {};
}

std::optional<ReplacementStatus> Workers::replacement() const {
  auto status = standbys_.replacement();
  if (!status) return std::nullopt;
  status->can_recover = replacement_.could_all_recover();
  status->wanted = count();
  status->generation = replacement_.generation();
  return status;
}

// ---- at any time

void Workers::signal_all(int signal) {
  for (const Worker& each : workers_) {
    if (!each.process) continue;
    // A notice goes to the worker alone: its children may not handle the signal.
    signal == SIGCONT ? each.process->resume() : each.process->signal_worker(signal);
  }
  if (signal == SIGCONT) standbys_.signal_all_for_ranks(SIGCONT);
}

void Workers::pause_all() {
  for (const Worker& each : workers_) {
    if (each.process) each.process->pause();
  }
  standbys_.signal_all_for_ranks(SIGSTOP);
}

bool Workers::is_to_end(int local_rank, const std::string& hang, const std::string& stack) {
  Worker& each = worker(local_rank);
  if (!each.process) return false;
  each.hang = hang;
  each.hang_stack = stack;
  return true;
}

bool Workers::is_to_end_for_nan(int local_rank, const std::string& why) {
  Worker& each = worker(local_rank);
  if (!each.process) return false;
  each.nan = why;
  return true;
}

// As far as their links tell. A program that joins the others need not report steps later.
bool Workers::are_workers_starting() const {
  return std::ranges::any_of(workers_, [](const Worker& each) {
    const auto progress = each.link ? each.link->progress() : std::nullopt;
    return progress && !progress->step && progress->phase == WorkerPhase::kJoining;
  });
}

pid_t Workers::worker_like_a_zygote() const {
  const auto worker = std::ranges::find_if(
      workers_, [](const Worker& each) { return each.link && each.link->can_be_zygote(); });
  return worker == workers_.end() ? 0 : worker->process->pid();
}

bool Workers::is_owned(pid_t child) const {
  if (stacks_.owns(child) || dying_.owns(child)) return true;
  if (standbys_.owns(child) ||
      std::ranges::any_of(own_helper_, [&](const auto& owns) { return owns(child); })) {
    return true;
  }
  return std::ranges::any_of(workers_, [child](const Worker& each) {
    return each.process && each.process->pid() == child;
  });
}

}  // namespace ddprun::agent
