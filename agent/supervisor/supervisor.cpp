#include "agent/supervisor/supervisor.h"

#include <boost/asio/ip/host_name.hpp>
#include <filesystem>
#include <utility>
#include <variant>

#include "agent/core/leader_config.h"
#include "agent/failure/failure_report.h"
#include "agent/process/control_group.h"
#include "agent/process/process.h"
#include "agent/supervisor/minute.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/ranks.h"
#include "rendezvous/leader/leader_address.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kRecordingLimit = 500ms;  // for the recording

constexpr int kMinutesBetweenHealthChecks = 5;
constexpr std::chrono::milliseconds kHealthLimit = 30s;

// Tests do not wait so long.
std::chrono::milliseconds health_limit(const Environment& environment) {
  const auto limit = parse_number<int>(value_or_empty(environment, "DDPRUN_TEST_HEALTH_LIMIT_MS"));
  return limit ? std::chrono::milliseconds(*limit) : kHealthLimit;
}

HealthCheck::Spec health_spec(const Job& job) {
  std::error_code ec;
  std::vector<std::string> folders;
  if (!job.health_check.empty()) {
    const auto here = std::filesystem::current_path(ec);
    if (!ec) folders.push_back(here.string());
    if (!job.output.log_dir.empty()) folders.push_back(job.output.log_dir);
  }
  return {job.health_check, job.environment, std::move(folders),
          minute_of(job.environment) * kMinutesBetweenHealthChecks, health_limit(job.environment)};
}

AgentParts parts_of(boost::asio::io_context& io, Console& console, Log log, Output& output,
                    const Job& job) {
  boost::system::error_code ec;
  const std::string name = boost::asio::ip::host_name(ec);
  const std::string host = ec ? "localhost" : name;
  return {io, console, std::move(log), output, job, host, host + "-" + name_of_this_process()};
}

}  // namespace

Supervisor::Supervisor(const Job& job)
    : job_(job),
      console_(io_.get_executor(), {.look = look_from(job.environment)}),
      log_(console_, job.environment),
      output_(io_.get_executor(), console_, job.output, job.run_id,
              value_or_empty(job.environment, "TMPDIR")),
      parts_(parts_of(io_, console_, log_, output_, job)),
      report_(job, parts_.host, {core_, leader_, workers_, store_, observers_}),
      observers_(parts_, [this] { return report_.snapshot(); }),
      memory_(parts_, observers_.systemd),
      core_(node_config(job)),
      events_([this](const NodeEvent& event) { step(event); }),
      signals_(parts_, {core_, workers_, observers_},
               [this](NodeEvent event) { post(std::move(event)); }),
      workers_(parts_, keeper_, [this](const WorkerEvent& event) { on_worker_event(event); }),
      store_(io_, job,
             [log = log_](std::string_view line) { log.warn("store: " + std::string(line)); }),
      queries_(parts_, query_access()),
      leader_(io_, job, parts_.host, log_, queries_.query(), store_,
              [this](NodeEvent event) { post(std::move(event)); }),
      requests_(parts_, {core_, report_, leader_, workers_, observers_.events},
                [this](NodeEvent event) { post(std::move(event)); }),
      notices_(io_, job.preempt_notice, job.environment,
               {.notice = [this](const Notice& notice) { signals_.preempted_by(notice); },
                .warn = [log = log_](std::string_view line) { log.warn(line); },
                .debug = [log = log_](std::string_view line) { log.debug(line); }}),
      health_(io_, health_spec(job), health_hooks()),
      end_(
          parts_, {observers_, queries_, leader_},
          [this] {
            return nans_.remark() + gpus_.remark() + signals_.escalation() +
                   workers_.stacks().text() + memory_.remark() + health_remarks_;
          },
          log_.writes(Log::Level::kInfo)),
      hangs_(parts_, {report_, workers_, store_, queries_.query(), observers_.events},
             [this](const WorkerHung& hung) { post(hung); }),
      slow_ranks_(parts_, {{workers_.view().round(), [this] { return core_.is_running(); },
                            [this](std::size_t most) { return workers_.view().arrivals(most); },
                            [this](const std::vector<int>& ranks, StackSamples::Done done) {
                              workers_.stacks().sample(ranks, std::move(done));
                            }},
                           queries_.query(),
                           observers_.events}),
      nans_(parts_, workers_, observers_.events, [this](const WorkerHung& ends) { post(ends); }),
      gpus_(parts_, workers_.view()),
      timer_(io_),
      late_regroup_(io_),
      late_start_(io_) {
  workers_.ask_gpus_with(
      {.explain = [this](rdzv::WorkerFailure& failure) { gpus_.explain(failure); },
       .await_memory = [this](auto done) { gpus_.await_memory(std::move(done)); }});
}

