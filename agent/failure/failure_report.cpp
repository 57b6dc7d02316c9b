#include "agent/failure/failure_report.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <limits>
#include <vector>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/indented.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/text/ranks.h"
#include "rendezvous/common/text/time_text.h"
#include "rendezvous/round/hang_core.h"
#include "rendezvous/round/job_outcomes.h"

namespace ddprun::agent {
namespace {

std::string field(const std::string& name, const std::string& value) {
  std::string padded = "  " + name;
  padded.resize(14, ' ');
  return padded + printable(value) + "\n";
}

// "step 412 of 1000, 35.0 s before; collective for 34.9 s"
std::string in_words(const WorkerProgress& progress) {
  std::string text;
  if (progress.step) {
    text = "step " + std::to_string(*progress.step);
    if (progress.total_steps > 0) text += " of " + std::to_string(progress.total_steps);
    text += ", " + time_in_words(progress.since_step) + " before";
  }
  if (progress.phase != WorkerPhase::kRunning && progress.phase != WorkerPhase::kUnknown) {
    text += text.empty() ? "" : "; ";
    text += std::string(name_of(progress.phase)) + " for " + time_in_words(progress.since_phase);
  }
  return text.empty() ? "no step yet" : text;
}

// Whether one of the last lines on stderr has both texts.
bool says(const rdzv::WorkerFailure& cause, std::string_view one, std::string_view other) {
  return std::ranges::any_of(cause.stderr_tail, [&](const std::string& line) {
    return line.find(one) != std::string::npos && line.find(other) != std::string::npos;
  });
}

// A script for torch.distributed.launch, which passes the option: argparse ends it with code 2 and
// "the following arguments are required: --local_rank", click with "Missing option '--local-rank'".
bool wants_local_rank(const rdzv::WorkerFailure& cause) {
  return cause.status == ExitStatus::exited(2) && (says(cause, "--local-rank", "are required") ||
                                                   says(cause, "--local_rank", "are required") ||
                                                   says(cause, "--local-rank", "Missing option") ||
                                                   says(cause, "--local_rank", "Missing option"));
}

// CPython ends a thread that calls it after the interpreter has ended; inside of a C++ destructor
// that is an abort. Threads of Gloo do this if a script ends right after a collective without
// destroying the process group.
bool was_aborted_by_a_thread(const rdzv::WorkerFailure& cause) {
  return cause.status.signal == SIGABRT &&
         says(cause, "terminate called without an active exception", "");
}

// An explanation of an exit status that is not clear by itself.
std::string hint(const rdzv::WorkerFailure& cause) {
  if (wants_local_rank(cause)) {
    return field("hint",
                 "as under torchrun, no --local-rank is passed: let the script read the variable "
                 "LOCAL_RANK, or give it --local-rank='${local_rank}'");
  }
  if (was_aborted_by_a_thread(cause)) {
    return field("hint",
                 "a thread was at work when the program ended, in Python often one of Gloo's: call "
                 "torch.distributed.destroy_process_group() before the end");
  }
  if (cause.killed_for_memory && cause.status.signal != SIGKILL) {
    return field("hint", "the kernel killed a process of this job: out of memory");
  }
  if (cause.status.signal != SIGKILL || cause.killed_for_memory || !cause.hang.empty() ||
      !cause.asked_by.empty()) {
    return {};
  }
  return field("hint", "if nobody sent SIGKILL, the kernel did: out of memory; see dmesg");
}

// The program was started by another Python than the one that has the module.
std::string which_python(const rdzv::WorkerFailure& cause, const std::string& python) {
  const bool is_missing = says(cause, "No module named ", "") ||
                          cause.message.find("No module named ") != std::string::npos;
  if (python.empty() || !is_missing) return {};
  return field("python", python +
                             "; to use another one, activate its environment or set "
                             "PYTHON_EXEC to its path");
}

std::string cause_in_full(const rdzv::WorkerFailure& cause, const std::string& python) {
  std::string out;
  const std::string node =
      cause.node_rank == 0 ? "" : " of node " + std::to_string(cause.node_rank);
  out += field("rank", std::to_string(cause.rank) + " (local rank " +
                           std::to_string(cause.local_rank) + node + ")");
  out += field("host", cause.host + (cause.pid > 0 ? ", pid " + std::to_string(cause.pid) : ""));
  out += field("time", time_text("%Y-%m-%d %H:%M:%S", cause.when) + milliseconds_of(cause.when));
  if (cause.progress) out += field("progress", in_words(*cause.progress));
  out += hint(cause);
  out += which_python(cause, python);
  if (!cause.message.empty() && !was_stopped_for_nan(cause)) {
    out += cause.hang.empty() ? "  its error\n" : "  its stack when it hung\n";
    out += indented(printable_lines(cause.message), "    ");
  }
  // Without a log folder it is a temporary file, which is removed at the end.
  if (!cause.error_file.empty() && !cause.log_dir.empty()) {
    out += field("error file", cause.error_file);
  }
  if (!cause.stderr_tail.empty()) {
    out += "  its last lines on stderr\n";
    for (const auto& line : cause.stderr_tail) {
      out += line.empty() ? "    | \n" : indented(printable_lines(line), "    | ");
    }
  }
  if (!cause.log_dir.empty()) out += field("logs", cause.log_dir);
  return out;
}

// A call in which others wait for a rank that has left fails, with an error that does not name it.
std::string who_had_left(const rdzv::JobOutcome& outcome) {
  if (!outcome.cause || outcome.done.empty()) return {};
  return field("before it", ranks_in_words(outcome.done) +
                                " had ended with exit code 0; a collective call that waits for " +
                                (outcome.done.size() == 1 ? "it" : "one of them") + " fails");
}

// What users have asked for; the headline has what stopped the job.
std::string requests(const rdzv::JobOutcome& outcome) {
  std::string out;
  for (const std::string& request : outcome.requests) out += field("asked for", request);
  for (const std::string& host : outcome.left_out) out += field("left out", host);
  return out;
}

// One line for all workers that ended because they were told to stop, and one for each other
// worker.
std::string consequences_in_short(const rdzv::JobOutcome& outcome) {
  std::string out;
  std::vector<int> stopped;  // ranks
  for (const auto& failure : outcome.consequences) {
    const bool by_us = failure.was_told_to_stop && !failure.killed_for_memory &&
                       (failure.status.signal == SIGTERM || failure.status.signal == SIGKILL ||
                        (outcome.stop_signal != 0 && failure.status.signal == outcome.stop_signal));
    if (by_us) {
      stopped.push_back(failure.rank);
    } else {
      out += "    " + describe(failure, outcome.cause ? outcome.cause->host : "") + "\n";
    }
  }
  if (!stopped.empty()) {
    std::sort(stopped.begin(), stopped.end());
    out += "    stopped by ddprun: " + rank_ranges(stopped) + "\n";
  }
  if (outcome.consequences_left_out > 0) {
    out += "    and " + std::to_string(outcome.consequences_left_out) + " more\n";
  }
  if (out.empty()) return out;
  return "  " + std::string(outcome.cause ? "after it" : "workers") + "\n" + out;
}

// What the user should check, and which option helps, if nodes or the leader are the problem.
std::string check(const rdzv::JobOutcome& outcome) {
  if (outcome.kind != rdzv::JobOutcome::Kind::kCannotRun) return {};
  switch (outcome.exit_code) {
    case kExitLeaderLost:
      return "the log of the node that led, and the network to it; this node's workers were "
             "stopped";
    case kExitBelowMinimum:
      break;
    default:
      return {};
  }
  if (!outcome.lost_node) return "the logs of the nodes that are missing";
  const std::string host = outcome.lost_node->host.empty() ? "that node" : outcome.lost_node->host;
  switch (outcome.lost_node->how) {
    case rdzv::NodeGone::How::kDisconnected:
    case rdzv::NodeGone::How::kReplaced:
      return "whether " + host +
             " is up, and what killed ddprun there (dmesg shows if memory ran out)";
    case rdzv::NodeGone::How::kSilent:
      return "whether " + host +
             " hangs or is cut off; --rdzv-conf=keep_alive_interval=SECONDS gives it longer";
    case rdzv::NodeGone::How::kLeft:
      return "who stopped ddprun on " + host + "; --nnodes=MIN:MAX goes on with fewer nodes";
    case rdzv::NodeGone::How::kUnresponsive:
      return "what ddprun on " + host + " waits for (ps, /proc/PID/stack); it sends heartbeats";
    case rdzv::NodeGone::How::kLeftOut:
      return "ddpctl status on " + host + ", and whether enough other nodes are there";
    case rdzv::NodeGone::How::kStuck:
      break;
  }
  return "the report of " + host + "; its worker hangs in the kernel";
}

std::string trouble_with_nodes(const rdzv::JobOutcome& outcome) {
  std::string out;
  const std::string gone = outcome.lost_node ? describe(*outcome.lost_node) : "";
  if (outcome.sentence.find(gone) == std::string::npos) out += field("lost", gone);
  if (const std::string what = check(outcome); !what.empty()) out += field("check", what);
  return out;
}

// The number of rounds that began because nodes joined or left.
int changes_of_nodes(const rdzv::JobOutcome& outcome) {
  const std::int64_t others =
      std::int64_t{outcome.restarts} - outcome.in_place + outcome.restarts_asked_for;
  const std::int64_t changes = std::int64_t{number(outcome.last_round)} - others;
  return static_cast<int>(std::clamp<std::int64_t>(changes, 0, std::numeric_limits<int>::max()));
}

std::string rounds_in_short(const rdzv::JobOutcome& outcome) {
  const std::string round = "this was round " + to_string(outcome.last_round);
  std::string counts;
  if (outcome.restarts > 0) counts = std::to_string(outcome.restarts);
  if (outcome.in_place > 0) counts += " (" + std::to_string(outcome.in_place) + " in place)";
  if (outcome.restarts_asked_for > 0) {
    counts += (counts.empty() ? "" : " and ") + std::to_string(outcome.restarts_asked_for) +
              " by request";
  }
  if (!counts.empty()) return field("restarts", counts + ", " + round);
  return changes_of_nodes(outcome) == 0 ? "" : field("restarts", "none; " + round);
}

// ": 12 ms to stop, 3 ms to start, 1.1 s to the first step, 240 ms for 31 steps again"
std::string parts_in_words(const Downtime& downtime) {
  if (downtime.until == DowntimeEnd::kWorkersRun) {
    return ", counted until the workers had been started again, because the program reports no "
           "training steps";
  }
  std::string text = ": " + time_in_words(downtime.stopped) + " to stop, " +
                     time_in_words(downtime.started) + " to start, " +
                     time_in_words(downtime.joined) + " to the first step";
  const std::int64_t repeated = downtime.steps_repeated.value_or(0);
  if (repeated > 0) {
    text +=
        ", " + time_in_words(downtime.repeated) + " for " + counted(repeated, "step") + " again";
  }
  const bool is_unknown = downtime.until == DowntimeEnd::kFirstStep;
  return text + (is_unknown ? "; how many steps were repeated is not known" : "");
}

std::string headline(const rdzv::JobOutcome& outcome, const std::string& program) {
  using Kind = rdzv::JobOutcome::Kind;
  const std::string name = "ddprun: " + printable(program) + " ";
  if (outcome.kind == Kind::kFailed) return name + "FAILED: " + describe(*outcome.cause) + "\n";
  if (outcome.kind == Kind::kStopped) {
    const bool is_preempted = outcome.exit_code == kExitPreempted;
    return name + (is_preempted ? "PREEMPTED by " : "STOPPED by ") +
           printable(rdzv::what_stopped(outcome)) + "\n";
  }
  const bool was_running =
      outcome.exit_code == kExitLeaderLost || outcome.exit_code == kExitBelowMinimum;
  return name + (was_running ? "CANNOT GO ON: " : "CANNOT RUN: ") + printable(outcome.sentence) +
         "\n";
}

}  // namespace

bool was_stopped_for_nan(const rdzv::WorkerFailure& failure) {
  return !failure.is_worth_a_retry && failure.status == ExitStatus::exited(kExitNoProgress);
}

std::string describe(const rdzv::WorkerFailure& failure, std::string_view here) {
  const bool is_elsewhere = !here.empty() && !failure.host.empty() && failure.host != here;
  const std::string host = is_elsewhere ? " on " + printable(failure.host) : "";
  std::string text = "rank " + std::to_string(failure.rank);
  if (failure.pid == 0) return text + host + " could not be started: " + printable(failure.message);
  text += " (pid " + std::to_string(failure.pid) + host + ") ";
  if (failure.killed_for_memory && failure.status.signal == SIGKILL) {
    return text + "was killed by the kernel: out of memory (SIGKILL)";
  }
  if (was_stopped_for_nan(failure)) return printable(failure.message);
  if (!failure.hang.empty()) return text + "hung: " + printable(failure.hang);
  if (!failure.asked_by.empty()) return text + "was ended by " + printable(failure.asked_by);
  if (failure.status.signal != 0) return text + "was killed by " + failure.status.to_string();
  return text + "ended with " + failure.status.to_string();
}

std::string describe_change(const rdzv::RoundStart& start, std::string_view here) {
  std::vector<std::string> parts;
  if (start.after_failure) parts.push_back(describe(*start.after_failure, here));
  if (start.after_request) parts.push_back(describe_request(start.asked_by));
  // Why was said when it happened.
  if (start.after_loss) {
    const bool is_left_out = start.after_loss->how == rdzv::NodeGone::How::kLeftOut;
    parts.push_back(is_left_out ? describe(*start.after_loss)
                                : name_of(*start.after_loss) + " is gone");
  }
  if (start.nodes_gone > 1) parts.push_back(counted(start.nodes_gone, "node") + " are gone in all");
  if (start.nodes_joined > 0) parts.push_back(counted(start.nodes_joined, "node") + " joined");
  if (start.after_failure) {
    parts.push_back("restart " + std::to_string(start.restarts) + " of " +
                    std::to_string(start.max_restarts));
  }
  if (start.after_loss || start.nodes_joined > 0) {
    parts.push_back("going on with " + counted(start.node_count, "node") + ", " +
                    counted(start.world_size, "worker"));
  }
  return printable(joined(parts, "; "));
}

std::string describe_request(const std::string& by) {
  return "a restart was asked for" + (by.empty() ? "" : ": " + printable(by));
}

std::string describe_replacement(const rdzv::WorkerFailure& failure, int restarts, int max_restarts,
                                 std::string_view here) {
  return describe(failure, here) + "; its standby takes its place; restart " +
         std::to_string(restarts) + " of " + std::to_string(max_restarts);
}

std::string failure_report(const rdzv::JobOutcome& outcome, const std::string& program,
                           const std::string& python) {
  if (outcome.kind == rdzv::JobOutcome::Kind::kSucceeded) return {};
  std::string report = headline(outcome, program);
  if (outcome.cause) report += cause_in_full(*outcome.cause, python);
  const bool is_final =
      outcome.kind == rdzv::JobOutcome::Kind::kFailed && !outcome.sentence.empty();
  if (is_final) report += field("no retry", printable(outcome.sentence));
  report += trouble_with_nodes(outcome);
  report += who_had_left(outcome);
  report += consequences_in_short(outcome);
  return report + requests(outcome) + rounds_in_short(outcome);
}

std::string summary(const rdzv::JobOutcome& outcome, const std::string& program,
                    std::chrono::steady_clock::duration wall, const Downtime& downtime,
                    std::optional<double> goodput) {
  std::string text = "ddprun: " + printable(program) + " took " + time_in_words(wall) + ", ";
  std::vector<std::string> parts;
  if (outcome.in_place > 0) {
    parts.push_back(counted(outcome.in_place, "worker") + " replaced in place");
  }
  if (const int restarts = outcome.restarts - outcome.in_place; restarts > 0) {
    parts.push_back(counted(restarts, "restart"));
  }
  if (const int asked = outcome.restarts_asked_for; asked > 0) {
    parts.push_back(counted(asked, "restart") + " by request");
  }
  if (const int changes = changes_of_nodes(outcome); changes > 0) {
    parts.push_back(counted(changes, "change") + " of nodes");
  }
  if (parts.empty()) return text + "without a restart\n";
  const std::string last = parts.back();
  parts.pop_back();
  if (!parts.empty()) text += joined(parts, ", ") + " and ";
  text += last;
  // A node that joined after the change of nodes has lost no time by it.
  const bool is_restarted = outcome.restarts > 0 || outcome.restarts_asked_for > 0;
  if (is_restarted || downtime.total() >= std::chrono::milliseconds(1)) {
    text += " cost " + time_in_words(downtime.total()) + " of it" + parts_in_words(downtime);
  }
  if (goodput) text += "; goodput " + percent_text(*goodput) + " since the first step";
  return text + "\n";
}

}  // namespace ddprun::agent
