// The workers of this node: starts, signals and watches them, with their streams, links and error
// files, and kills the orphans that they leave behind. The supervisor performs the core's actions
// on it, and it reports events for the core. A round ends with close(), when no process that it
// started is left. Owned by the Supervisor; event loop only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/node_core.h"
#include "agent/process/child_reaper.h"
#include "agent/process/death_watch.h"
#include "agent/process/oom_watch.h"
#include "agent/process/process.h"
#include "agent/process/stack_dump.h"
#include "agent/process/worker_link.h"
#include "agent/standby/standby_pool.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/stack_request.h"
#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/round/hang_core.h"

namespace ddprun::agent {

class WorkerGroup {
 public:
  using StartProcess = decltype(&WorkerProcess::start);

  struct Events {
    // WorkerStarted, WorkerEnded, StacksTaken, RoundClosed, WorkersCanRecover, WorkerRegrouped
    std::function<void(NodeEvent)> event;
    // For the observers; each is called before the event that belongs to it.
    // By local rank; 0: no process could be made. Their programs need not be executed yet.
    std::function<void(const std::vector<pid_t>&)> started;
    // Its progress and its marks can still be read.
    std::function<void(int local_rank, ExitStatus)> ending;
    std::function<void(const rdzv::WorkerFailure& ended, bool was_told_to_stop)> ended;
    std::function<void(int local_rank, pid_t)> killed;  // after its grace period
    std::function<void(pid_t)> keeper_replaced;
    std::function<bool()> is_stopping;  // the round, as the core has it
    std::function<void(int local_rank, const StepMarks&)> stepped;
    // The step that a worker which is about to start has to commit; 0: none.
    std::function<std::pair<StepKind, std::int64_t>(int local_rank)> wanted_step;
    std::function<void(std::int64_t step, int rank, int other, const std::string& what)>
        replicas_differ = [](std::int64_t, int, int, const std::string&) {};
    // A generation has begun; `newcomer`: the process that has taken the place, if the rank is here.
    std::function<void(const Replace&, pid_t newcomer)> replaced = [](const Replace&, pid_t) {};
    std::function<void(int local_rank, std::uint32_t generation)> regrouped = [](int,
                                                                                 std::uint32_t) {};
    std::function<void(int local_rank, std::uint32_t generation)> committed = [](int,
                                                                                 std::uint32_t) {};
  };
  // prepare() starts the keeper, which outlives what is here.
  WorkerGroup(AgentParts parts, std::optional<Keeper>& keeper, Events events,
              StartProcess start = &WorkerProcess::start);

  // Call it before the agent has another thread or child. `offer`: memory for snapshots that the keeper holds
  // after the agent's end; `snapshot`: the memory that workers get, else the group makes its own where it needs one.
  Result<void> prepare(std::optional<MemoryOffer> offer = std::nullopt,
                       rdzv::UniqueFd snapshot = {}) {
    snapshot_ = std::move(snapshot);
    own_groups_ = cgroup::own_groups();
    return reaper_.start(workers_.size() + StandbyPool::slots(job_), std::move(offer), own_groups_);
  }

  // ---- a round
  void begin(const rdzv::RoundStart& start);
  // If the workers still wait for their log files, they are not started, and WorkerEnded follows.
  void signal(int local_rank, int signal);
  // In words, which of these workers wait for execve, and for which program; empty: none.
  std::string what_starts(const std::vector<int>& local_ranks) const;
  void ask_to_leave(int local_rank, int signal);
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
  // What the workers do that were stopped by the signal, by local rank.
  std::vector<WorkerSeen> look(int signal) const;
  // From now on a SIGKILL in this round counts as one after the grace period.
  void grace_is_over() { is_grace_over_ = true; }
  // Takes the stacks of the workers that are about to be killed, because they show why these hang.
  // StacksTaken follows from the loop, unless one of them is killed before.
  void take_stacks();
  // What the threads of these workers do, or of all. `done` is called once, after this has returned.
  void show_stacks(const StackQuery& question, StackRequest::Done done);
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

  const rdzv::RoundStart& round() const { return round_; }  // the current one, or the last
  int running() const;
  // None: the worker reported none, has no link, or has ended.
  std::optional<WorkerProgress> progress(int local_rank) const;
  StepMarks marks(int local_rank) const;                  // likewise
  std::vector<GroupCalls> calls(int local_rank) const;    // likewise
  record::RecordedThreads threads(int local_rank) const;  // likewise
  // The running ranks of this node with a connection to that port, by the port of their end. `done` is called once, after
  // this has returned.
  void ranks_connected_to(std::uint16_t port,
                          std::function<void(std::map<std::uint16_t, int>)> done);
  // What holds it, and how long it has been held, as far as earlier looks tell.
  std::pair<RankState, std::chrono::nanoseconds> held(int local_rank);
  // None: nobody has asked for any.
  std::optional<StandbyStatus> standbys() const { return standbys_.status(); }
  // None: nobody has asked for standbys.
  std::optional<ReplacementStatus> replacement() const;
  // Stacks of killed workers that have no log folder, to print after the report.
  const std::string& stacks_text() const { return stacks_text_; }

