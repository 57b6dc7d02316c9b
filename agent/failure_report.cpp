#include "agent/failure_report.h"

#include <algorithm>
#include <csignal>
#include <ctime>
#include <vector>

#include "rendezvous/base/exit_codes.h"

namespace ddprun::agent {
namespace {

std::string local_time(std::chrono::system_clock::time_point when) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(when);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(
                                when - std::chrono::system_clock::from_time_t(seconds))
                                .count();
  std::tm fields{};
  ::localtime_r(&seconds, &fields);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &fields);
  char fraction[8];
  std::snprintf(fraction, sizeof fraction, ".%03d", static_cast<int>(milliseconds));
  return std::string(text) + fraction;
}

std::string indented(const std::string& text, const std::string& indent) {
  std::string out;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const auto end = std::min(text.find('\n', begin), text.size());
    out += indent + text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return out;
}

std::string field(const std::string& name, const std::string& value) {
  std::string padded = "  " + name;
  padded.resize(14, ' ');
  return padded + value + "\n";
}

// "12 ms", "3.4 s", "2 h 03 min 04 s"
std::string in_words(std::chrono::steady_clock::duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  char text[64];
  if (ms < 1000) {
    std::snprintf(text, sizeof text, "%d ms", static_cast<int>(ms));
  } else if (ms < 60'000) {
    std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ms / 100) / 10);
  } else {
    const long seconds = ms / 1000;
    const int length =
        seconds < 3600 ? 0 : std::snprintf(text, sizeof text, "%ld h ", seconds / 3600);
    std::snprintf(text + length, sizeof text - static_cast<std::size_t>(length),
                  length > 0 ? "%02ld min %02ld s" : "%ld min %02ld s", seconds / 60 % 60,
                  seconds % 60);
  }
  return text;
}

// "step 412 of 1000, 35.0 s before; collective for 34.9 s"
std::string in_words(const WorkerProgress& progress) {
  std::string text;
  if (progress.step) {
    text = "step " + std::to_string(*progress.step);
    if (progress.total_steps > 0) text += " of " + std::to_string(progress.total_steps);
    text += ", " + in_words(progress.since_step) + " before";
  }
  if (progress.phase != WorkerPhase::kRunning && progress.phase != WorkerPhase::kUnknown) {
    text += text.empty() ? "" : "; ";
    text += std::string(name_of(progress.phase)) + " for " + in_words(progress.since_phase);
  }
  return text.empty() ? "no step yet" : text;
}

// A remark where the bare status needs one to be understood.
std::string hint(const rdzv::WorkerFailure& cause) {
  if (cause.killed_for_memory && cause.status.signal != SIGKILL) {
    return field("hint", "the kernel killed a process of this job for want of memory");
  }
  if (cause.status.signal != SIGKILL || cause.killed_for_memory) return {};
  return field("hint", "if nobody sent SIGKILL, the kernel did for want of memory: see dmesg");
}

std::string cause_in_full(const rdzv::WorkerFailure& cause) {
  std::string out;
  out += field("rank", std::to_string(cause.rank) + " (local rank " +
                           std::to_string(cause.local_rank) + ")");
  out += field("host", cause.host + (cause.pid > 0 ? ", pid " + std::to_string(cause.pid) : ""));
  out += field("time", local_time(cause.when));
  if (cause.progress) out += field("progress", in_words(*cause.progress));
  out += hint(cause);
  if (!cause.message.empty()) out += "  its error\n" + indented(cause.message, "    ");
  // Without a log folder it is a temporary file, which goes with the job.
  if (!cause.error_file.empty() && !cause.log_dir.empty()) {
    out += field("error file", cause.error_file);
  }
  if (!cause.stderr_tail.empty()) {
    out += "  its last lines on stderr\n";
    for (const auto& line : cause.stderr_tail) out += "    | " + line + "\n";
  }
  if (!cause.log_dir.empty()) out += field("logs", cause.log_dir);
  return out;
}

// Workers that ended as they were told to are one line together; what else ended is a line each.
std::string consequences_in_short(const rdzv::JobOutcome& outcome) {
  std::string out;
  std::vector<int> stopped;
  for (const auto& failure : outcome.consequences) {
    const bool by_us = failure.was_told_to_stop && !failure.killed_for_memory &&
                       (failure.status.signal == SIGTERM || failure.status.signal == SIGKILL ||
                        (outcome.stop_signal != 0 && failure.status.signal == outcome.stop_signal));
    if (by_us) {
      stopped.push_back(failure.rank);
    } else {
      out += "    " + describe(failure) + "\n";
    }
  }
  if (!stopped.empty()) {
    std::sort(stopped.begin(), stopped.end());
    out += "    stopped by ddprun: rank ";
    for (std::size_t i = 0; i < stopped.size(); ++i) {
      out += (i == 0 ? "" : ", ") + std::to_string(stopped[i]);
    }
    out += "\n";
  }
  if (outcome.consequences_left_out > 0) {
    out += "    and " + std::to_string(outcome.consequences_left_out) + " more\n";
  }
  if (out.empty()) return out;
  return "  " + std::string(outcome.cause ? "after it" : "workers") + "\n" + out;
}

std::string headline(const rdzv::JobOutcome& outcome, const std::string& program) {
  using Kind = rdzv::JobOutcome::Kind;
  const std::string name = "ddprun: " + program + " ";
  switch (outcome.kind) {
    case Kind::kSucceeded:
      break;
    case Kind::kFailed:
      return name + "FAILED: " + describe(*outcome.cause) + "\n";
    case Kind::kStopped:
      return name + (outcome.exit_code == kExitPreempted ? "PREEMPTED by " : "STOPPED by ") +
             signal_name(outcome.stop_signal) + "\n";
    case Kind::kCannotRun:
      return name + "CANNOT RUN: " + outcome.sentence + "\n";
  }
  return {};
}

}  // namespace

std::string describe(const rdzv::WorkerFailure& failure) {
  std::string text = "rank " + std::to_string(failure.rank);
  if (failure.pid == 0) return text + " could not be started: " + failure.message;
  text += " (pid " + std::to_string(failure.pid) + ") ";
  if (failure.killed_for_memory && failure.status.signal == SIGKILL) {
    return text + "was killed by the kernel for want of memory (SIGKILL)";
  }
  if (failure.status.signal != 0) return text + "was killed by " + failure.status.to_string();
  return text + "ended with " + failure.status.to_string();
}

std::string failure_report(const rdzv::JobOutcome& outcome, const std::string& program) {
  if (outcome.kind == rdzv::JobOutcome::Kind::kSucceeded) return {};
  std::string report = headline(outcome, program);
  if (outcome.cause) report += cause_in_full(*outcome.cause);
  report += consequences_in_short(outcome);
  if (outcome.restarts > 0) {
    report += field("restarts", std::to_string(outcome.restarts) + ", this was round " +
                                    to_string(outcome.last_round));
  }
  return report;
}

std::string summary(const rdzv::JobOutcome& outcome, const std::string& program,
                    std::chrono::steady_clock::duration wall,
                    std::chrono::steady_clock::duration lost) {
  const int restarts = outcome.restarts;
  std::string text = "ddprun: " + program + " took " + in_words(wall);
  if (restarts == 0) return text + ", without a restart\n";
  return text + ", " + std::to_string(restarts) + (restarts == 1 ? " restart" : " restarts") +
         " cost " + in_words(lost) + " of it\n";
}

}  // namespace ddprun::agent