Supervisor::~Supervisor() = default;

int Supervisor::run() {
  if (const auto ready = prepare()) {
    store_.prepare([this](const Result<void>& prepared) {
      prepared ? find_leader() : cannot_run(prepared.error());
    });
  } else {
    cannot_run(ready.error());
  }
  while (!core_.has_ended()) {
    io_.run_one();
    leader_.look();
  }
  signals_.block_notices();
  if (recorder_) recorder_->flush(std::chrono::steady_clock::now() + kRecordingLimit);
  return job_.exit_code(outcome_->exit_code);
}

// ---- before there is a leader

Result<void> Supervisor::prepare() {
  console_.notify_with([this](std::string_view sentence) { log_.warn(sentence); });
  if (auto opened = observers_.events.open(); !opened) return opened;
  if (!job_.record.empty()) {
    auto recorder = CoreRecorder::open(io_.get_executor(), console_, job_.record);
    if (!recorder) return fail(std::move(recorder.error()));
    recorder_ = std::move(*recorder);
    recorder_->note(NodeBegan{node_config(job_)});
    recorder_->note(ResponseBegan{job_.hangs.restarts});
    hangs_.record_with(recorder_.get());
  }
  auto offer = memory_.prepare();
  auto prepared = workers_.prepare(std::move(offer), memory_.for_workers());
  if (!prepared) return prepared;
  memory_.keeper_runs();
  queries_.open();  // a file server may hold it: until the next line a signal ends this process
  if (auto handled = signals_.handle(); !handled) return handled;
  notices_.begin(workers_.take_in_helper([this](pid_t pid) { return notices_.owns(pid); }));
  observers_.command.begin(
      workers_.take_in_helper([this](pid_t pid) { return observers_.command.owns(pid); }));
  health_.begin(workers_.take_in_helper([this](pid_t pid) { return health_.owns(pid); }));
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
    health_.before_join([this] {
      observers_.systemd.ready();
      leader_.find(recorder_.get());
    });
  });
}

void Supervisor::cannot_run(const Error& error) {
  post(CannotRun{kExitCannotRun, error.to_string()});
}

// ---- events and actions

void Supervisor::step(const NodeEvent& event) {
  const bool was_stopping = core_.is_stopping();
  const std::optional<int> signal_ahead = core_.signal_ahead();
  health_.look_at(event, core_.is_running());
  const auto actions = core_.step(event);
  if (recorder_) recorder_->note(NodeInput{event}, actions.size());
  if (!was_stopping && core_.is_stopping()) {
    workers_.round_stops(/*parks=*/std::ranges::any_of(actions, [](const NodeAction& action) {
      return std::holds_alternative<ParkWorkers>(action);
    }));
    observers_.events.round_stopping(core_.round(),
                                     signal_ahead && !std::holds_alternative<rdzv::JobEnd>(event)
                                         ? NodeEvent(StopSignal{*signal_ahead})
                                         : event);
  }
  for (const NodeAction& action : actions) {
    std::visit([this](const auto& a) { perform(a); }, action);
  }
}

// ---- the leader

// A node that is suspect is ready for the next round when its health check has answered. Nothing overtakes that message.
void Supervisor::perform(const TellLeader& action) {
  const auto tell = [this, action] { leader_.tell(action.message); };
  if (std::holds_alternative<rdzv::RoundStopped>(action.message)) {
    return health_.before_restart(tell);
  }
  health_.let_go_on();
  tell();
}

void Supervisor::perform(const Announce& action) {
  if (const auto* warning = std::get_if<rdzv::Warning>(&action.notice)) {
    log_.warn(warning->sentence);
  } else if (const auto* wait = std::get_if<rdzv::WaitForNodes>(&action.notice)) {
    announce_wait(*wait);
  } else if (const auto* spare = std::get_if<rdzv::WaitAsSpare>(&action.notice)) {
    log_.warn("this node waits: " + describe(*spare));
    if (spare->why == rdzv::WaitAsSpare::Why::kLeftOut) {
      observers_.events.write(NodeLeftOut{parts_.host, spare->left_out});
    }
  }
}

