// The end of a job: what its workers wrote is delivered, then its report, its summary and its last
// events, and what of a failure is for others than the user. Waits for readers that are slow,
// within bounds, and sees to it that a signal cuts the wait short.
//
// Made and used by the Supervisor when nothing else is left to do; runs the event loop itself.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "agent/events/event_log.h"
#include "agent/job.h"
#include "agent/output/console.h"
#include "agent/output/output.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

class Ending {
 public:
  struct Parts {
    boost::asio::io_context& io;
    Console& console;
    Output& output;
    EventLog& events;
    boost::asio::signal_set& stop_signals;
  };
  Ending(const Parts& parts, const Job& job) : parts_(parts), job_(job) {}
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  // `remarks`: whole lines, to stand under the report of a job that did not succeed.
  void run(const rdzv::JobOutcome& outcome, const std::string& remarks, bool wants_summary);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Shared with callbacks that may come when their wait is over, or this object gone.
  struct Wait {
    bool is_delivered = false;
    TimePoint deadline{};
    bool is_cut_short = false;  // by a signal, which makes the deadline now
  };

  void deliver_output(std::chrono::milliseconds patience);
  void report(const rdzv::JobOutcome& outcome, const std::string& remarks, bool wants_summary);
  bool wait_in_slices(const std::function<bool(TimePoint)>& flush, TimePoint until);

  const Parts parts_;
  const Job& job_;
  const std::shared_ptr<Wait> wait_ = std::make_shared<Wait>();
};

}  // namespace ddprun::agent
