// What the agent is told by signals: to stop or to make room (stop signals), and what a terminal or a
// user tells the workers through it (job control, notices, a window's new size).
//
// Owned by the Supervisor; event loop thread only, on which the callbacks come, once for each signal.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <functional>

#include "agent/job.h"
#include "rendezvous/common/lifetime.h"

namespace ddprun::agent {

class AgentSignals {
 public:
  using OnSignal = std::function<void(int signal)>;
  AgentSignals(boost::asio::io_context& io, OnSignal on_stop, OnSignal on_control);

  // A signal that was ignored when we were started (nohup) stays ignored, but for the one that
  // preempts: somebody named it.
  void start(const Job& job);

 private:
  void await(boost::asio::signal_set& signals, const OnSignal& told);

  boost::asio::signal_set stop_;
  boost::asio::signal_set control_;
  const OnSignal on_stop_;
  const OnSignal on_control_;
  const rdzv::Lifetime lifetime_;
};

}  // namespace ddprun::agent
