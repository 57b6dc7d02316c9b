// The agent's shell: awaits an event, lets the cores decide, performs the actions they return. The
// only owner of the agent's io_context; everything here happens on the thread that calls run().
//
// The leader is here or elsewhere (rendezvous/leader/leader.h), which makes no difference to what happens
// here: what it says goes through the same queue as all events, so that nothing is decided inside of
// another decision.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/node_core.h"
#include "agent/dashboard/metrics_server.h"
#include "agent/events/core_recorder.h"
#include "agent/events/event_log.h"
#include "agent/job.h"
#include "agent/loop/timer.h"
#include "agent/notify/kubeflow_reporter.h"
#include "agent/notify/systemd_notify.h"
#include "agent/output/console.h"
#include "agent/output/output.h"
#include "agent/output/status_line.h"
#include "agent/query/control_service.h"
#include "agent/query/job_query.h"
#include "agent/query/log_reader.h"
#include "agent/supervisor/agent_signals.h"
#include "agent/supervisor/leader_port.h"
#include "agent/supervisor/node_snapshot.h"
#include "agent/supervisor/round_store.h"
#include "agent/supervisor/worker_group.h"
#include "rendezvous/net/name_lookup.h"

namespace spdlog {
class logger;
}

namespace ddprun::agent {

class Supervisor {
 public:
  explicit Supervisor(const Job& job);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run();

 private:
  void post(NodeEvent event);
  void pump();

  void perform(const OpenRoundStore& action);
  void perform(const StartWorkers& action);
  void perform(const SignalWorker& action);
  void perform(const AskToLeave& action);
  void perform(const ArmTimer& action);
  void perform(const CloseRound& action);
  void perform(const CloseStore& action);
  void perform(const TellLeader& action);
  void perform(const Rejoin& action);
  void perform(const Announce& action);
  void perform(const Finish& action);

  void cannot_run(const Error& error, int exit_code);
  void find_store_address();
  void found_leader(const NodeConfig& config);
  void await_leaders_leave();
  void await_last_logs();
  void await_last_report();

  Result<void> prepare();
  void prepare_output();
  WorkerGroup::Events worker_events();
  void on_limit_over(const ArmTimer& limit);
  void announce_wait(const rdzv::WaitForNodes& wait);
  NodeSnapshot snapshot() const;

  JobQuery::Access query_access();
  void open_control();
  void open_watch();
  NodeStatus node_status(std::size_t events_max) const;
  Result<void> stop_job();
  Result<Round> restart_round();

  void on_stop_signal(int signal);
  void preempted_by(int signal);
  void on_control_signal(int signal);
  void pause();

  const Job& job_;
  const std::string host_;
  const std::string agent_id_;
  std::string store_address_;  // numeric; empty: the one that this node has towards the leader

  boost::asio::io_context io_{1};
  Console console_;
  std::shared_ptr<spdlog::logger> log_;
  Output output_;
  EventLog events_;
  AgentSignals signals_;
  WorkerGroup workers_;
  Timer stop_timer_;
  std::chrono::milliseconds grace_{};       // of the workers that are killed when it is over
  std::unique_ptr<CoreRecorder> recorder_;  // where one was asked for
  rdzv::NameLookup lookup_{io_};            // of store_address_
  bool was_told_to_wait_ = false;
  NodeCore core_;
  std::deque<NodeEvent> queue_;
  bool is_pumping_ = false;

  RoundStore store_;
  std::optional<StatusLine> status_line_;  // where there is a terminal for it
  SystemdNotify service_;
  KubeflowReporter kubeflow_;
  JobQuery query_;
  LeaderPort leader_;
  LogReader logs_;
  ControlService control_;
  std::unique_ptr<MetricsServer> metrics_;  // with --metrics-port
  std::optional<rdzv::JobOutcome> outcome_;
  bool is_preempted_ = false;
  bool is_in_a_hurry_ = false;  // a signal came after the outcome
};

}  // namespace ddprun::agent
