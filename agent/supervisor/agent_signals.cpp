#include "agent/supervisor/agent_signals.h"

#include <signal.h>

#include <algorithm>
#include <utility>

namespace ddprun::agent {
namespace {

void add_unless_ignored(boost::asio::signal_set& set, int signal) {
  struct sigaction current {};
  if (::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN) return;
  set.add(signal);
}

}  // namespace

AgentSignals::AgentSignals(boost::asio::io_context& io, OnSignal on_stop, OnSignal on_control)
    : stop_(io), control_(io), on_stop_(std::move(on_stop)), on_control_(std::move(on_control)) {}

void AgentSignals::start(const Job& job) {
  for (const int signal : job.stop_signals) add_unless_ignored(stop_, signal);
  if (job.preempt_signal) stop_.add(*job.preempt_signal);
  for (const int signal : {SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2, SIGWINCH}) {
    const bool is_a_stop =
        std::ranges::count(job.stop_signals, signal) > 0 || job.preempt_signal == signal;
    if (!is_a_stop) add_unless_ignored(control_, signal);
  }
  await(stop_, on_stop_);
  await(control_, on_control_);
}

void AgentSignals::await(boost::asio::signal_set& signals, const OnSignal& told) {
  signals.async_wait(
      lifetime_.guard([this, &signals, &told](const boost::system::error_code& ec, int signal) {
        if (ec) return;
        await(signals, told);
        told(signal);
      }));
}

}  // namespace ddprun::agent
