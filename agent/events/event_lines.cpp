#include "agent/events/event_lines.h"

#include <boost/json.hpp>
#include <ctime>

#include "agent/text/json_text.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;

constexpr std::size_t kTextBytesMax = 4096;  // the error file has the whole text

std::string utc(std::chrono::system_clock::time_point time) {
  const auto since_epoch =
      std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = since_epoch / 1'000'000;
  std::tm fields{};
  ::gmtime_r(&seconds, &fields);
  char text[64];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &fields);
  std::snprintf(text + length, sizeof text - length, ".%06dZ",
                static_cast<int>(since_epoch % 1'000'000));
  return text;
}

json::value text(std::string_view bytes) { return json_text(bytes, kTextBytesMax); }

json::value number_or_null(int number) {
  return number == 0 ? json::value(nullptr) : json::value(number);
}

void put_status(json::object& line, const ExitStatus& status) {
  const bool by_signal = status.signal != 0;
  line["exit_code"] = by_signal ? json::value(nullptr) : json::value(status.code);
  line["signal"] = number_or_null(status.signal);
  line["signal_name"] = by_signal ? text(signal_name(status.signal)) : json::value(nullptr);
  line["core_dumped"] = status.core_dumped;
}

void put_worker(json::object& line, const RoundStarted::Worker& worker) {
  line["rank"] = worker.rank;
  line["local_rank"] = worker.local_rank;
  line["pid"] = number_or_null(worker.pid);
}

json::value failure_object(const std::optional<rdzv::WorkerFailure>& failure) {
  if (!failure) return nullptr;
  json::object object;
  put_worker(object, {failure->rank, failure->local_rank, failure->pid});
  object["node_rank"] = failure->node_rank;
  object["host"] = text(failure->host);
  put_status(object, failure->status);
  object["killed_for_memory"] = failure->killed_for_memory;
  object["message"] = text(failure->message);
  return object;
}

std::string_view name_of(rdzv::NodeGone::How how) {
  using How = rdzv::NodeGone::How;
  switch (how) {
    case How::kDisconnected:
      return "disconnected";
    case How::kSilent:
      return "silent";
    case How::kReplaced:
      return "replaced";
    case How::kLeft:
      return "left";
    case How::kUnresponsive:
      return "unresponsive";
    case How::kStuck:
      break;
  }
  return "stuck";
}

json::value node_object(const std::optional<rdzv::NodeGone>& gone) {
  if (!gone) return nullptr;
  return json::object{{"node_rank", gone->node_rank},
                      {"host", text(gone->host)},
                      {"how", text(name_of(gone->how))}};
}

std::string_view name_of(const rdzv::JobOutcome& outcome) {
  using Kind = rdzv::JobOutcome::Kind;
  switch (outcome.kind) {
    case Kind::kSucceeded:
      return "succeeded";
    case Kind::kFailed:
      return "failed";
    case Kind::kStopped:
      return outcome.exit_code == kExitPreempted ? "preempted" : "stopped";
    case Kind::kCannotRun:
      break;
  }
  return "cannot_run";
}

// Why the job ended; more precise than the outcome.
std::string_view reason_of(const rdzv::JobOutcome& outcome) {
  using Kind = rdzv::JobOutcome::Kind;
  if (outcome.kind == Kind::kFailed) return "worker_failed";
  if (outcome.kind == Kind::kStopped) {
    return outcome.exit_code == kExitPreempted ? "preemption" : "signal";
  }
  switch (outcome.kind == Kind::kCannotRun ? outcome.exit_code : kExitSuccess) {
    case kExitSuccess:
      return "all_succeeded";
    case kExitUsage:
      return "refused_by_leader";
    case kExitRendezvousTimeout:
      return "rendezvous_timeout";
    case kExitLeaderLost:
      return "leader_lost";
    case kExitBelowMinimum:
      return "below_minimum";
    case kExitWorkerStuck:
      return "worker_stuck";
    default:
      return "cannot_run";
  }
}

struct Filler {
  json::object& line;

