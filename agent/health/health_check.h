// --health-check: runs the user's command, or a process of ddprun that collects facts (health_facts.h), when the health core
// says so: before this node first joins, every few minutes, and after a failure that makes this node suspect. Nothing here
// waits: a check is a process with a time limit, and one that the kernel holds in spite of SIGKILL is a finding. Owned by
// the Supervisor; event loop only.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/health_core.h"
#include "agent/health/health_facts.h"
#include "agent/process/command_run.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/loop/run_to_completion.h"
#include "rendezvous/common/loop/timer.h"

namespace ddprun::agent {

class HealthCheck {
 public:
  struct Spec {
    const std::string& check;  // "auto", or a command for the shell; empty: no checks
    const Environment& environment;
    std::vector<std::string> folders;    // the job uses them, for "auto"
    std::chrono::milliseconds interval;  // from an answer to the next run
    std::chrono::milliseconds limit;     // one run may take so long
  };
  struct Hooks {
    std::function<void(const std::string& sentence)> refuse;  // this node cannot join
    std::function<void(const std::string& sentence)> unfit;   // the job should go on without it
    std::function<void()> fit_again;                          // after unfit
    std::function<void(const std::string& sentence)> warn;
    std::function<void(std::chrono::milliseconds limit)> held;  // the restart waits for a check
  };

  // What the spec refers to outlives this object.
  HealthCheck(boost::asio::io_context& io, Spec spec, Hooks hooks);

  // `keeper_slot`: for the group of the process.
  void begin(std::atomic<pid_t>* keeper_slot) { keeper_slot_ = keeper_slot; }
  // Once: calls `join` when the node may join for the first time, perhaps at once; or Hooks::refuse.
  void before_join(std::function<void()> join);
  // Each event of the node's core, before it takes it.
  void look_at(const NodeEvent& event, bool is_running);
  // Calls `go_on` when the node may be in the next round, perhaps at once. `go_on` of an earlier call that waits is dropped.
  void before_restart(std::function<void()> go_on);
  // What waits for a check is called now.
  void let_go_on() {
    if (go_on_) end_hold();
  }
  // The same, and nothing waits for the check that runs.
  void end_hold() { events_.post(health::HoldOver{}); }
  // Kills the process. Nothing follows.
  void end();

  // The child is the process, which must not be reaped as an orphan.
  bool owns(pid_t child) const { return run_ && run_->pid() == child; }

 private:
  bool is_auto() const { return spec_.check == "auto"; }
  void step(const health::Event& event);
  void perform(const health::RunCheck&);
  void perform(const health::ArmTimer&);
  void perform(const health::LetJoin&);
  void perform(const health::RefuseJoin& refuse);
  void perform(const health::HoldRestart&) { hooks_.held(spec_.limit); }
  void perform(const health::LetRestart&);
  void perform(const health::Warn& warn) { hooks_.warn(warn.sentence); }
  void perform(const health::Evict& evict) { hooks_.unfit(evict.sentence); }
  void perform(const health::TakeBack&) { hooks_.fit_again(); }

  void start();
  std::string question() const;
  void arm_limit();
  void on_late();
  void on_end(const ExitStatus& end, const std::string& output);
  void take_facts(std::string_view line);
  void answer_unfit(const std::string& why);
  void answer(std::vector<health::Finding> findings);

  boost::asio::io_context& io_;
  const Spec spec_;
  const Hooks hooks_;
  std::atomic<pid_t>* keeper_slot_ = nullptr;
  health::Core core_;
  health::Suspicion suspicion_;
  RunToCompletion<health::Event> events_;
  std::function<void()> join_;
  std::function<void()> go_on_;
  std::unique_ptr<CommandRun> run_;  // until it has ended, also if it is late
  bool is_stale_ = false;            // it began before the check that is wanted
  bool is_wanted_ = false;           // an answer of a check
  bool has_ended_ = false;
  Timer next_;
  Timer limit_;
  Timer::Clock::time_point due_;  // when limit_ expires
  std::optional<HealthFacts> first_;
  std::optional<HealthFacts> before_;
};

}  // namespace ddprun::agent
