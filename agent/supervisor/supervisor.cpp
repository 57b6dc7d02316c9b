#include "agent/supervisor/supervisor.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/host_name.hpp>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "agent/core/leader_config.h"
#include "agent/failure/failure_report.h"
#include "agent/process/control_group.h"
#include "agent/process/process.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/signals_blocked.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/ranks.h"
#include "rendezvous/leader/leader_address.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kRecordingLimit = 500ms;  // for the recording
constexpr auto kPausePatience = 100ms;  // until the console has written what is queued
// Upper limit for the end of the job after the workers' grace period: stacks, SIGKILL, orphans, the
// other nodes, the report.
constexpr std::chrono::milliseconds kEndLimit = 60s;

AgentParts parts_of(boost::asio::io_context& io, Console& console, Log log, Output& output,
                    const Job& job) {
  boost::system::error_code ec;
  const std::string name = boost::asio::ip::host_name(ec);
  const std::string host = ec ? "localhost" : name;
  return {io, console, std::move(log), output, job, host, host + "-" + name_of_this_process()};
}

// Tests do not wait for minutes.
rdzv::WaitLines wait_lines(const Environment& environment) {
  const auto minute = parse_number<int>(value_or_empty(environment, "DDPRUN_TEST_MINUTE_MS"));
  return minute ? rdzv::WaitLines(std::chrono::milliseconds(*minute)) : rdzv::WaitLines();
}

}  // namespace

Supervisor::Supervisor(const Job& job)
    : job_(job),
      console_(io_.get_executor(), {.look = look_from(job.environment)}),
      log_(console_, job.environment),
      output_(io_.get_executor(), console_, job.output, job.run_id,
              value_or_empty(job.environment, "TMPDIR")),
      parts_(parts_of(io_, console_, log_, output_, job)),
      observers_(parts_, [this] { return snapshot(); }),
      memory_(parts_, observers_.systemd),
      core_(node_config(job)),
      signals_(io_),
      workers_(parts_, keeper_, worker_events()),
      store_(io_, job,
             [log = log_](std::string_view line) { log.warn("store: " + std::string(line)); }),
      queries_(parts_, query_access()),
      leader_(io_, job, parts_.host, log_, queries_.query(),
              {.event = [this](NodeEvent event) { post(std::move(event)); },
               .store_client =
                   [this](rdzv::StoreClientArrived client) {
                     store_.adopt(std::move(client.socket), std::move(client.received));
                   }}),
      end_(
          parts_, {observers_, queries_, leader_},
          [this] { return escalation_ + workers_.stacks_text() + memory_.remark(); },
          log_.writes(Log::Level::kInfo)),
      hangs_(io_, job.hangs.timeout, wait_lines(job.environment), hang_hooks()),
      hang_response_(io_, job.hangs.restarts, hang_response_hooks()),
      timer_(io_),
      late_regroup_(io_),
      late_start_(io_) {}

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
  block_notices();
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
  }
  auto offer = memory_.prepare();
  auto prepared = workers_.prepare(std::move(offer), memory_.for_workers());
  if (!prepared) return prepared;
  memory_.keeper_runs();
  queries_.open();  // a file server may hold it: until the next line a signal ends this process
  if (auto handled = handle_signals(); !handled) return handled;
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
    observers_.systemd.ready();
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
    if (!was_stopping && core_.is_stopping())
      observers_.events.round_stopping(core_.round(), event);
    for (const NodeAction& action : actions) {
      std::visit([this](const auto& a) { perform(a); }, action);
    }
  }
  is_pumping_ = false;
}

// ---- the leader

