// Everything that reports on the job and does not change it: the event log, the history for ddpctl,
// the status line of a terminal, systemd, Kubeflow Trainer. The supervisor calls one function for
// each occurrence; the state of the node at that moment comes from the snapshot.
//
// Owned by the Supervisor; event loop only. An error of an observer does not stop the job.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "agent/core/node_core.h"
#include "agent/events/event_log.h"
#include "agent/job.h"
#include "agent/notify/kubeflow_reporter.h"
#include "agent/notify/systemd_notify.h"
#include "agent/output/console.h"
#include "agent/output/status_line.h"
#include "agent/supervisor/node_snapshot.h"

namespace spdlog {
class logger;
}

namespace ddprun::agent {

class Observers {
 public:
  struct Parts {
    boost::asio::io_context& io;
    Console& console;
    std::shared_ptr<spdlog::logger> log;
    const Job& job;
    std::string host;
  };
  Observers(const Parts& parts, std::function<NodeSnapshot()> snapshot);
  Observers(const Observers&) = delete;
  Observers& operator=(const Observers&) = delete;

  // An error (--events cannot be opened) ends the job before it begins.
  Result<void> open();
  // `has_status_line`: only the agent writes to the terminal.
  void job_started(bool has_status_line);
  void ready();  // the agent is up: systemd's READY=1

  // ---- a round; see EventLog
  void round_started(const rdzv::RoundStart& start, std::span<const pid_t> pids);
  void round_stopping(Round round, const NodeEvent& cause);
  void worker_ending(int rank);  // its progress can still be read
  void worker_exited(const rdzv::WorkerFailure& ended, bool was_told_to_stop);
  void worker_killed_after_grace(Round round, int local_rank, pid_t pid,
                                 std::chrono::milliseconds grace);
  void keeper_replaced(pid_t pid) { events_.keeper_replaced(pid); }

  // ---- from outside
  void signal_received(int signal) { events_.signal_received(signal); }
  void requested(std::string_view what) { events_.requested(what); }
  void stopping(std::chrono::milliseconds at_most) { systemd_.stopping(at_most); }
  void pause();  // the agent will be stopped (Ctrl-Z), and continued later
  void resume();

  // ---- the end
  void finished(const rdzv::JobOutcome& outcome, int exit_code);
  // Calls `done` once, possibly before it returns.
  void report_last_progress(std::function<void()> done) { kubeflow_.send_last(std::move(done)); }
  void over(const std::string& headline);
  void when_written(std::function<void()> done) { events_.when_written(std::move(done)); }

  // ---- what is remembered
  const JobTimes& times() const { return events_.times(); }
  const JobHistory& history() const { return events_.history(); }
  std::shared_ptr<void> on_line(std::function<void(const std::string&)> told) {
    return events_.on_line(std::move(told));
  }

 private:
  boost::asio::io_context& io_;
  Console& console_;
  const std::function<NodeSnapshot()> snapshot_;
  EventLog events_;
  std::optional<StatusLine> status_line_;  // if there is a terminal for it
  SystemdNotify systemd_;
  KubeflowReporter kubeflow_;
};

}  // namespace ddprun::agent
