#include "agent/supervisor/supervisor.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>
#include <variant>

#include "agent/core/exit_code.h"
#include "agent/core/leader_config.h"
#include "agent/failure/failure_report.h"
#include "agent/output/log.h"
#include "agent/process/debugger_wait.h"
#include "agent/process/orphans.h"
#include "rendezvous/common/exit_codes.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kFlushLimit = 500ms;  // for the recording
constexpr auto kPausePatience = 100ms;  // until the console has written what is queued
// Upper limit for the end of the job after the workers' grace period: stacks, SIGKILL, orphans, the
// other nodes, the report.
constexpr std::chrono::milliseconds kEndLimit = 60s;

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace

Supervisor::Supervisor(const Job& job)
    : job_(job),
      host_(host_name()),
      agent_id_(make_agent_id(host_)),
      console_(io_.get_executor(), {.look = look_from(job.environment)}),
      log_(make_logger(console_, job.environment)),
      output_(io_.get_executor(), console_, job.output, job.run_id,
              value_or_empty(job.environment, "TMPDIR")),
      observers_({io_, console_, log_, job, host_}, [this] { return snapshot(); }),
      core_(node_config(job)),
      signals_(
          io_, [this](int signal) { on_stop_signal(signal); },
          [this](int signal) { on_control_signal(signal); }),
      workers_({io_, console_, log_, output_, job, host_, agent_id_}, worker_events()),
      store_(io_, job, [log = log_](std::string_view line) { log->warn("store: {}", line); }),
      queries_({io_, log_, output_, job, host_, agent_id_}, query_access()),
      leader_(io_, job, host_, log_, queries_.query(),
              {.event = [this](NodeEvent event) { post(std::move(event)); },
               .store_client =
                   [this](rdzv::StoreClientArrived client) {
                     store_.adopt(std::move(client.socket), std::move(client.received));
                   }}),
      end_(
          {io_, job, console_, output_, observers_, queries_, leader_},
          [this] { return workers_.stacks_text(); }, log_->should_log(spdlog::level::info)),
      timer_(io_) {}

Supervisor::~Supervisor() = default;

int Supervisor::run() {
  if (const auto ready = prepare()) {
    store_.prepare([this](const Result<void>& prepared) {
      prepared ? find_leader() : cannot_run(prepared.error());
    });
    if (!core_.is_over()) queries_.open();
  } else {
    cannot_run(ready.error());
  }
  while (!core_.has_ended()) {
    io_.run_one();
    leader_.look();
  }
  workers_.let_keeper_go();
  if (recorder_) recorder_->flush(std::chrono::steady_clock::now() + kFlushLimit);
  return exit_code_of(job_, *outcome_);
}

// ---- before there is a leader

Result<void> Supervisor::prepare() {
  console_.notify_with([this](std::string_view sentence) { log_->warn("{}", sentence); });
  if (auto opened = observers_.open(); !opened) return opened;
  if (!job_.record.empty()) {
    auto recorder = CoreRecorder::open(io_.get_executor(), console_, job_.record);
    if (!recorder) return fail(std::move(recorder.error()));
    recorder_ = std::move(*recorder);
    recorder_->note(NodeBegan{node_config(job_)});
  }
  if (auto prepared = workers_.prepare(); !prepared) return prepared;
  signals_.start(job_);
  observers_.job_started(/*has_status_line=*/console_.can_have_live_line(Stream::kStderr) &&
                         output_.owns_terminals(job_.local_world_size));
  return {};
}

// Waits for a log folder that does not answer, as every round does; a signal ends the wait.
void Supervisor::find_leader() {
  if (core_.is_over()) return;
  output_.prepare([this](const Result<void>& made) {
    if (!made) return cannot_run(made.error());
    if (core_.is_over()) return;
    observers_.ready();
    leader_.find(recorder_.get());
  });
}

void Supervisor::cannot_run(const Error& error) {
  post(CannotRun{kExitCannotRun, error.to_string()});
}

// ---- events and actions

void Supervisor::post(NodeEvent event) {
  queue_.push_back(std::move(event));
  if (!is_pumping_) pump();
}

void Supervisor::pump() {
  is_pumping_ = true;
  while (!queue_.empty()) {
    const NodeEvent event = std::move(queue_.front());
    queue_.pop_front();
    const bool was_stopping = core_.is_stopping();
    const auto actions = core_.step(event);
    if (recorder_) recorder_->note(NodeInput{event}, actions.size());
    if (!was_stopping && core_.is_stopping()) observers_.round_stopping(core_.round(), event);
    for (const NodeAction& action : actions) {
      std::visit([this](const auto& a) { perform(a); }, action);
    }
  }
  is_pumping_ = false;
}

