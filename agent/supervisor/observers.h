// Everything that reports on the job and does not change it. The supervisor tells each observer
// what concerns it; the state of the node at that moment comes from the snapshot. Owned by the
// Supervisor; event loop only. No error here stops the job, except that --events cannot be opened.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "agent/events/event_log.h"
#include "agent/notify/kubeflow_reporter.h"
#include "agent/notify/systemd_notify.h"
#include "agent/output/status_line.h"
#include "agent/supervisor/parts.h"

namespace ddprun::agent {

class Observers {
 public:
  Observers(const AgentParts& parts, std::function<NodeSnapshot()> snapshot);

  // `has_status_line`: only the agent writes to the terminal.
  void job_started(bool has_status_line);
  void round_started(const rdzv::RoundStart& start, std::span<const pid_t> pids);  // see EventLog
  void over(const std::string& headline);

 private:
  const AgentParts parts_;
  const std::function<NodeSnapshot()> snapshot_;

 public:
  EventLog events;
  std::optional<StatusLine> status_line;  // if there is a terminal for it
  SystemdNotify systemd;
  KubeflowReporter kubeflow;
};

}  // namespace ddprun::agent