  void operator()(const JobStarted& event) {
    line["program"] = text(event.program);
    line["workers"] = event.workers;
    line["max_restarts"] = event.max_restarts;
    line["pid"] = event.pid;
  }
  void operator()(const RoundStarted& event) {
    line["round"] = number(event.round);
    line["master_addr"] = text(event.master_addr);
    line["master_port"] = event.master_port;
    json::array workers;
    for (const auto& worker : event.workers) {
      json::object object;
      put_worker(object, worker);
      workers.push_back(std::move(object));
    }
    line["workers"] = std::move(workers);
    line["since_cause_us"] = event.since_cause.count();
    line["node_rank"] = event.node_rank;
    line["node_count"] = event.node_count;
    line["world_size"] = event.world_size;
  }
  void operator()(const WorkerExited& event) {
    line["round"] = number(event.round);
    put_worker(line, event.worker);
    put_status(line, event.status);
    line["was_told_to_stop"] = event.was_told_to_stop;
    line["killed_for_memory"] = event.killed_for_memory;
    line["message"] = text(event.message);
    line["progress"] = json_progress(event.progress);
  }
  void operator()(const RoundStopping& event) {
    line["round"] = number(event.round);
    line["reason"] = text(event.reason);
  }
  void operator()(const Restarted& event) {
    line["round"] = number(event.round);
    line["restart"] = event.restart;
    line["max_restarts"] = event.max_restarts;
    line["failure"] = failure_object(event.failure);
    line["lost_us"] = event.lost.count();
    line["lost_node"] = node_object(event.lost_node);
    line["nodes_gone"] = event.nodes_gone;
    line["nodes_joined"] = event.nodes_joined;
    line["was_asked_for"] = event.was_asked_for;
  }
  void operator()(const SignalReceived& event) {
    line["signal"] = event.signal;
    line["signal_name"] = text(signal_name(event.signal));
  }
  void operator()(const WorkerKilledAfterGrace& event) {
    line["round"] = number(event.round);
    put_worker(line, event.worker);
    line["grace_us"] = event.grace.count();
  }
  void operator()(const KeeperReplaced& event) { line["pid"] = event.pid; }
  void operator()(const JobFinished& event) {
    line["outcome"] = text(name_of(event.outcome));
    line["exit_code"] = event.exit_code;
    line["signal"] = number_or_null(event.outcome.stop_signal);
    line["cause"] = failure_object(event.outcome.cause);
    line["why"] = text(event.outcome.sentence);
    line["wall_us"] = event.wall.count();
    line["restarts"] = event.outcome.restarts;
    line["lost_us"] = event.lost.count();
    line["reason"] = text(reason_of(event.outcome));
    line["lost_node"] = node_object(event.outcome.lost_node);
  }
  void operator()(const EventsLost& event) { line["count"] = event.count; }
  void operator()(const Requested& event) { line["what"] = text(event.what); }
};

constexpr std::string_view kNames[] = {"job_started",
                                       "round_started",
                                       "worker_exited",
                                       "round_stopping",
                                       "restarted",
                                       "signal",
                                       "worker_killed_after_grace",
                                       "keeper_replaced",
                                       "finished",
                                       "events_lost",
                                       "requested"};
static_assert(std::size(kNames) == std::variant_size_v<JobEvent>, "in the order of the variant");

}  // namespace

JobEvent without_what_no_line_shows(JobEvent event) {
  // Keeps a little more than a line shows, so that text() still ends the line with "…".
  const auto shorten = [](std::string& text) {
    constexpr std::size_t kKept = kTextBytesMax + 4;
    if (text.size() > kKept) text = text.substr(0, kKept);
  };
  const auto shorten_failure = [&](std::optional<rdzv::WorkerFailure>& failure) {
    if (!failure) return;
    shorten(failure->message);
    failure->error_file = {};
    failure->log_dir = {};
    failure->stderr_tail = {};
  };
  if (auto* exited = std::get_if<WorkerExited>(&event)) {
    shorten(exited->message);
  } else if (auto* restarted = std::get_if<Restarted>(&event)) {
    shorten_failure(restarted->failure);
  } else if (auto* finished = std::get_if<JobFinished>(&event)) {
    shorten_failure(finished->outcome.cause);
    finished->outcome.consequences = {};
    shorten(finished->outcome.sentence);
  }
  return event;
}

std::string event_line(const EventHead& head, const JobEvent& event) {
  const auto monotonic =
      std::chrono::duration_cast<std::chrono::microseconds>(head.monotonic.time_since_epoch());
  json::object line;
  line["schema"] = kEventSchema;
  line["event"] = text(kNames[event.index()]);
  line["time"] = text(utc(head.time));
  line["monotonic_us"] = monotonic.count();
  line["job"] = text(head.job);
  line["host"] = text(head.host);
  std::visit(Filler{line}, event);
  return json::serialize(line) + "\n";
}

}  // namespace ddprun::agent
