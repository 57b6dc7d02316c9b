// The status line of a job on a terminal: which round runs, for how long, and what the job waits
// for. Used only if nobody but the agent writes to the terminal. Owned by the Observers, event loop
// only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "agent/output/console.h"
#include "agent/status/node_status.h"
#include "rendezvous/common/loop/timer.h"

namespace ddprun::agent {

// The workers' progress: "step 412 of 1000", "steps 400 to 412 of 1000", and the values of the
// first worker that reports any: ", loss 0.31". Empty if none reports a step. Pure.
std::string progress_text(const std::vector<std::optional<WorkerProgress>>& workers);

// The round and its state: "round 2, 8 workers, step 412 of 1000". Pure.
std::string situation_text(const NodeSnapshot& node);

// The elapsed time and situation_text(): at most `columns` characters, without a newline. Pure.
std::string status_text(const NodeSnapshot& node, std::size_t columns);

class StatusLine {
 public:
  StatusLine(boost::asio::any_io_executor executor, Console& console,
             std::function<NodeSnapshot()> snapshot);
  ~StatusLine() { hide(); }

  // Shows the line every second, first after one second: a shorter job never shows it.
  void start();
  void hide();

 private:
  void show();

  Console& console_;
  std::function<NodeSnapshot()> snapshot_;
  Timer timer_;
};

}  // namespace ddprun::agent