void Supervisor::perform(const Announce& action) {
  if (const auto* warning = std::get_if<rdzv::Warning>(&action.notice)) {
    log_.warn(warning->sentence);
  } else if (const auto* wait = std::get_if<rdzv::WaitForNodes>(&action.notice)) {
    announce_wait(*wait);
  } else if (const auto* spare = std::get_if<rdzv::WaitAsSpare>(&action.notice)) {
    log_.warn(spare->why == rdzv::WaitAsSpare::Why::kNoRoom
                  ? "this node waits: the job has its maximum number of nodes; this one joins when "
                    "another leaves"
                  : "this node waits: some workers of the job have finished already");
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
  workers_.begin(action.start);
}

void Supervisor::await_late_start(std::chrono::seconds after) {
  late_start_.arm(after, [this, after] {
    late_start_after_ = after;
    post(StartIsLate{core_.round()});
  });
}

void Supervisor::perform(const ShowStarting& action) {
  if (const std::string sentence = workers_.what_starts(action.local_ranks); !sentence.empty()) {
    log_.warn("after " + duration_text(late_start_after_) + " " + sentence);
  }
  await_late_start(late_start_after_ * 2);
}

// No message if all workers have ended (only an error file is still being read): none is killed.
void Supervisor::perform(const GraceOver& action) {
  workers_.grace_is_over();
  grace_ = action.grace;
  if (workers_.running() == 0 || action.grace == 0ms) return;
  if (!action.after_failure) {
    return log_.warn("workers did not end in time and get SIGKILL");
  }
  log_.warn("workers did not end within " + duration_text(action.grace) +
            " after the failure and get SIGKILL; --failure-shutdown-timeout gives them longer");
}

void Supervisor::perform(const WaitForSaving& action) {
  std::vector<int> ranks;
  for (const int local_rank : action.local_ranks) {
    ranks.push_back(workers_.round().rank_offset + local_rank);
  }
  const bool is_one = ranks.size() == 1;
  log_.warn(printable(ranks_in_words(ranks)) +
            (is_one ? " handles SIGTERM and is" : " handle SIGTERM and are") +
            " outside of collectives: what " + (is_one ? "it saves" : "they save") +
            " has at most " + duration_text(action.left) +
            " more; --failure-shutdown-timeout sets another limit");
}

WorkerGroup::Events Supervisor::worker_events() {
  return {
      .event =
          [this](NodeEvent event) {
            if (std::holds_alternative<RoundClosed>(event)) {
              store_.close();
              hang_response_.forget();
              note_last_calls();
            }
            post(std::move(event));
          },
      .started =
          [this](const std::vector<pid_t>& pids) {
            observers_.round_started(workers_.round(), pids);
            hangs_.round_began();
            hang_response_.forget();
          },
      .ending =
          [this](int local_rank, ExitStatus status) {
            keep_calls(local_rank);
            if (workers_.round().rank_offset + local_rank == 0) observers_.kubeflow.look();
            observers_.events.worker_ending(local_rank, workers_.progress(local_rank),
                                            workers_.marks(local_rank), status,
                                            core_.is_stopping());
            // Slurm may signal all processes of the job, and a worker may get its signal first.
            const bool is_notice = job_.preempt_signal && status.signal == job_.preempt_signal;
            if (is_notice && core_.is_running()) preempted_by(*job_.preempt_signal);
          },
      .ended =
          [this](const rdzv::WorkerFailure& ended, bool was_told_to_stop) {
            observers_.events.worker_exited(ended, was_told_to_stop);
          },
      .killed =
          [this](int local_rank, pid_t pid) {
            const rdzv::RoundStart& round = workers_.round();
            const int rank = round.rank_offset + local_rank;
            observers_.events.write(
                WorkerKilledAfterGrace{round.round, {rank, local_rank, pid}, grace_});
          },
      .keeper_replaced = [this](pid_t pid) { observers_.events.write(KeeperReplaced{pid}); },
      .is_stopping = [this] { return core_.is_stopping(); },
      .stepped = [this](int local_rank,
                        const StepMarks& marks) { observers_.events.stepped(local_rank, marks); },
      .wanted_step =
          [this](int local_rank) {
            const auto wanted = observers_.events.times().wanted_step(local_rank);
            return wanted ? std::pair(wanted->kind, wanted->step)
                          : std::pair(StepKind::kProgram, std::int64_t{0});
          },
      .replicas_differ =
          [this](std::int64_t step, int rank, int other, const std::string& what) {
            observers_.events.write(
                ReplicasDiffer{workers_.round().round, step, rank, other, what});
          },
      .replaced =
          [this](const Replace& what, pid_t newcomer) {
            log_.warn(
                describe_replacement(what.failure, what.restarts, what.max_restarts, parts_.host));
            observers_.events.replaced(what, newcomer);
          },
      .regrouped =
          [this](int local_rank, std::uint32_t generation) {
            observers_.events.regrouped(local_rank, generation);
          },
      .committed =
          [this](int local_rank, std::uint32_t generation) {
            observers_.events.committed(local_rank, generation);
          }};
}

HangWatch::Hooks Supervisor::hang_hooks() {
  return {
      .world_size = [this] { return core_.is_running() ? workers_.round().world_size : 0; },
      .node = [this] { return node_status(/*events_max=*/0); },
      .job =
          [this](std::function<void(JobStatus)> done) {
            queries_.query().job_status(std::move(done));
          },
      .tell_first_node = [this] { queries_.query().tell_first(R"({"ask":"waits"})"); },
      .waits =
          [this](const rdzv::WaitingFor& wait) {
            log_.write(Log::Level::kInfo, sentence(wait));
            observers_.events.write(WaitSeen{workers_.round().round, wait});
          },
      .still_waits = [this](const rdzv::WaitingFor& wait) { hang_response_.tell(wait); },
      .store_waits = [this] { return store_.waits(); },
      .still_waits_in_store =
          [this](const std::vector<rdzv::StoreWait>& waits) { tell_of_store(waits); },
      .hung =
          [this](const rdzv::Hung& hung, const JobStatus& status, const rdzv::HangRules& rules) {
            note_calls(status, rules);
            if (hung.is_verdict()) {
              log_.warn(ranks_in_words(hung.ranks) + " hung: " + sentence(hung));
              observers_.events.write(HangSeen{workers_.round().round, hung});
            } else {
              log_.warn(sentence(hung) + "; --hang-timeout=auto reports it and kills nothing");
            }
            hang_response_.respond(hung, status);
          }};
}

// ---- the recording has what the records of the ranks said, when a verdict was given and at the end

void Supervisor::note_calls(const JobStatus& status, const rdzv::HangRules& rules) {
  if (!recorder_) return;
  CallsSeen seen{workers_.round().round, /*is_end=*/false, workers_.round().world_size, rules,
                 calls_of(status)};
  const std::size_t verdicts = find_hangs(seen.ranks, seen.world_size, seen.rules).hung.size();
  recorder_->note(std::move(seen), verdicts);
}

void Supervisor::keep_calls(int local_rank) {
  if (!recorder_) return;
  const auto progress = workers_.progress(local_rank);
  const auto [state, held_for] = workers_.held(local_rank);
  last_calls_.push_back(
      {workers_.round().rank_offset + local_rank, state, held_for,
       progress && progress->step ? std::optional(progress->since_step) : std::nullopt,
       workers_.calls(local_rank), workers_.threads(local_rank).count > 0,
       workers_.threads(local_rank).all_wait()});
}

void Supervisor::note_last_calls() {
  if (!recorder_ || last_calls_.empty()) return;
  std::ranges::sort(last_calls_, {}, &rdzv::RankCalls::rank);
  CallsSeen seen;
  seen.round = workers_.round().round;
  seen.is_end = true;
  seen.world_size = workers_.round().world_size;
  seen.ranks = std::exchange(last_calls_, {});
  recorder_->note(std::move(seen));
}

HangResponse::Hooks Supervisor::hang_response_hooks() {
  return {.query = [this]() -> JobQuery& { return queries_.query(); },
          .stacks =
              [this](const StackQuery& question, StackRequest::Done done) {
                workers_.show_stacks(question, std::move(done));
              },
          .report = [this](const HangReport& report) { report_hang(report); },
          .wait_report =
              [log = log_](const rdzv::WaitingFor& wait, const std::map<int, RankStack>& stacks) {
                log.warn(wait_line(wait, stacks, ::getpid()));
              },
          .confirm =
              [this](const rdzv::Hung& hung, std::function<void(std::optional<bool>)> done) {
                hangs_.confirm(hung, std::move(done));
              },
          .end = [this](const EndHung& question) { return end_hung(question); },
          .warn = [log = log_](std::string_view sentence) { log.warn(sentence); },
          .record =
              [this](const hang_response::Event& event, std::size_t actions) {
                // The end of a round changes nothing unless something was found in it.
                const bool matters =
                    actions > 0 || !std::holds_alternative<hang_response::RoundOver>(event);
                if (recorder_ && matters) recorder_->note(ResponseInput{event}, actions);
              }};
}

// Which rank a client is, the store does not know. Of other nodes' clients nothing is said.
void Supervisor::tell_of_store(const std::vector<rdzv::StoreWait>& waits) {
  const rdzv::RoundStart& round = workers_.round();
  workers_.ranks_connected_to(round.master_port, [this, waits, round = round.round](
                                                     const std::map<std::uint16_t, int>& of) {
    if (!core_.is_running() || workers_.round().round != round) return;
    rdzv::WaitingFor told;
    std::set<int> waiting;
    const auto now = std::chrono::steady_clock::now();
    for (const rdzv::StoreWait& each : waits) {
      const auto rank = of.find(each.client.port);
      if (rank == of.end()) continue;
      waiting.insert(rank->second);
      if (now - each.since < told.waited) continue;
      told.waited = now - each.since;
      told.group = each.key;
    }
    if (waiting.empty()) return;
    told.waiting.assign(waiting.begin(), waiting.end());
    for (const WorkerStatus& each : node_status(/*events_max=*/0).workers) {
      const bool is_missing = each.state == WorkerState::kRunning && !waiting.contains(each.rank);
      if (is_missing) told.missing.push_back(each.rank);
    }
    hang_response_.tell(told);
  });
}

void Supervisor::report_hang(const HangReport& report) {
  const std::string who = printable(ranks_in_words(report.hung.ranks));
  const std::string why = !report.hung.is_verdict()       ? "others wait for " + who
                          : report.hung.ranks.size() == 1 ? who + " hangs"
                                                          : who + " hang";
  console_.say(Stream::kStderr, "ddprun: what the ranks do while " + why + "\n" + to_text(report));
  observers_.events.write(HangReported{report});
}

// Nobody may be to blame. But if they do not come together, the next round begins without a word of why.
void Supervisor::perform(const ShowLate& action) {
  StackQuery question{.is_brief = true};
  for (const int local_rank : action.local_ranks) {
    question.ranks.push_back(workers_.round().rank_offset + local_rank);
  }
  const auto show = [this, ranks = question.ranks](const std::vector<WorkerStacks>& workers) {
    if (!core_.is_running()) return;  // any more
    std::map<int, RankStack> stacks;
    for (const WorkerStacks& each : workers) stacks[each.rank] = stack_of(each);
    JobStatus status;
    status.nodes.push_back(node_status(0));
    const std::string who = printable(ranks_in_words(ranks));
    rdzv::Hung late;
    late.ranks = ranks;
    console_.say(Stream::kStderr, "ddprun: a worker was replaced " + duration_text(kLateRegroup) +
                                      " ago, and " + who + (ranks.size() == 1 ? " has" : " have") +
                                      " not come together with the others since; what they do\n" +
                                      to_text(make_hang_report(late, status, stacks)));
  };
  workers_.show_stacks(question, show);
}

// Asked by this node itself, or by the one that has found it.
EndHungAnswer Supervisor::end_hung(const EndHung& question) {
  EndHungAnswer answer;
  const rdzv::RoundStart& round = workers_.round();
  if (!core_.is_running() || round.round != question.round) return answer;
  for (const int rank : question.ranks) {
    const int local_rank = rank - round.rank_offset;
    if (local_rank < 0 || local_rank >= job_.local_world_size) continue;
    answer.here.push_back(rank);
    if (!job_.hangs.restarts) {
      answer.refused = parts_.host + " was started with --on-hang=report";
    } else if (workers_.is_to_end(local_rank, question.why, question.stack)) {
      post(WorkerHung{round.round, local_rank});
    }
  }
  return answer;
}

// ---- the end

void Supervisor::perform(const Finish& action) {
  outcome_ = action.outcome;
  if (outcome_->kind == rdzv::JobOutcome::Kind::kStopped && outcome_->sentence.empty()) {
    outcome_->sentence = stop_asked_by_;
  }
  observers_.events.finished(*outcome_, job_.exit_code(outcome_->exit_code));
  workers_.job_is_over();
  if (action.outcome.kind == rdzv::JobOutcome::Kind::kSucceeded) {
    workers_.drop_memory();
    memory_.job_succeeded();
  }
  end_.begin(*outcome_);
}

// The keeper ends beside the last steps. The workers' error files, which the report of a failure needs, are
// removed before.
void Supervisor::perform(const TakeStep& action) {
  const bool is_reported =
      action.step > EndStep::kReport || outcome_->kind == rdzv::JobOutcome::Kind::kSucceeded;
  if (is_reported && workers_.running() == 0) workers_.let_keeper_go();
  end_.take(action.step, [this, step = action.step] { post(StepTaken{step}); });
}

// ---- queries, and requests to stop or restart

QueryPort::Access Supervisor::query_access() {
  return {.job = {.node_status = [this](std::size_t events_max) { return node_status(events_max); },
                  .on_event =
                      [this](std::function<void(const std::string&)> told) {
                        return observers_.events.on_line(std::move(told));
                      },
                  .leader = [this] { return leader_.leader(); }},
          .first_rank = [this] { return workers_.round().rank_offset; },
          .stacks =
              [this](const StackQuery& question, StackRequest::Done done) {
                workers_.show_stacks(question, std::move(done));
              },
          .others_wait = [this] { hangs_.others_wait(); },
          .end_hung = [this](const EndHung& question) { return end_hung(question); },
          .stop = [this](const std::string& by) { return stop_job(by); },
          .restart = [this](const std::string& by) { return restart_round(by); },
          .replace = [this](int rank, const std::string& by) { return replace_worker(rank, by); }};
}

NodeSnapshot Supervisor::snapshot() const {
  NodeSnapshot node;
  node.state = core_.is_over()       ? NodeState::kEnded
               : !leader_.leader()   ? NodeState::kLooking
               : core_.is_waiting()  ? NodeState::kWaiting
               : core_.is_stopping() ? NodeState::kStopping
                                     : NodeState::kRunning;
  node.leads = leader_.is_here();
  node.round = workers_.round();
  node.running = workers_.running();
  for (int local_rank = 0; local_rank < job_.local_world_size; ++local_rank) {
    node.progress.push_back(workers_.progress(local_rank));
  }
  node.store = store_.status();
  node.standbys = workers_.standbys();
  node.replacement = workers_.replacement();
  node.wall = std::chrono::duration_cast<std::chrono::microseconds>(
      observers_.events.times().wall(std::chrono::steady_clock::now()));
  return node;
}

NodeStatus Supervisor::node_status(std::size_t events_max) {
  NodeStatus status;
  observers_.events.fill(status, events_max);
  status.host = parts_.host;
  status.agent_pid = ::getpid();
  fill(status, snapshot());
  for (WorkerStatus& worker : status.workers) {
    worker.device = device_of(job_, worker.local_rank);
    std::tie(worker.held, worker.held_for) = workers_.held(worker.local_rank);
    worker.calls = workers_.calls(worker.local_rank);
    const auto threads = workers_.threads(worker.local_rank);
    worker.keeps_record = threads.count > 0;
    worker.all_wait = threads.all_wait();
    worker.progress = with_calls(std::move(worker.progress), worker.calls);
  }
  status.longest_wait = hangs_.longest_wait();
  status.hung = hangs_.hung();
  return status;
}

// The leader stops the job on all nodes. If it cannot be reached, this node alone stops.
Result<void> Supervisor::stop_job(const std::string& by) {
  if (core_.is_over()) return fail(ErrorCode::kUnavailable, "the job has ended already");
  observers_.events.write(Requested{"stop", by});
  log_.warn("a stop of the job was asked for: " + printable(by));
  const bool has_left = core_.has_left();
  if (leader_.has_been_heard() && !has_left) leader_.tell(rdzv::StopAsked{SIGTERM, by});
  // Preempted workers leave without a deadline, even after a RoundStop, so they are stopped here.
  if (!leader_.has_been_heard() || core_.leaves_in_its_own_time()) {
    stop_asked_by_ = by;
    post(StopSignal{SIGTERM});
  }
  if (!has_left) return {};
  return fail(ErrorCode::kUnavailable,
              "this node is leaving the job, which may go on without it: its own workers are told "
              "to stop; to stop the job, ask another of its nodes");
}

Result<Round> Supervisor::restart_round(const std::string& by) {
  if (!core_.is_running()) {
    return fail(ErrorCode::kUnavailable,
                "no round runs on this node now, so there is none to restart: it is " +
                    std::string(name_of(snapshot().state)));
  }
  observers_.events.write(Requested{"restart", by});
  leader_.tell(rdzv::RestartAsked{core_.round(), by});
  return core_.round();
}

std::optional<Result<void>> Supervisor::replace_worker(int rank, const std::string& by) {
  const int first = workers_.round().rank_offset;
  if (rank < first || rank >= first + job_.local_world_size) return std::nullopt;
  if (!core_.is_running()) {
    return fail(ErrorCode::kUnavailable,
                "no round runs on this node now: it is " + std::string(name_of(snapshot().state)));
  }
  auto killed = workers_.kill_to_replace(rank, by);
  if (killed) observers_.events.write(Requested{"replace", by});
  return killed;
}

// ---- signals

// A signal that was ignored when the agent started (nohup) stays ignored. The preemption signal is
// always handled, because the user named it. Signals that were blocked are unblocked here, and stop
// signals in the workers, too: nothing could stop the job otherwise. Other signals stay blocked in the
// workers, as under torchrun.
Result<void> Supervisor::handle_signals() {
  std::vector<int> signals = job_.stop_signals;
  signals.insert(signals.end(), {SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2, SIGWINCH});
  std::erase_if(signals, [](int signal) {
    struct sigaction current {};
    return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
  });
  std::vector<int> of_workers = job_.stop_signals;
  of_workers.push_back(SIGCHLD);
  if (job_.preempt_signal) {
    signals.push_back(*job_.preempt_signal);
    of_workers.push_back(*job_.preempt_signal);
  }
  unblock_signals_in_workers(of_workers);
  return signals_.handle(signals,
                         [this](const rdzv::ReceivedSignal& received) { on_signal(received); });
}

// From here on nobody handles signals, and those that are not meant to end this process must not become its
// exit code. No thread here takes signals but this one.
void Supervisor::block_notices() const {
  sigset_t notices;
  sigemptyset(&notices);
  for (const int signal : {SIGUSR1, SIGUSR2, job_.preempt_signal.value_or(SIGUSR1)}) {
    sigaddset(&notices, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &notices, nullptr);
}

void Supervisor::on_signal(const rdzv::ReceivedSignal& received) {
  if (job_.preempt_signal == received.signal) {
    if (core_.is_over()) return;  // no worker is left that could leave
    observers_.events.write(SignalReceived{received.signal});
    return preempted_by(received.signal);
  }
  const bool is_a_stop = std::ranges::count(job_.stop_signals, received.signal) > 0;
  is_a_stop ? on_stop_signal(received) : on_control_signal(received.signal);
}

void Supervisor::on_stop_signal(const rdzv::ReceivedSignal& received) {
  const auto now = std::chrono::steady_clock::now();
  const std::string name = signal_name(received.signal);
  const auto meaning = stop_repeats_.of(received.signal, received.is_from_kernel, now);
  if (meaning == StopRepeats::Meaning::kSame) {
    return log_.debug("got " + name + " again within a second: it is the same request to stop");
  }
  if (core_.is_over()) {
    log_.warn("got " + name + ": the end of the job is cut short");
    return post(StopSignal{received.signal});
  }
  observers_.events.write(SignalReceived{received.signal});
  if (meaning == StopRepeats::Meaning::kFurther && workers_.running() > 0) {
    escalate(received);
  } else {
    log_.warn("got " + name + ", stopping the workers");
  }
  if (!stopped_at_) stopped_at_ = now;
  post(StopSignal{received.signal});
  if (!core_.is_over()) observers_.systemd.stopping(job_.shutdown_timeout + kEndLimit);
}

// The report names it: what the workers had not saved by then is lost.
void Supervisor::escalate(const rdzv::ReceivedSignal& received) {
  const auto after = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - stopped_at_.value());
  const std::string what =
      signal_name(received.signal) +
      (received.sender > 0 ? " from process " + std::to_string(received.sender) : "") + ", " +
      duration_text(after) + " after the first signal";
  log_.warn("got " + what + ": the workers get SIGKILL");
  if (escalation_.empty()) escalation_ = "  killed      the workers, because of " + what + "\n";
}

void Supervisor::preempted_by(int signal) {
  if (std::exchange(is_preempted_, true)) return;
  log_.warn("got " + signal_name(signal) + ": the job is preempted, workers are asked to leave");
  post(PreemptSignal{signal});
}

void Supervisor::on_control_signal(int signal) {
  if (signal == SIGWINCH) return output_.window_changed();
  if (!core_.is_over()) observers_.events.write(SignalReceived{signal});
  if (signal == SIGTSTP) return pause();
  workers_.signal_all(signal);
}

// Ctrl-Z: the workers have sessions of their own, so the terminal's stop does not reach them.
void Supervisor::pause() {
  workers_.pause_all();
  if (observers_.status_line) observers_.status_line->hide();
  console_.flush(std::chrono::steady_clock::now() + kPausePatience);
  ::kill(::getpid(), SIGSTOP);
  // Runs after SIGCONT, which on_control_signal() forwards to the workers.
  if (observers_.status_line) observers_.status_line->start();
}

}  // namespace ddprun::agent