// The first notice says where the others find the leader. On other nodes it is not a warning: it is normal that nodes
// do not start at the same moment.
void Supervisor::announce_wait(const rdzv::WaitForNodes& wait) {
  if (std::exchange(was_told_to_wait_, true)) return log_.warn(describe(wait));
  const rdzv::LeaderSpec& leader = job_.nodes.leader;
  if (!leader_.is_here() || leader.where == rdzv::LeaderSpec::Where::kElected) {
    return log_.write(leader_.is_here() ? Log::Level::kWarning : Log::Level::kInfo, describe(wait));
  }
  log_.warn("this node " + describe(leader.endpoint, wait, "--master-addr or --rdzv-endpoint"));
}

// ---- workers

void Supervisor::perform(const StartWorkers& action) {
  if (const std::string change = describe_change(action.start, parts_.host); !change.empty()) {
    log_.warn(change);
  }
  // With several nodes the world size is known only when a round starts.
  for (const int rank : job_.debugged_ranks) {
    if (rank < action.start.world_size) continue;
    log_.warn("--attach-debugger: there is no rank " + std::to_string(rank) + " in this round of " +
              std::to_string(action.start.world_size));
  }
  await_late_start(kLateStart);
  Workers::WantedSteps wanted_steps;
  for (int local_rank = 0; local_rank < job_.local_world_size; ++local_rank) {
    wanted_steps.push_back(observers_.events.times().wanted_step(local_rank));
  }
  workers_.begin(action.start, std::move(wanted_steps));
}

void Supervisor::await_late_start(std::chrono::seconds after) {
  late_start_.arm(after, [this, after] {
    late_start_after_ = after;
    post(StartIsLate{core_.round()});
  });
}

void Supervisor::perform(const ShowStarting& action) {
  if (const std::string sentence = workers_.view().what_starts(action.local_ranks);
      !sentence.empty()) {
    log_.warn("after " + duration_text(late_start_after_) + " " + sentence);
  }
  await_late_start(late_start_after_ * 2);
}

// No message if all workers have ended (only an error file is still being read): none is killed.
void Supervisor::perform(const GraceOver& action) {
  workers_.grace_is_over(action.grace);
  if (workers_.view().running() == 0 || action.grace == 0ms) return;
  if (!action.after_failure) {
    return log_.warn("workers did not end in time and get SIGKILL");
  }
  log_.warn("workers did not end within " + duration_text(action.grace) +
            " after the failure and get SIGKILL; --failure-shutdown-timeout gives them longer");
}

void Supervisor::perform(const WaitForSaving& action) {
  std::vector<int> ranks;
  for (const int local_rank : action.local_ranks) {
    ranks.push_back(workers_.view().round().rank_offset + local_rank);
  }
  const bool is_one = ranks.size() == 1;
  log_.warn(printable(ranks_in_words(ranks)) +
            (is_one ? " handles SIGTERM and is" : " handle SIGTERM and are") +
            " outside of collectives: what " + (is_one ? "it saves" : "they save") +
            " has at most " + duration_text(action.left) +
            " more; --failure-shutdown-timeout sets another limit");
}

// Each fact of a worker goes this way: to what only looks, and then to the core, if that decides upon it.
void Supervisor::on_worker_event(const WorkerEvent& event) {
  hangs_.on(event);
  slow_ranks_.on(event);
  nans_.on(event);
  gpus_.on(event);
  observers_.on(event, workers_.view());
  if (std::holds_alternative<worker_event::Closed>(event.what)) store_.close();
  if (const auto* preempted = std::get_if<worker_event::Preempted>(&event.what)) {
    if (core_.is_running()) signals_.preempted_by(preempted->signal);
  }
  if (auto decided = node_event(event)) post(std::move(*decided));
}

void Supervisor::perform(const ShowLate& action) {
  hangs_.show_late(action.local_ranks, kLateRegroup);
}

// ---- the health of this node

HealthCheck::Hooks Supervisor::health_hooks() {
  return {.refuse = [this](const std::string& sentence) { cannot_join(sentence); },
          .unfit = [this](const std::string& sentence) { node_is_unfit(sentence); },
          .fit_again = [this] { node_is_fit_again(); },
          .warn =
              [this](const std::string& sentence) {
                log_.warn("the health check says: " + sentence);
                observers_.events.write(HealthSeen{"warning", sentence});
                remember(sentence);
              },
          .held =
              [this](std::chrono::milliseconds limit) {
                log_.write(Log::Level::kInfo,
                           "this node is suspect, and the restart waits for its health check, at "
                           "most " +
                               duration_text(limit));
              }};
}

