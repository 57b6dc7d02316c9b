// Everything that reports on the job and does not change it. What happens to the workers comes as WorkerEvents; the
// state of the node at that moment comes from the snapshot. Owned by the
// Supervisor; event loop only. No error here stops the job, except that --events cannot be opened.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/core/worker_event.h"
#include "agent/events/event_log.h"
#include "agent/notify/event_command.h"
#include "agent/notify/kubeflow_reporter.h"
#include "agent/notify/systemd_notify.h"
#include "agent/output/status_line.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/worker_view.h"

namespace ddprun::agent {

class Observers {
 public:
  Observers(const AgentParts& parts, std::function<NodeSnapshot()> snapshot);

  // `has_status_line`: only the agent writes to the terminal.
  void job_started(bool has_status_line);
  // `workers`: as they are at this moment.
  void on(const WorkerEvent& event, const WorkerView& workers);
  void over(const std::string& headline);

 private:
  void on(const worker_event::Started& started, const WorkerView& workers);
  void on(const worker_event::Ending& ending, const WorkerView& workers);
  void on(const worker_event::Ended& ended, const WorkerView& workers);
  void on(const worker_event::Killed& killed, const WorkerView& workers);
  void on(const worker_event::Stepped& stepped, const WorkerView& workers);
  void on(const worker_event::ReplicasDiffer& differ, const WorkerView& workers);
  void on(const worker_event::Replaced& replaced, const WorkerView& workers);
  void on(const worker_event::Regrouped& regrouped, const WorkerView& workers);
  void on(const worker_event::Committed& committed, const WorkerView& workers);
  void on(const worker_event::KeeperReplaced& replaced, const WorkerView& workers);
  void on(const auto&, const WorkerView&) {}  // only the core decides upon the others

  const AgentParts parts_;
  const std::function<NodeSnapshot()> snapshot_;

 public:
  EventLog events;
  EventCommand command;
  std::optional<StatusLine> status_line;  // if there is a terminal for it
  SystemdNotify systemd;
  KubeflowReporter kubeflow;

 private:
  std::shared_ptr<void> told_;  // the subscription of the command to the events
};

}  // namespace ddprun::agent
