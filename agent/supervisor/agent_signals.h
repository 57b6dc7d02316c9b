// The signals that this agent gets: requests to stop, a preemption, and job control; and the provider's notice of a
// preemption, which means the same as that signal. It says what a signal means and passes it on as an event of the core, or
// to the workers. Owned by the Supervisor; event loop only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "agent/core/node_core.h"
#include "agent/notice/provider_answers.h"
#include "agent/supervisor/observers.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/workers.h"
#include "rendezvous/common/stop_repeats.h"
#include "rendezvous/net/received_signals.h"

namespace ddprun::agent {

class AgentSignals {
 public:
  // They outlive this object, and need not be constructed yet.
  struct Others {
    const NodeCore& core;
    Workers& workers;
    Observers& observers;
  };
  using Post = std::function<void(NodeEvent)>;  // StopSignal, PreemptSignal
  AgentSignals(const AgentParts& parts, const Others& others, Post post);

  // Until then a signal ends this process.
  Result<void> handle();
  // A preemption signal has come to this agent, or has ended one of its workers. Once is enough.
  void preempted_by(int signal);
  void preempted_by(const Notice& notice);
  // Call it when the event loop does not run any more: a late signal must not become the exit code of this process. No
  // thread but this one takes signals.
  void block_notices() const;

  // A line of the report: why the workers got SIGKILL in their grace period. Empty: they did not.
  const std::string& escalation() const { return escalation_; }
  // For the report: by which notice this node is preempted; empty: by none.
  const std::string& notice() const { return notice_; }

 private:
  void on_signal(const rdzv::ReceivedSignal& received);
  void on_stop_signal(const rdzv::ReceivedSignal& received);
  void escalate(const rdzv::ReceivedSignal& received);
  void on_control_signal(int signal);
  void pause();

  const AgentParts parts_;
  const Others others_;
  const Post post_;
  rdzv::ReceivedSignals received_;
  StopRepeats stop_repeats_;
  std::optional<std::chrono::steady_clock::time_point> stopped_at_;  // by the first stop signal
  std::string escalation_;
  bool is_preempted_ = false;
  std::string notice_;
};

}  // namespace ddprun::agent