void Supervisor::cannot_join(const std::string& sentence) {
  observers_.events.write(HealthSeen{"unfit", sentence});
  post(CannotRun{kExitCannotRun, "this node is not fit for the job: " + sentence +
                                     "; repair it or take another one, or start without "
                                     "--health-check if that is not a reason"});
}

void Supervisor::node_is_unfit(const std::string& sentence) {
  log_.warn("this node is not fit for the job any more: " + sentence);
  observers_.events.write(UnfitNode{parts_.host, sentence});
  unfit_ = sentence;
  leader_.tell(rdzv::NodeUnfit{{sentence}});
  remember(sentence);
}

void Supervisor::node_is_fit_again() {
  log_.warn("this node is fit for the job again");
  unfit_.clear();
  leader_.tell(rdzv::NodeFit{});
}

void Supervisor::remember(const std::string& sentence) {
  constexpr std::size_t kRemarksBytesMax = 4096;
  const std::string line =
      "  health      the health check of " + parts_.host + " said: " + sentence + "\n";
  const bool is_known = health_remarks_.find(line) != std::string::npos;
  if (!is_known && health_remarks_.size() <= kRemarksBytesMax) health_remarks_ += line;
}

// ---- the end

void Supervisor::perform(const Finish& action) {
  outcome_ = action.outcome;
  if (outcome_->kind == rdzv::JobOutcome::Kind::kStopped && outcome_->sentence.empty()) {
    outcome_->sentence = outcome_->stop_signal == 0 ? signals_.notice() : requests_.stop_asked_by();
  }
  notices_.end();
  health_.end();
  observers_.command.job_ends(outcome_->kind);
  observers_.events.finished(*outcome_, job_.exit_code(outcome_->exit_code));
  workers_.job_is_over();
  if (action.outcome.kind == rdzv::JobOutcome::Kind::kSucceeded) {
    workers_.drop_memory();
    memory_.job_succeeded();
  }
  end_.begin(*outcome_);
}

// The keeper ends beside the last steps. The workers' error files, which the report of a failure needs, are
// removed before; and it would end a command that is told of the last events.
void Supervisor::perform(const TakeStep& action) {
  const bool is_reported =
      action.step > EndStep::kReport || outcome_->kind == rdzv::JobOutcome::Kind::kSucceeded;
  const bool is_told = job_.events.command.empty() || action.step > EndStep::kEvents;
  if (is_reported && is_told && workers_.view().running() == 0) workers_.let_keeper_go();
  end_.take(action.step, [this, step = action.step] {
    const auto tell = [this, step] { post(StepTaken{step}); };
    const bool is_report_next =
        step == EndStep::kOutput && outcome_->kind != rdzv::JobOutcome::Kind::kSucceeded;
    is_report_next ? gpus_.when_explained(tell) : tell();
  });
}

// ---- queries, and requests to stop or restart

QueryPort::Access Supervisor::query_access() {
  return {.job = {.node_status = [this](std::size_t events_max) { return node_status(events_max); },
                  .on_event =
                      [this](std::function<void(const std::string&)> told) {
                        return observers_.events.on_line(std::move(told));
                      },
                  .leader = [this] { return leader_.leader(); },
                  .refresh = [this](auto done) { gpus_.refresh(std::move(done)); }},
          .first_rank = [this] { return workers_.view().round().rank_offset; },
          .requests = {
              .stacks =
                  [this](const StackQuery& question, StackRequest::Done done) {
                    workers_.stacks().show(question, std::move(done));
                  },
              .stop =
                  [this](const std::string& by) {
                    health_.end_hold();
                    return requests_.stop(by);
                  },
              .restart = [this](const std::string& by) { return requests_.restart(by); },
              .replace = [this](int rank,
                                const std::string& by) { return requests_.replace(rank, by); },
              .drain = [this](const rdzv::DrainAsked& asked) { return requests_.drain(asked); }}};
}

NodeStatus Supervisor::node_status(std::size_t events_max) const {
  NodeStatus status = report_.status(events_max);
  hangs_.fill(status);
  slow_ranks_.fill(status);
  gpus_.fill(status);
  return status;
}

}  // namespace ddprun::agent