// ---- the leader, and the store

void Supervisor::perform(const TellLeader& action) { leader_.tell(action.message); }

void Supervisor::perform(const Join& action) { leader_.join(action.last_round); }

void Supervisor::perform(const Announce& action) {
  if (const auto* warning = std::get_if<rdzv::Warning>(&action.notice)) {
    log_->warn("{}", warning->sentence);
  } else if (const auto* wait = std::get_if<rdzv::WaitForNodes>(&action.notice)) {
    announce_wait(*wait);
  } else if (const auto* spare = std::get_if<rdzv::WaitAsSpare>(&action.notice)) {
    log_->warn("this node waits: {}",
               spare->why == rdzv::WaitAsSpare::Why::kNoRoom
                   ? "the job has its maximum number of nodes; this one joins when another leaves"
                   : "some workers of the job have finished already");
  }
}

// The first notice is not a warning: it is normal that nodes do not start at the same moment.
void Supervisor::announce_wait(const rdzv::WaitForNodes& wait) {
  const std::string needed =
      wait.min_nodes == wait.max_nodes
          ? std::to_string(wait.max_nodes)
          : std::to_string(wait.min_nodes) + " to " + std::to_string(wait.max_nodes);
  const auto level =
      std::exchange(was_told_to_wait_, true) ? spdlog::level::warn : spdlog::level::info;
  log_->log(level, "waiting for nodes: {} of {} are here, {} s left", wait.present, needed,
            wait.left.count());
}

void Supervisor::perform(const OpenRoundStore& action) {
  post(store_.open(action.round, leader_.local_address()));
}

void Supervisor::perform(const CloseStore&) { store_.close(); }

// ---- workers

void Supervisor::perform(const StartWorkers& action) {
  if (const std::string change = describe_change(action.start, host_); !change.empty()) {
    log_->warn("{}", change);
  }
  for (const int rank : job_.debugged_ranks) {
    const int world_size = action.start.world_size;
    if (rank >= world_size) log_->warn("{}", nobody_to_debug(rank, world_size));
  }
  workers_.begin(action.start);
}

void Supervisor::perform(const SignalWorker& action) {
  workers_.signal(action.local_rank, action.signal);
}

void Supervisor::perform(const AskToLeave& action) {
  workers_.ask_to_leave(action.local_rank, action.signal);
}

void Supervisor::perform(const ArmTimer& action) {
  timer_.arm(action.after, [this, timer = action.timer] { post(TimerExpired{timer}); });
}

// No message if all workers have ended (only an error file is still being read): none is killed.
void Supervisor::perform(const GraceOver& action) {
  workers_.grace_is_over();
  grace_ = action.grace;
  if (workers_.running() == 0 || action.grace == 0ms) return;
  if (!action.after_failure) {
    return log_->warn("workers did not end in time and get SIGKILL");
  }
  log_->warn(
      "workers did not end within {} s after the failure and get SIGKILL; "
      "--failure-shutdown-timeout gives them longer",
      std::chrono::duration<double>(action.grace).count());
}

void Supervisor::perform(const TakeStacks&) { workers_.take_stacks(); }

void Supervisor::perform(const CloseRound&) {
  timer_.cancel();
  workers_.close();
}

WorkerGroup::Events Supervisor::worker_events() {
  return {
      .event =
          [this](NodeEvent event) {
            if (std::holds_alternative<RoundClosed>(event)) store_.close();
            post(std::move(event));
          },
      .started =
          [this](const std::vector<pid_t>& pids) {
            observers_.round_started(workers_.round(), pids);
          },
      .ending =
          [this](int local_rank, ExitStatus status) {
            observers_.worker_ending(workers_.round().rank_offset + local_rank);
            // Slurm may signal all processes of the job, and a worker may get its signal first.
            const bool is_notice = job_.preempt_signal && status.signal == job_.preempt_signal;
            if (is_notice && core_.is_running()) preempted_by(*job_.preempt_signal);
          },
      .ended = [this](const rdzv::WorkerFailure& ended,
                      bool was_told_to_stop) { observers_.worker_exited(ended, was_told_to_stop); },
      .killed =
          [this](int local_rank, pid_t pid) {
            observers_.worker_killed_after_grace(workers_.round().round, local_rank, pid, grace_);
          },
      .keeper_replaced = [this](pid_t pid) { observers_.keeper_replaced(pid); },
      .is_stopping = [this] { return core_.is_stopping(); }};
}

// ---- the end

void Supervisor::perform(const Finish& action) {
  outcome_ = action.outcome;
  observers_.finished(action.outcome, exit_code_of(job_, action.outcome));
  end_.begin(action.outcome);
}

