// The live line of a job on a terminal: which round runs, for how long, what is being waited for.
// Only where the agent writes all that the terminal shows; a worker that writes there itself would
// write into the line.
//
// Owned by the supervisor, event loop only. It wakes up once a second while it is shown, and
// never where there is no terminal.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "agent/loop/timer.h"
#include "agent/output/console.h"
#include "rendezvous/common/ids.h"
#include "rendezvous/common/worker_abi/worker_progress.h"

namespace ddprun::agent {

struct Status {
  Round round{};
  int workers = 0;  // of this node
  int running = 0;
  bool is_waiting = false;  // for a round to begin
  bool is_stopping = false;
  std::chrono::seconds wall{};
  int restarts = 0;
  int max_restarts = 0;
  std::string progress;  // of the workers
};

// How far they are, in words: "step 412 of 1000", "steps 400 to 412 of 1000", and the values of the
// first who gives any: ", loss 0.31"; empty when none says a step.
std::string progress_text(const std::vector<WorkerProgress>& workers);

// Which round runs and how it is: "round 2, 8 workers, step 412 of 1000". Pure.
std::string situation_text(const Status& status);

// The same after the time: one line of at most `columns` characters, without its end. Pure.
std::string status_text(const Status& status, std::size_t columns);

class StatusLine {
 public:
  StatusLine(boost::asio::any_io_executor executor, Console& console,
             std::function<Status()> status);
  ~StatusLine() { hide(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Shown once a second from now on: a job that is over within one never flickers.
  void start();
  void hide();

 private:
  void show();

  Console& console_;
  std::function<Status()> status_;
  Timer timer_;
};

}  // namespace ddprun::agent
