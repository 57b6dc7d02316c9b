#include "agent/supervisor/supervisor.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "agent/core/exit_code.h"
#include "agent/core/leader_config.h"
#include "agent/dashboard/listen_address.h"
#include "agent/failure/failure_report.h"
#include "agent/output/log.h"
#include "agent/process/debugger_wait.h"
#include "agent/process/orphans.h"
#include "agent/supervisor/ending.h"
#include "rendezvous/common/exit_codes.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kFlushLimit = 500ms;  // for what is recorded
constexpr std::chrono::milliseconds kLogsLimit = 2s;      // for those who follow logs
constexpr std::chrono::milliseconds kReportLimit = 2s;    // for those to Kubeflow Trainer
constexpr auto kPausePatience = 100ms;  // with a console that does not take what is queued
constexpr std::chrono::milliseconds kStacksLimit = 5s;  // that a kill waits for them, at most
// That an end takes at most beside the workers' grace: stacks, workers that do not die, orphans,
// the other nodes, the last words.
constexpr std::chrono::milliseconds kEndLimit = 40s;

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

// What there is to say of the end in one line.
std::string headline(const rdzv::JobOutcome& outcome, const std::string& program) {
  const std::string report = failure_report(outcome, program);
  return report.empty() ? program + " succeeded" : report.substr(0, report.find('\n'));
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
      events_(io_.get_executor(), console_, job, host_),
      signals_(
          io_, [this](int signal) { on_stop_signal(signal); },
          [this](int signal) { on_control_signal(signal); }),
      workers_({io_, console_, log_, output_, job, host_, agent_id_}, worker_events()),
      stop_timer_(io_),
      core_(node_config(job, /*leads=*/false)),
      store_(job, [log = log_](std::string_view line) { log->warn("store: {}", line); }),
      service_(
          io_.get_executor(), job.environment,
          [this] { return situation_text(status_of(snapshot())); },
          [this](std::string_view sentence) { log_->warn("{}", sentence); }),
      kubeflow_(
          io_, job.environment, [this] { return job_progress_of(snapshot()); },
          [this](std::string_view sentence) { log_->warn("{}", sentence); }),
      query_(io_, {job.run_id, job.program.name, job.version, host_}, query_access()),
      leader_(io_, job, host_, log_, query_,
              {.found = [this](const NodeConfig& config) { found_leader(config); },
               .not_found =
                   [this](const Error& error, int exit_code) {
                     if (!outcome_) cannot_run(error, exit_code);
                   },
               .said = [this](NodeEvent event) { post(std::move(event)); },
               .store_client =
                   [this](rdzv::StoreClientArrived client) {
                     store_.adopt(std::move(client.socket), std::move(client.received));
                   }}),
      logs_(io_, output_,
            [this] {
              return LogReader::Node{host_, workers_.round().rank_offset, job_.local_world_size};
            }),
      control_(io_, key_of(job, agent_id_), job.run_id,
               {query_, logs_, [this] { return stop_job(); }, [this] { return restart_round(); }}) {
}

Supervisor::~Supervisor() = default;

int Supervisor::run() {
  if (auto ready = prepare(); ready) {
    events_.job_started();
    find_store_address();
    open_control();
    open_watch();
    while (!outcome_) io_.run_one();
    await_last_logs();
    await_leaders_leave();
    await_last_report();
  } else {
    cannot_run(ready.error(), kExitCannotRun);
  }
  if (recorder_) recorder_->flush(std::chrono::steady_clock::now() + kFlushLimit);
  status_line_.reset();
  service_.over(headline(*outcome_, job_.program.name));
  if (metrics_) metrics_->over(headline(*outcome_, job_.program.name));
  Ending({io_, console_, output_, events_, signals_.stop_signals()}, job_)
      .run(*outcome_, workers_.stacks_text(), log_->should_log(spdlog::level::info));
  return exit_code_of(job_, *outcome_);
}

Result<void> Supervisor::prepare() {
  console_.notify_with([this](std::string_view sentence) { log_->warn("{}", sentence); });
  if (auto opened = events_.open(); !opened) return opened;
  if (!job_.record.empty()) {
    auto recorder = CoreRecorder::open(io_.get_executor(), console_, job_.record);
    if (!recorder) return fail(std::move(recorder.error()));
    recorder_ = std::move(*recorder);
  }
  if (auto prepared = workers_.prepare(); !prepared) return prepared;
  signals_.start(job_);
  if (console_.can_have_live_line(Stream::kStderr) &&
      output_.owns_terminals(job_.local_world_size)) {
    status_line_.emplace(io_.get_executor(), console_, [this] { return status_of(snapshot()); });
    status_line_->start();
  }
  return {};
}

// A log folder that does not answer is waited for, as by every round; a signal ends the wait.
void Supervisor::prepare_output() {
  output_.prepare([this](Result<void> made) {
    if (outcome_) return;
    if (!made) return cannot_run(made.error(), kExitCannotRun);
    service_.ready();
    leader_.find(recorder_.get());
  });
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
    if (!was_stopping && core_.is_stopping()) events_.round_stopping(core_.round(), event);
    for (const NodeAction& action : actions) {
      std::visit([this](const auto& a) { perform(a); }, action);
    }
  }
  is_pumping_ = false;
}

