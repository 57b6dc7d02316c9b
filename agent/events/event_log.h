// The account of a job while it runs: is told what happens, writes it as JSON lines (--events) and
// as torchrun's records (--event-log-handler=console) where one was asked for, and adds up what
// restarts cost. Keeps what status and page show of the past (JobHistory), and tells those who follow
// it. While there is none of those and neither option, it makes no line and opens nothing.
//
// Owned by the Supervisor, which tells it; event loop only, the Console outlives it. The mistake
// to avoid: telling of an end twice, once when a worker was stopped and once when it ended.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/node_core.h"
#include "agent/events/event_lines.h"
#include "agent/events/event_sink.h"
#include "agent/events/job_history.h"
#include "agent/events/torchrun_events.h"
#include "agent/job.h"
#include "agent/output/console.h"
#include "agent/status/job_times.h"

namespace ddprun::agent {

class EventLog {
 public:
  EventLog(boost::asio::any_io_executor executor, Console& console, const Job& job,
           std::string host);
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  Result<void> open();

  void job_started();
  // The workers of a round run, or the first of them could not be started (pid 0, with those after
  // it); pids by local rank.
  void round_started(const rdzv::RoundStart& start, std::span<const pid_t> pids);
  void worker_exited(const rdzv::WorkerFailure& ended, bool was_told_to_stop);
  // `cause`: the event with which the round's stopping began.
  void round_stopping(Round round, const NodeEvent& cause);
  void signal_received(int signal);
  void worker_killed_after_grace(Round round, int local_rank, pid_t pid,
                                 std::chrono::milliseconds grace);
  void keeper_replaced(pid_t pid);
  void requested(std::string_view what);
  void finished(const rdzv::JobOutcome& outcome, int exit_code);

  const JobTimes& times() const { return times_; }
  const JobHistory& history() const { return history_; }
  // Each line from now on, with its end, as long as what is returned lives. It may be let go of
  // from within the call.
  std::shared_ptr<void> on_line(std::function<void(const std::string&)> told);

  // Calls `done` once, when all was written or lost; from here where there is nothing to write to.
  void when_written(std::function<void()> done);

 private:
  struct Ended {  // torchrun tells of workers' ends when the job has ended
    pid_t pid = 0;
    std::optional<rdzv::WorkerFailure> failure;
  };

  void write(const JobEvent& event);
  TorchrunScene scene() const;
  int rank_of(int local_rank) const { return round_.rank_offset + local_rank; }

  boost::asio::any_io_executor executor_;
  Console& console_;
  const Job& job_;
  const std::string host_;
  std::unique_ptr<EventSink> sink_;
  JobTimes times_;
  JobHistory history_;
  std::vector<std::weak_ptr<const std::function<void(const std::string&)>>> followers_;
  rdzv::RoundStart round_;  // the latest
  std::vector<Ended> workers_;
};

}  // namespace ddprun::agent