void Supervisor::perform(const TakeStep& action) {
  end_.take(action.step, [this, step = action.step] { post(StepTaken{step}); });
}

void Supervisor::perform(const Exit&) {}  // core_.has_ended(): run() returns

// ---- queries, and requests to stop or restart

QueryPort::Access Supervisor::query_access() {
  return {.job = {.node_status = [this](std::size_t events_max) { return node_status(events_max); },
                  .on_event =
                      [this](std::function<void(const std::string&)> told) {
                        return observers_.on_line(std::move(told));
                      },
                  .leader = [this] { return leader_.leader(); }},
          .first_rank = [this] { return workers_.round().rank_offset; },
          .stop = [this] { return stop_job(); },
          .restart = [this] { return restart_round(); }};
}

NodeSnapshot Supervisor::snapshot() const {
  NodeSnapshot node;
  node.state = core_.is_over()       ? NodeState::kEnded
               : !leader_.leader()   ? NodeState::kLooking
               : core_.is_waiting()  ? NodeState::kWaiting
               : core_.is_stopping() ? NodeState::kStopping
                                     : NodeState::kRunning;
  node.is_waiting = core_.is_waiting();
  node.is_stopping = core_.is_stopping();
  node.leads = leader_.is_here();
  node.round = workers_.round();
  node.running = workers_.running();
  for (int local_rank = 0; local_rank < job_.local_world_size; ++local_rank) {
    node.progress.push_back(workers_.progress(local_rank));
  }
  node.store = store_.status();
  node.wall = std::chrono::duration_cast<std::chrono::microseconds>(
      observers_.times().wall(std::chrono::steady_clock::now()));
  return node;
}

NodeStatus Supervisor::node_status(std::size_t events_max) const {
  NodeStatus status;
  observers_.history().fill(status, std::chrono::steady_clock::now(), events_max);
  status.host = host_;
  status.agent_pid = ::getpid();
  fill(status, snapshot());
  for (WorkerStatus& worker : status.workers) {
    worker.device = device_of(job_, worker.local_rank);
  }
  return status;
}

// The leader stops the job on all nodes. If it cannot be reached, this node alone stops.
Result<void> Supervisor::stop_job() {
  if (core_.is_over()) return fail(ErrorCode::kUnavailable, "the job has ended already");
  observers_.requested("stop");
  log_->warn("a stop of the job was asked for");
  const bool has_left = core_.has_left();
  if (leader_.has_been_heard() && !has_left) leader_.tell(rdzv::StopAsked{SIGTERM});
  // Preempted workers leave without a deadline, even after a RoundStop, so they are stopped here.
  if (!leader_.has_been_heard() || core_.leaves_in_its_own_time()) post(StopSignal{SIGTERM});
  if (!has_left) return {};
  return fail(ErrorCode::kUnavailable,
              "this node is leaving the job, which may go on without it: its own workers are told "
              "to stop; to stop the job, ask another of its nodes");
}

Result<Round> Supervisor::restart_round() {
  if (!core_.is_running()) {
    return fail(ErrorCode::kUnavailable,
                "no round runs on this node now, so there is none to restart: it is " +
                    std::string(name_of(snapshot().state)));
  }
  observers_.requested("restart");
  leader_.tell(rdzv::RestartAsked{core_.round()});
  return core_.round();
}

// ---- signals

void Supervisor::on_stop_signal(int signal) {
  if (core_.is_over()) {
    log_->warn("got {}: the end of the job is not waited for any longer", signal_name(signal));
    return post(StopSignal{signal});
  }
  observers_.signal_received(signal);
  if (signal == job_.preempt_signal) return preempted_by(signal);
  log_->warn("got {}, stopping the workers", signal_name(signal));
  post(StopSignal{signal});
  if (!core_.is_over()) observers_.stopping(job_.shutdown_timeout + kEndLimit);
}

void Supervisor::preempted_by(int signal) {
  if (std::exchange(is_preempted_, true)) return;
  log_->warn("got {}: the job is preempted, workers are asked to leave", signal_name(signal));
  post(PreemptSignal{signal});
}

void Supervisor::on_control_signal(int signal) {
  if (signal == SIGWINCH) return output_.window_changed();
  if (!core_.is_over()) observers_.signal_received(signal);
  if (signal == SIGTSTP) return pause();
  workers_.signal_all(signal);
}

// Ctrl-Z: the workers have sessions of their own, so the terminal's stop does not reach them.
void Supervisor::pause() {
  workers_.pause_all();
  observers_.pause();
  console_.flush(std::chrono::steady_clock::now() + kPausePatience);
  ::kill(::getpid(), SIGSTOP);
  // Runs after SIGCONT, which on_control_signal() forwards to the workers.
  observers_.resume();
}

}  // namespace ddprun::agent
