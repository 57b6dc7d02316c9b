// The workers of this node: starts, signals and watches them, with their streams, links and error
// files, and kills the orphans that they leave behind. The supervisor performs the core's actions
// on it, and it reports events for the core. A round ends with close(), when no process that it
// started is left. Owned by the Supervisor; event loop only.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/node_core.h"
#include "agent/core/replacement_core.h"
#include "agent/core/worker_event.h"
#include "agent/events/downtime_clock.h"
#include "agent/process/child_reaper.h"
#include "agent/process/death_watch.h"
#include "agent/process/oom_watch.h"
#include "agent/process/process.h"
#include "agent/process/worker_link.h"
#include "agent/standby/standby_pool.h"
#include "agent/supervisor/dying_workers.h"
#include "agent/supervisor/node_stacks.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/worker_blueprints.h"
#include "agent/supervisor/worker_view.h"
#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/must_hold.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class Workers {
 public:
  using StartProcess = decltype(&WorkerProcess::start);

  using OnEvent = std::function<void(const WorkerEvent&)>;
  using WantedSteps = std::vector<std::optional<DowntimeClock::WantedStep>>;
  // prepare() starts the keeper, which outlives what is here.
  Workers(AgentParts parts, std::optional<Keeper>& keeper, OnEvent on_event,
          StartProcess start = &WorkerProcess::start);

  // Call it before the agent has another thread or child. `offer`: memory for snapshots that the keeper holds
  // after the agent's end; `snapshot`: the memory that workers get, else the group makes its own where it needs one.
  Result<void> prepare(std::optional<MemoryOffer> offer = std::nullopt,
                       rdzv::UniqueFd snapshot = {}) {
    blueprints_.use_snapshot(std::move(snapshot));
    own_groups_ = cgroup::own_groups();
    return reaper_.start(helper_slot() + kHelpersMax, std::move(offer), own_groups_);
  }
  // After prepare(): a child of the agent that is no worker is not reaped as an orphan, and the keeper ends its group, whose
  // slot this is. For each use of children one call; a use has one child at a time.
  static constexpr std::size_t kHelpersMax = 3;
  std::atomic<pid_t>* take_in_helper(std::function<bool(pid_t)> owns) {
    must_hold(own_helper_.size() < kHelpersMax, "the keeper has a slot for each helper");
    own_helper_.push_back(std::move(owns));
    return reaper_.keeper_slot(helper_slot() + own_helper_.size() - 1);
  }

  // What the GPUs have to say. Without a call of this, nothing is asked.
  struct GpuHooks {
    // Adds what is known at this moment. It waits for nothing, because a failure must not come after its consequences.
    std::function<void(rdzv::WorkerFailure& failure)> explain = [](rdzv::WorkerFailure&) {};
    // May call `done` before it returns.
    std::function<void(std::function<void()> done)> await_memory = [](const auto& done) { done(); };
  };
  void ask_gpus_with(GpuHooks hooks) { gpus_ = std::move(hooks); }

  // ---- a round
  // `wanted_steps`: by local rank, which steps end the downtime; a rank without one has none to report.
  void begin(const rdzv::RoundStart& start, WantedSteps wanted_steps);
  // From now on workers end because they are told to, until the next round begins. `parks`: park() follows.
  void round_stops(bool parks = false) {
    if (boundaries_.state == link::BoundaryState::kHold && !parks) set_boundaries({});
    is_stopping_ = true;
    replacement_.round_stops();
  }
  // If the workers still wait for their log files, they are not started, and WorkerEnded follows.
  void signal(int local_rank, int signal);
  // WorkerTold follows, when the worker takes requests over its link or handles the signal; `signal`: as in AskToLeave.
  // One that does neither runs on, and a line says so.
  void ask_to_leave(int local_rank, int signal);
  // As HoldWorkers says; WorkersHeld follows.
  void hold_at_boundary(rdzv::HoldSteps::Until until);
  void let_leave(std::int64_t boundary);
  // They go on until they have done so many steps, and wait then: WorkersParked follows when all that live do.
  void park(std::int64_t after_step);
  // To the live workers that have a link.
  void tell_group_broken(int rank);
  // The prepared standby takes the place of the worker that has ended, if the rank is here; else, or
  // if there is none any more, WorkerEnded follows. All other workers make their groups anew.
  void replace(const Replace& what);
  // Kills the worker with this rank of this node, as if it had died. An error: it cannot be replaced.
  // `by`: as in WorkerFailure::asked_by.
  Result<void> kill_to_replace(int rank, const std::string& by);
  // It will be killed because it hangs: this verdict, and its stack. False: it has ended.
  bool is_to_end(int local_rank, const std::string& hang, const std::string& stack);
  // It will be killed because of what it has reported (--on-nan=stop): a sentence. False: it has ended.
  bool is_to_end_for_nan(int local_rank, const std::string& why);
  // From now on a SIGKILL in this round counts as one after the grace period.
  void grace_is_over(std::chrono::milliseconds grace) { grace_ = grace; }
  // StacksTaken follows from the loop, unless a worker is killed before.
  void take_stacks();
  // Call it when all workers have ended: kills their orphans, or spares them. RoundClosed follows, possibly before
  // close() returns.
  void close(bool spares_orphans);

  // No process of a worker is left, and no error file will be read: the keeper removes those that are temporary.
  void let_keeper_go() { reaper_.let_keeper_go(); }
  // The keeper is not to hold the memory that it was offered.
  void drop_memory() { reaper_.drop_memory(); }
  // No round follows.
  void job_is_over() { standbys_.job_is_over(); }

  // ---- at any time
  void signal_all(int signal);  // SIGCONT to their groups, a notice to the workers alone
  void pause_all();

  WorkerView& view() { return view_; }
  const WorkerView& view() const { return view_; }
  NodeStacks& stacks() { return stacks_; }
  // None: the user has not asked for any.
  std::optional<StandbyStatus> standbys() const { return standbys_.status(); }
  // None: the user has not asked for standbys.
  std::optional<ReplacementStatus> replacement() const;

 private:
  void emit(worker_event::What what) { on_event_({round_.round, std::move(what)}); }

  ChildReaper::Hooks reaper_hooks();
  StandbyPool::Hooks standby_hooks();
  Worker& worker(int local_rank) { return workers_[static_cast<std::size_t>(local_rank)]; }
  const Worker& worker(int local_rank) const {
    return workers_[static_cast<std::size_t>(local_rank)];
  }
  int count() const { return static_cast<int>(workers_.size()); }
  bool is_owned(pid_t child) const;
  std::size_t helper_slot() const { return workers_.size() + StandbyPool::slots(job_); }
  bool are_workers_starting() const;
  pid_t worker_like_a_zygote() const;

  void start_all(Result<void> files);
  void do_not_start();
  bool tell_to_leave(int local_rank);
  void look_whether_all_are_told(int looks);
  std::string word_on_ranks_that_do_not_react() const;
  void set_boundaries(const WorkerLink::Boundaries& boundaries);
  void hold_to_stop();
  void look_whether_all_are_parked();
  Result<void> start_one(int local_rank);
  WorkerIdentity identity_of(int local_rank) const;
  StandbyPool::Blueprint blueprint(int local_rank, const std::string& error_file);
  Result<StandbyPool::Blueprint> blueprint_of_prepared(int local_rank);
  Result<std::unique_ptr<WorkerProcess>> start_prepared(const ProcessSpec& spec,
                                                        WorkerProcess::OnEnd on_end,
                                                        WorkerProcess::OnStarted on_started);
  void on_started(int local_rank, std::uint64_t number, Result<void> started);
  void worker_runs(int local_rank);
  void look_whether_all_run();
  WorkerProcess::OnEnd teller_of_end(int local_rank, std::uint64_t number);
  void note_process(int local_rank, WorkerProcess& process);
  WorkerLink::Hooks link_hooks(int local_rank);
  void on_end(int local_rank, std::uint64_t number, ExitStatus status);
  void worker_ended(int local_rank, ExitStatus status, pid_t pid);
  void go_on_closing();
  void explain_end(rdzv::WorkerFailure end, bool has_left);
  void report_end(rdzv::WorkerFailure end, bool has_left);
  rdzv::WorkerFailure failure_of(int local_rank, ExitStatus status, pid_t pid) const;

  // ---- replacement in place
  static bool takes_part(const Worker& worker);
  static ReplacementCore::Standing standing_of(const Worker& worker);
  std::optional<Replaceable> replaceable(const rdzv::WorkerFailure& failure);
  std::string why_no_standby() const;  // as long as the job lasts
  bool take_place(int local_rank, const Replace& what);
  void on_hello(int local_rank);
  void on_committed(int local_rank, std::uint32_t generation);
  void on_early_death(int local_rank, std::uint64_t number, int wait_status);

  const AgentParts parts_;
  const Job& job_;
  Output& output_;
  const OnEvent on_event_;
  const StartProcess start_process_;
  ChildReaper reaper_;
  StandbyPool standbys_;
  DeathWatch death_watch_;
  BlockingCalls files_;  // error files, and others that a file server may hold
  std::vector<std::function<bool(pid_t)>> own_helper_;
  std::string own_groups_;  // control groups of the agent; once it is prepared
  OomWatch oom_watch_;

  rdzv::RoundStart round_;
  WorkerBlueprints blueprints_;
  WantedSteps wanted_steps_;
  std::vector<Worker> workers_;  // by local rank
  WorkerView view_;
  DyingWorkers dying_;
  std::uint64_t processes_ = 0;  // that were workers of this node so far
  int made_for_replacement_ = 0;
  bool has_told_no_pidfd_ = false;
  ReplacementCore replacement_;
  std::set<pid_t> process_groups_;  // the workers' of this round
  bool is_closing_ = false;
  bool spares_orphans_ = false;
  Timer close_timer_;
  bool is_about_to_start_ = false;     // when their log files are open, and standbys wait for them
  bool is_stopping_ = false;           // the round
  WorkerLink::Boundaries boundaries_;  // as the workers of this round have them
  Timer leave_timer_;
  std::optional<std::chrono::milliseconds> grace_;  // once it is over in this round
  NodeStacks stacks_;
  GpuHooks gpus_;
};

}  // namespace ddprun::agent