 private:
  struct Worker {
    std::unique_ptr<WorkerProcess> process;  // null: it has ended, or was not started
    std::shared_ptr<WorkerLink> link;        // null: likewise, or it was started without one
    std::uint64_t number = 0;                // of the process
    std::string error_file;                  // empty: none
    // Of one that has ended and may be replaced.
    std::shared_ptr<WorkerLink> before = nullptr;
    std::optional<rdzv::WorkerFailure> failure = {};
    bool is_starting = false;               // its program is not executed yet
    std::optional<Error> not_started = {};  // why it never will be; its end follows
    bool has_offered = false;               // to be replaced in place, and not withdrawn that
    bool is_newcomer = false;               // it has taken the place of a dead worker in this round
    std::uint64_t switches = 0;             // at the last look
    rdzv::HeldFor held_for = {};
    std::string hang = {};  // the verdict upon which it is killed; empty: there is none
    std::string hang_stack = {};
    std::string asked_by = {};  // the request upon which it is killed; empty: there is none
  };
  // A worker whose death is known and which the kernel has not ended yet.
  struct Dying {
    std::unique_ptr<WorkerProcess> process;
    std::uint64_t number = 0;
  };

  ChildReaper::Hooks reaper_hooks();
  StandbyPool::Hooks standby_hooks();
  Worker& worker(int local_rank) { return workers_[static_cast<std::size_t>(local_rank)]; }
  const Worker& worker(int local_rank) const {
    return workers_[static_cast<std::size_t>(local_rank)];
  }
  int count() const { return static_cast<int>(workers_.size()); }
  bool is_owned(pid_t child) const;
  bool are_workers_starting() const;
  pid_t worker_like_a_zygote() const;

  void start_all(Result<void> files);
  void do_not_start();
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
  std::shared_ptr<WorkerLink> make_link(ChildEnvironment& environment);
  void add_python_hooks(ProcessSpec& spec, ChildEnvironment& environment);
  void on_end(Round round, int local_rank, std::uint64_t number, ExitStatus status);
  void worker_ended(Round round, int local_rank, ExitStatus status, pid_t pid);
  void go_on_closing();
  void finish_stacks();
  void tell_of_end(Round round, rdzv::WorkerFailure ended, bool was_told_to_stop);
  rdzv::WorkerFailure failure_of(int local_rank, ExitStatus status, pid_t pid) const;

  // ---- replacement in place
  bool takes_part(const Worker& worker) const;
  bool can_replace(int local_rank) const;
  std::string why_no_standby() const;  // as long as the job lasts
  bool is_replacing() const;
  void let_dying_end(std::chrono::milliseconds after) const;
  bool take_place(int local_rank, const Replace& what);
  void on_hello(int local_rank);
  void on_regrouped(int local_rank, std::uint32_t generation);
  void on_committed(int local_rank, std::uint32_t generation);
  void on_early_death(int local_rank, std::uint64_t number, int wait_status);

  const AgentParts parts_;
  const Job& job_;
  Output& output_;
  const Events events_;
  const StartProcess start_process_;
  ChildReaper reaper_;
  StandbyPool standbys_;
  DeathWatch death_watch_;
  BlockingCalls files_;     // error files, and others that a file server may hold
  std::string own_groups_;  // control groups of the agent; once it is prepared
  OomWatch oom_watch_;
  rdzv::UniqueFd python_hooks_;  // the archive, made for the first worker
  // The node's memory for snapshots of the training, likewise, unless it outlives the agent.
  rdzv::UniqueFd snapshot_;

  rdzv::RoundStart round_;
  std::vector<Worker> workers_;  // by local rank
  std::list<Dying> dying_;
  std::uint64_t processes_ = 0;  // that were workers of this node so far
  int made_for_replacement_ = 0;
  bool has_told_no_pidfd_ = false;
  bool has_told_no_link_ = false;
  bool have_told_recovery_ = false;       // WorkersCanRecover, in this round
  std::uint32_t generation_ = 0;          // the last one
  std::vector<std::uint32_t> committed_;  // in which each local rank has committed a step
  std::set<pid_t> process_groups_;        // the workers' of this round
  bool is_closing_ = false;
  bool spares_orphans_ = false;
  Timer close_timer_;
  bool is_about_to_start_ = false;  // when their log files are open, and standbys wait for them
  bool is_grace_over_ = false;
  std::unique_ptr<StackDump> stacks_;
  std::string stacks_text_;
  StackRequest stack_request_;
};

}  // namespace ddprun::agent