void Supervisor::cannot_run(const Error& error, int exit_code) {
  rdzv::JobOutcome outcome;
  outcome.kind = rdzv::JobOutcome::Kind::kCannotRun;
  outcome.exit_code = exit_code;
  outcome.sentence = error.to_string();
  perform(Finish{outcome});
}

// ---- the leader

void Supervisor::find_store_address() {
  const std::string& name =
      job_.nodes.is_alone() ? job_.store_endpoint.address : job_.nodes.local_addr;
  if (name.empty()) return prepare_output();
  find_listen_address(lookup_, name, [this](Result<std::string> address) {
    if (outcome_) return;
    if (!address) return cannot_run(address.error(), kExitCannotRun);
    store_address_ = *std::move(address);
    prepare_output();
  });
}

void Supervisor::found_leader(const NodeConfig& config) {
  if (outcome_) return;
  core_ = NodeCore(config);
  if (recorder_) recorder_->note(NodeBegan{config});
  leader_.join();
}

// ---- those who look at the job, and those who want it otherwise

JobQuery::Access Supervisor::query_access() {
  return {.node_status = [this](std::size_t events_max) { return node_status(events_max); },
          .on_event =
              [this](std::function<void(const std::string&)> told) {
                return events_.on_line(std::move(told));
              },
          .leader = [this] { return leader_.leader(); }};
}

// A job that cannot be asked runs all the same.
void Supervisor::open_control() {
  const auto opened = control_.open(job_.environment);
  if (opened) return log_->debug("ddpctl reaches this job at {}", control_.path());
  const bool is_wrong = opened.error().code == ErrorCode::kPermissionDenied;
  log_->log(is_wrong ? spdlog::level::warn : spdlog::level::info,
            "ddpctl cannot reach this job: {}", opened.error().to_string());
}

// Nor is a port that is taken a reason to end one that can train.
void Supervisor::open_watch() {
  if (!job_.metrics_port) return;
  auto server = MetricsServer::start(io_, *job_.metrics_port, query_,
                                     {job_.run_id, job_.program.name, job_.version});
  if (!server) {
    return log_->warn("--metrics-port={}: {}; nobody can watch the job there, the job goes on",
                      *job_.metrics_port, server.error().to_string());
  }
  metrics_ = *std::move(server);
  // Who gave the port knows it.
  log_->log(*job_.metrics_port == 0 ? spdlog::level::warn : spdlog::level::info,
            "metrics and a live page: http://127.0.0.1:{}/", metrics_->port());
}

