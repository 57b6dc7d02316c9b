// The signals that the agent handles: on_stop gets the stop signals and the preemption signal;
// on_control gets job control (SIGTSTP, SIGCONT), SIGUSR1, SIGUSR2 and SIGWINCH.
//
// Owned by the Supervisor. Event loop thread only; a callback is called once for each signal.
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

  // A signal that was ignored when the agent started (nohup) stays ignored. The preemption signal
  // is always handled, because the user named it.
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
