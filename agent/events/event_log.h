// Logs the events of a job: writes JSON lines (--events) and torchrun's records
// (--event-log-handler=console), counts the downtime (DowntimeClock), keeps the history (JobHistory),
// and passes lines on to followers. Without all of these it makes no lines and opens no file. Owned
// by the Observers; event loop only, the Console outlives it. Every call is an event: report a
// worker's end when it has ended, and not when it is stopped.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/core/node_core.h"
#include "agent/events/event_lines.h"
#include "agent/events/event_sink.h"
#include "agent/events/job_history.h"
#include "agent/events/torchrun_events.h"
#include "agent/job.h"
#include "agent/output/console.h"

namespace ddprun::agent {

class EventLog {
 public:
  EventLog(boost::asio::any_io_executor executor, Console& console, const Job& job,
           std::string host);
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Opens what --events names, if it is given.
  Result<void> open();

  // Any event; those that follow below need this object's knowledge of the round.
  void write(const JobEvent& event);
  // The workers of a round run. `pids` by local rank; 0: it was not started.
  void round_started(const rdzv::RoundStart& start, std::span<const pid_t> pids);
  void worker_exited(const rdzv::WorkerFailure& ended);
  // What a worker did last; before worker_exited().
  void worker_ending(int local_rank, const std::optional<WorkerProgress>& progress,
                     const StepMarks& marks, ExitStatus status, bool was_told_to_stop);
  void stepped(int local_rank, const StepMarks& marks);
  // A generation has begun. `newcomer`: the process that has taken the place, if the rank is here.
  void replaced(const Replace& what, pid_t newcomer);
  void regrouped(int local_rank, std::uint32_t generation);
  void committed(int local_rank, std::uint32_t generation);
  // `cause`: the event that made the round stop.
  void round_stopping(Round round, const NodeEvent& cause);
  void finished(const rdzv::JobOutcome& outcome, int exit_code);

  const DowntimeClock& times() const { return times_; }
  void fill(NodeStatus& status, std::size_t events_max) const {
    history_.fill(status, times_, std::chrono::steady_clock::now(), events_max);
  }
  // Calls `told` with each following line until the returned pointer is released, perhaps by it.
  std::shared_ptr<void> on_line(std::function<void(const std::string&)> told);

  // Calls `done` once, when everything was written or lost; before it returns if there is no file.
  void when_written(std::function<void()> done);

 private:
  struct Ended {  // for torchrun's records of the workers' ends, written at the end of the job
    pid_t pid = 0;
    std::optional<rdzv::WorkerFailure> failure;
  };

  void look_for_recovery();
  TorchrunScene scene() const;
  int rank_of(int local_rank) const { return round_.rank_offset + local_rank; }

  boost::asio::any_io_executor executor_;
  Console& console_;
  const Job& job_;
  const std::string host_;
  std::unique_ptr<EventSink> sink_;
  DowntimeClock times_;
  JobHistory history_;
  std::vector<std::weak_ptr<const std::function<void(const std::string&)>>> followers_;
  rdzv::RoundStart round_;  // the latest
  int running_ = 0;         // workers of it
  std::vector<Ended> workers_;
};

}  // namespace ddprun::agent