NodeStatus Supervisor::node_status(std::size_t events_max) const {
  const auto now = std::chrono::steady_clock::now();
  NodeStatus status;
  events_.history().fill(status, now, events_max);
  status.host = host_;
  status.agent_pid = ::getpid();
  fill(status, snapshot());
  for (WorkerStatus& worker : status.workers) {
    worker.device = device_of(job_, worker.local_rank);
  }
  return status;
}

// The leader ends the job for all; where there is none that would hear of it, this node ends.
Result<void> Supervisor::stop_job() {
  if (outcome_) return fail(ErrorCode::kUnavailable, "the job has ended already");
  events_.requested("stop");
  log_->warn("a stop of the job was asked for");
  const bool has_left = core_.has_left();
  if (leader_.has_been_heard() && !has_left) leader_.tell(rdzv::StopAsked{SIGTERM});
  // Preempted workers have their own time, whatever the leader says.
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
  events_.requested("restart");
  leader_.tell(rdzv::RestartAsked{core_.round()});
  return core_.round();
}

// ---- the leader, at the end

// While the leader can still be asked. What workers wrote last has to be in their files first.
void Supervisor::await_last_logs() {
  if (!control_.is_busy()) return;
  const auto is_delivered = std::make_shared<bool>(false);
  output_.when_delivered(kLogsLimit, [is_delivered] { *is_delivered = true; });
  while (!*is_delivered && !is_in_a_hurry_) io_.run_one();
  control_.finish();
  const auto until = std::chrono::steady_clock::now() + kLogsLimit;
  while (control_.is_busy() && !is_in_a_hurry_) {
    if (io_.run_one_until(until) == 0) return;
  }
}

// Nobody should have to find out by a time limit that the job has ended, or that this node has.
void Supervisor::await_leaders_leave() {
  const auto until = std::chrono::steady_clock::now() + leader_.patience();
  while (!leader_.may_exit() && !is_in_a_hurry_) {
    if (io_.run_one_until(until) == 0) return;
  }
}

void Supervisor::await_last_report() {
  kubeflow_.send_last();
  const auto until = std::chrono::steady_clock::now() + kReportLimit;
  while (kubeflow_.is_busy() && !is_in_a_hurry_) {
    if (io_.run_one_until(until) == 0) return;
  }
}

void Supervisor::perform(const TellLeader& action) { leader_.tell(action.message); }

void Supervisor::perform(const Rejoin& action) { leader_.join(action.last_round); }

void Supervisor::perform(const Announce& action) {
  if (const auto* warning = std::get_if<rdzv::Warning>(&action.notice)) {
    log_->warn("{}", warning->sentence);
  } else if (const auto* wait = std::get_if<rdzv::WaitForNodes>(&action.notice)) {
    announce_wait(*wait);
  } else if (const auto* spare = std::get_if<rdzv::WaitAsSpare>(&action.notice)) {
    log_->warn("this node waits: {}",
               spare->why == rdzv::WaitAsSpare::Why::kNoRoom
                   ? "the job has all the nodes that it takes; it gets the place of one that goes"
                   : "some workers of the job have finished already");
  }
}

// The first one only says that the others are not there yet, as nobody expects them to be.
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

void Supervisor::perform(const CloseStore&) { store_.close(); }

void Supervisor::perform(const OpenRoundStore& action) {
  StoreResult result{action.round, 0, {}};
  const std::string own = store_address_.empty() ? leader_.local_address() : "";
  if (auto port = store_.open(store_address_, own); port) {
    result.port = *port;
  } else {
    result.error = "cannot open the store that workers meet at: " + port.error().to_string();
    if (port.error().code != ErrorCode::kResourceExhausted) {
      result.error += "; give another --master-port, or none and get a free one";
    }
  }
  queue_.push_back(std::move(result));
}

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
  workers_.drop_stacks();
  stop_timer_.arm(action.after, [this, action] { on_limit_over(action); });
}

void Supervisor::on_limit_over(const ArmTimer& limit) {
  using Limit = ArmTimer::Limit;
  const auto expired = [this, round = limit.round] { post(TimerExpired{round}); };
  if (limit.limit == Limit::kKill) return expired();
  // All have ended, and the last error file is being read: nobody is to be killed.
  if (workers_.running() == 0) return;
  workers_.grace_is_over();
  grace_ = limit.after;
  if (limit.after == 0ms) return expired();
  if (limit.limit == Limit::kGrace) {
    log_->warn("workers did not end in time and get SIGKILL");
    return workers_.take_stacks(kStacksLimit, expired);
  }
  // No stacks: they wait for the peer that is gone, and the next round waits for them.
  log_->warn(
      "workers did not end within {} s after the failure and get SIGKILL; "
      "--failure-shutdown-timeout gives them longer",
      std::chrono::duration<double>(limit.after).count());
  expired();
}

void Supervisor::perform(const CloseRound& action) {
  stop_timer_.cancel();
  workers_.close([this, round = action.round] {
    store_.close();
    post(RoundClosed{round});
  });
}

void Supervisor::perform(const Finish& action) {
  outcome_ = action.outcome;
  events_.finished(action.outcome, exit_code_of(job_, action.outcome));
}

// ---- workers

WorkerGroup::Events Supervisor::worker_events() {
  return {
      .event = [this](NodeEvent event) { post(std::move(event)); },
      .started =
          [this](const std::vector<pid_t>& pids) {
            events_.round_started(workers_.round(), pids);
            service_.status_may_have_changed();
            kubeflow_.round_began();
          },
      .ending =
          [this](int local_rank, ExitStatus status) {
            if (workers_.round().rank_offset + local_rank == 0) kubeflow_.look();
            // Slurm may signal the whole tree of processes below it, so that workers get it first.
            const bool is_notice = job_.preempt_signal && status.signal == job_.preempt_signal;
            if (is_notice && !core_.is_stopping()) preempted_by(*job_.preempt_signal);
          },
      .ended = [this](const rdzv::WorkerFailure& ended,
                      bool was_told_to_stop) { events_.worker_exited(ended, was_told_to_stop); },
      .killed =
          [this](int local_rank, pid_t pid) {
            events_.worker_killed_after_grace(workers_.round().round, local_rank, pid, grace_);
          },
      .keeper_replaced = [this](pid_t pid) { events_.keeper_replaced(pid); },
      .is_stopping = [this] { return core_.is_stopping(); }};
}

NodeSnapshot Supervisor::snapshot() const {
  NodeSnapshot node;
  node.state = outcome_              ? NodeState::kEnded
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
      events_.times().wall(std::chrono::steady_clock::now()));
  return node;
}

// ---- signals

void Supervisor::on_stop_signal(int signal) {
  if (outcome_) is_in_a_hurry_ = true;
  events_.signal_received(signal);
  if (signal == job_.preempt_signal) {
    preempted_by(signal);
  } else {
    log_->warn("got {}, stopping the workers", signal_name(signal));
    post(StopSignal{signal});
    service_.stopping(job_.shutdown_timeout + kEndLimit);
  }
}

void Supervisor::preempted_by(int signal) {
  if (std::exchange(is_preempted_, true)) return;
  log_->warn("got {}: the job is preempted, workers are asked to leave", signal_name(signal));
  post(PreemptSignal{signal});
}

void Supervisor::on_control_signal(int signal) {
  if (signal == SIGWINCH) return output_.window_changed();
  events_.signal_received(signal);
  if (signal == SIGTSTP) return pause();
  workers_.signal_all(signal);
}

// Ctrl-Z: the workers have sessions of their own, so the terminal's stop does not reach them.
void Supervisor::pause() {
  workers_.pause_all();
  if (status_line_) status_line_->hide();
  console_.flush(std::chrono::steady_clock::now() + kPausePatience);
  ::kill(::getpid(), SIGSTOP);
  // Continued: our own SIGCONT handler forwards it to the workers.
  if (status_line_) status_line_->start();
}

}  // namespace ddprun::agent
