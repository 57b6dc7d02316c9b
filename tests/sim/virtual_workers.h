// The workers of a simulated agent, and their prepared standbys. The workers of a round, on all nodes,
// join, train and fail together. Some jobs have workers that can recover: when one of them dies the
// others wait until they are called to make their groups anew, and then do the interrupted step again.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/core/node_core.h"
#include "tests/sim/invariants.h"
#include "tests/sim/virtual_job.h"

namespace ddprun::sim {

using namespace std::chrono_literals;

class VirtualWorkers {
 public:
  struct Agent {
    int number = 0;
    ProcessPtr process;
    std::shared_ptr<Invariants::Facts> facts;
    std::function<void(const agent::NodeEvent&)> step;
    std::function<bool()> is_running;  // its core
  };
  VirtualWorkers(VirtualJob& job, Agent agent, int count)
      : job_(job), agent_(std::move(agent)), workers_(static_cast<std::size_t>(count)) {}

  void start(const rdzv::RoundStart& start) {
    key_ = {start.round, start.master_port};
    first_rank_ = start.rank_offset;
    can_recover_ = is_held_ = false;
    reacts_ = !job_.habits.chance(20);
    passed_ = leave_at_ = park_at_ = 0;
    counts_steps_ = job_.habits.chance(70);
    waits_at_.reset();
    WorkerGroup& group = job_.groups[key_];
    group.world_size = start.world_size;
    for (int local_rank = 0; local_rank < count(); ++local_rank) {
      Worker& worker = at(local_rank);
      begin_life(worker);
      worker.ignores_term = job_.random.chance(job_.timing.ignores_term_percent);
      worker.has_standby = worker.took_place = false;
      worker.has_state = true;
      worker.is_starting = true;
      const bool is_slow = job_.habits.chance(job_.timing.slow_exec_percent);
      job_.queue.after(job_.habits.time(100us, is_slow ? 3s : 300us), agent_.process,
                       [this, local_rank, life = worker.life] { execute(local_rank, life); });
    }
  }

  void signal(int local_rank, int signal) {
    const Worker& worker = at(local_rank);
    if (signal == SIGCONT) return;
    if (signal == SIGKILL || worker.is_starting) {
      end_after(500us, local_rank, ExitStatus::killed(SIGKILL));
    } else if (!worker.ignores_term) {
      end_after(job_.random.time(job_.timing.stop_min, job_.timing.stop_max), local_rank,
                ExitStatus::killed(signal));
    }
  }

  // Workers that can recover ask at their boundaries; of some nodes the others do not react.
  void ask_to_leave(int local_rank) {
    const auto delay = job_.random.time(10ms, 800ms);
    const bool is_orderly = job_.random.chance(50);
    Worker& worker = at(local_rank);
    if (!worker.is_alive) return;
    if (job_.recovery.is_on()) return;
    if (!reacts_) return;
    worker.was_told = true;
    agent_.step(agent::WorkerTold{key_.round, local_rank});
    end_after(delay, local_rank, ExitStatus::exited(is_orderly ? 0 : 1));
  }

  bool leaves(int local_rank) { return at(local_rank).is_alive && at(local_rank).leaves; }
  void hold() {
    is_held_ = true;
    agent_.step(agent::WorkersHeld{key_.round, passed_});
  }
  // On some nodes the workers handle the stop; without recovery they come to no boundary.
  void hold_to_stop() {
    is_held_ = counts_steps_ && passed_ > 0;
    if (!counts_steps_ || (job_.recovery.is_on() && passed_ == 0)) {
      return agent_.step(
          agent::WorkersHeld{key_.round, -1, {}, rdzv::HoldSteps::Until::kRoundStop});
    }
    agent_.step(agent::WorkersHeld{
        key_.round, passed_,
        std::chrono::ceil<std::chrono::milliseconds>(job_.habits.time(0ms, 20ms)),
        rdzv::HoldSteps::Until::kRoundStop});
  }
  void park(std::int64_t step) {
    require(counts_steps_, "workers that handle the stop themselves are told to wait");
    park_at_ = step;
    go_on();
  }
  void let_leave(std::int64_t boundary) {
    leave_at_ = boundary;
    go_on();
  }
  void go_on() {
    is_held_ = false;
    if (waits_at_) go_on_from(*std::exchange(waits_at_, std::nullopt));
  }

  // Some of those that can recover end by themselves, others when they are told to stop.
  void tell_group_broken() {
    if (!job_.recovery.is_on()) return;
    for (int local_rank = 0; local_rank < count(); ++local_rank) {
      if (!job_.habits.chance(70)) continue;
      end_after(job_.habits.time(1ms, 30ms), local_rank, ExitStatus::exited(1));
    }
  }

  void replace(const agent::Replace& what) {
    if (what.local_rank) take_place(*what.local_rank, what);
    for (int local_rank = 0; local_rank < count(); ++local_rank) {
      if (at(local_rank).is_alive) call(local_rank, what.generation);
    }
  }

  // Its keeper ends them at the same time as the agent.
  void kill_all() {
    for (Worker& worker : workers_) worker.is_alive = false;
    agent_.facts->live_workers = 0;
    if (has_started()) job_.groups[key_].attempt += 1;
  }
  // The workers of other nodes notice that those of this one are dead.
  void let_peers_notice() {
    if (has_started()) death_is_noticed();
  }
  // One of them fails by itself; does nothing if none lives.
  void fail_one() {
    const int local_rank = job_.random.number(0, count() - 1);
    end(local_rank, at(local_rank).life, ExitStatus::exited(3), /*by_itself=*/true);
  }

 private:
  static constexpr int kSteps = 12;

  struct Boundary {
    int number = 0;
    std::uint64_t attempt = 0;  // as the group had it when its step ended
  };

  struct Worker {
    bool is_alive = false;
    bool is_starting = false;
    std::uint64_t life = 0;  // counts processes: events of an earlier one are dropped
    bool ignores_term = false;
    bool keeps_its_word = true;     // else it ends when a peer does
    bool comes_when_called = true;  // else it hangs, or
    bool has_left_loop = false;     // says that it does not come
    std::uint32_t called = 0;       // to this generation
    std::uint32_t waits_in = 0;     // for the others
    std::uint32_t generation = 0;   // in which its groups were made last
    bool has_standby = false;
    bool took_place = false;  // of another one
    bool has_state = false;   // of the training
    bool was_told = false;    // by a signal, of a preemption
    bool leaves = false;      // at its boundary
  };

  int count() const { return static_cast<int>(workers_.size()); }
  Worker& at(int local_rank) { return workers_[static_cast<std::size_t>(local_rank)]; }
  bool has_started() const { return key_.port != 0; }

  void execute(int local_rank, std::uint64_t life) {
    Worker& worker = at(local_rank);
    if (!worker.is_alive || worker.life != life) return;
    worker.is_starting = false;
    agent_.step(agent::WorkerStarted{key_.round, local_rank});
    WorkerGroup& group = job_.groups[key_];
    group.workers.emplace_back(this, local_rank);
    if (group.is_broken) return break_group(job_, key_);
    if (static_cast<int>(group.workers.size()) < group.world_size) return;
    if (job_.recovery.is_on()) return train(group);
    for (const auto& [peer, its] : group.workers) {
      job_.queue.after(job_.timing.training + job_.random.time(0us, 30ms),
                       [peer = peer, its = its, of_peer = peer->at(its).life, &group] {
                         if (!group.is_broken) peer->end(its, of_peer, ExitStatus::exited(0));
                       });
    }
  }

  void begin_life(Worker& worker) {
    worker.is_alive = true;
    worker.life += 1;
    worker.called = worker.waits_in = worker.generation = 0;
    worker.was_told = worker.leaves = false;
    agent_.facts->live_workers += 1;
    if (!job_.recovery.is_on()) return;
    worker.keeps_its_word = !job_.habits.chance(job_.recovery.breaks_word_percent);
    worker.comes_when_called = !job_.habits.chance(job_.recovery.hangs_percent);
    worker.has_left_loop = !worker.comes_when_called && worker.life % 2 == 0;
  }

  void end_after(CoreTime::duration delay, int local_rank, ExitStatus status) {
    const Worker& worker = at(local_rank);
    if (!worker.is_alive) return;
    job_.queue.after(
        delay, [this, local_rank, life = worker.life, status] { end(local_rank, life, status); });
  }

  void end(int local_rank, std::uint64_t life, ExitStatus status, bool by_itself = false,
           bool has_left = false) {
    Worker& worker = at(local_rank);
    if (!worker.is_alive || worker.life != life) return;
    worker.is_alive = false;
    agent_.facts->live_workers -= 1;
    job_.trace(
        "worker ", local_rank, " of agent ", agent_.number,
        " ends: ", [&] { return status.to_string(); }, by_itself ? ", by its own fault" : "");
    agent::WorkerEnded ended{key_.round, local_rank, {}};
    ended.has_left = has_left || worker.was_told;
    job_.worker_ended(key_, status, by_itself);
    if (status.is_success()) {
      job_.groups[key_].succeeded += 1;
    } else {
      ended.failure.emplace();
      ended.failure->rank = first_rank_ + local_rank;
      ended.failure->local_rank = local_rank;
      ended.failure->pid = 1000 + static_cast<int>(worker.life);
      ended.failure->status = status;
      ended.failure->progress = progress_of(worker.life);
      if (can_recover_ && (worker.has_standby || worker.took_place) && agent_.is_running()) {
        ended.replaceable =
            agent::Replaceable{job_.groups[key_].committed, worker.generation, worker.has_standby};
      }
      death_is_noticed();
    }
    job_.queue.after(100us, agent_.process, [this, ended] { agent_.step(ended); });
  }

  // Some step, since each process begins where a checkpoint was; now and then none, or one that it has counted itself.
  static std::optional<WorkerProgress> progress_of(std::uint64_t life) {
    const std::uint64_t which = life * 0x9E3779B97F4A7C15U >> 32;
    if (which % 7 == 0) return std::nullopt;
    WorkerProgress progress;
    progress.step = static_cast<std::int64_t>(which % 11);
    if (which % 5 == 0) progress.step_kind = StepKind::kCounted;
    return progress;
  }

  void death_is_noticed() {
    WorkerGroup& group = job_.groups[key_];
    group.attempt += 1;
    if (!job_.recovery.is_on() || !group.is_complete) return break_group(job_, key_);
    for (const auto& [node, local_rank] : group.workers) {
      if (node->key_ != key_ || (node->can_recover_ && node->at(local_rank).keeps_its_word))
        continue;
      node->end_after(job_.habits.time(5ms, 60ms), local_rank, ExitStatus::exited(1));
    }
  }

  // Gloo's peers throw within 40 ms of a worker's death.
  static void break_group(VirtualJob& job, GroupKey key) {
    WorkerGroup& group = job.groups[key];
    group.is_broken = true;
    for (const auto& [node, local_rank] : group.workers) {
      const Worker& worker = node->at(local_rank);
      if (!worker.is_alive || node->key_ != key) continue;
      job.queue.after(job.random.time(5ms, 60ms),
                      [node = node, local_rank = local_rank, life = worker.life] {
                        node->end(local_rank, life, ExitStatus::exited(1));
                      });
    }
  }

  // ---- workers that can recover

  void train(WorkerGroup& group) {
    group.is_complete = true;
    for (const auto& [node, local_rank] : group.workers) {
      if (local_rank == 0) node->announce();
    }
    begin_step(job_, key_);
  }

  void announce() {
    if (!job_.habits.chance(job_.recovery.announces_percent)) return;
    job_.queue.after(job_.habits.time(0us, 5ms), agent_.process, [this, key = key_] {
      if (key != key_) return;
      can_recover_ = true;
      agent_.step(agent::WorkersCanRecover{key.round});
      for (int local_rank = 0; local_rank < count(); ++local_rank) prepare_standby(local_rank);
    });
  }

  void prepare_standby(int local_rank) {
    if (!job_.habits.chance(job_.recovery.standby_percent)) return;
    job_.queue.after(job_.habits.time(5ms, 300ms), agent_.process, [this, local_rank, key = key_] {
      if (key == key_) at(local_rank).has_standby = true;
    });
  }

  static void begin_step(VirtualJob& job, GroupKey key) {
    WorkerGroup& begun = job.groups[key];
    begun.attempt += 1;
    const auto length = job.timing.training / kSteps + job.habits.time(0us, 2ms);
    job.queue.after(length, [&job, key, attempt = begun.attempt] {
      if (job.groups[key].attempt == attempt) end_step(job, key);
    });
  }

  static void end_step(VirtualJob& job, GroupKey key) {
    WorkerGroup& group = job.groups[key];
    const auto& poison = job.recovery.poison;
    for (const auto& [node, local_rank] : group.workers) {
      const bool is_poisoned = poison && poison->step == group.committed + 1 &&
                               poison->rank == node->first_rank_ + local_rank;
      if (!is_poisoned) continue;
      return node->end(local_rank, node->at(local_rank).life, ExitStatus::killed(SIGSEGV),
                       /*by_itself=*/true);
    }
    group.committed += 1;
    group.ready.clear();
    if (group.committed < kSteps) {
      for (const auto& [node, local_rank] : group.workers) {
        if (local_rank == 0) node->come_to({group.committed, group.attempt});
      }
      return;
    }
    for (const auto& [node, local_rank] : group.workers) {
      node->end_after(job.habits.time(0us, 30ms), local_rank, ExitStatus::exited(0));
    }
  }

  // ---- step boundaries: the workers of a node come to them at once, those of the nodes one after another

  void come_to(Boundary boundary) {
    job_.queue.after(job_.habits.time(0us, 2ms), agent_.process, [this, boundary, key = key_] {
      if (key != key_ || agent_.facts->live_workers == 0) return;
      passed_ = boundary.number;
      is_held_ ? void(waits_at_ = boundary) : go_on_from(boundary);
    });
  }

  // A death since then ends the step that follows: it begins when the groups are made anew.
  void go_on_from(Boundary boundary) {
    WorkerGroup& group = job_.groups[key_];
    if (leave_at_ != 0 && boundary.number >= leave_at_) return leave(group, boundary.number);
    if (park_at_ != 0 && boundary.number >= park_at_) return wait_parked(group, boundary.number);
    if (group.attempt != boundary.attempt) return come_when_released();
    group.ready.insert(this);
    for (const auto& [node, local_rank] : group.workers) {
      if (node->key_ == key_ && !group.ready.contains(node)) return;
    }
    require(!group.left_at, "a step begins that workers are missing of, which have left");
    begin_step(job_, key_);
  }

  void wait_parked(WorkerGroup& group, int step) {
    require(!group.parked_at || *group.parked_at == step,
            "workers are stopped after different steps");
    require(group.ready.empty(), "workers wait for their end, and others are in a step with them");
    group.parked_at = step;
    job_.queue.after(job_.habits.time(0us, 2ms), agent_.process,
                     [this, round = key_.round] { agent_.step(agent::WorkersParked{round}); });
  }

  // They were called to make their groups anew while they were held.
  void come_when_released() {
    for (int local_rank = 0; local_rank < count(); ++local_rank) {
      const Worker& worker = at(local_rank);
      if (worker.called > worker.generation) arrive(local_rank, worker.life, worker.called);
    }
  }

  void leave(WorkerGroup& group, int boundary) {
    require(!group.left_at || *group.left_at == boundary, "workers leave at different steps");
    group.left_at = boundary;
    for (int local_rank = 0; local_rank < count(); ++local_rank) {
      Worker& worker = at(local_rank);
      if (!worker.is_alive) continue;
      worker.comes_when_called = false;
      worker.has_left_loop = worker.leaves = true;
      if (worker.called > worker.generation) refuse(local_rank);
      job_.queue.after(job_.habits.time(0us, 300ms), [this, local_rank, life = worker.life] {
        end(local_rank, life, ExitStatus::exited(0), /*by_itself=*/false, /*has_left=*/true);
      });
    }
  }

  void take_place(int local_rank, const agent::Replace& what) {
    Worker& worker = at(local_rank);
    require(!worker.is_alive, "two processes have the same rank");
    const bool is_there = std::exchange(worker.has_standby, false) &&
                          !job_.habits.chance(job_.recovery.lost_standby_percent);
    if (!is_there) {
      job_.trace("no standby of worker ", local_rank, " of agent ", agent_.number, " is left");
      return agent_.step(agent::WorkerEnded{what.round, local_rank, what.failure});
    }
    begin_life(worker);
    worker.took_place = true;
    worker.has_state = false;
    prepare_standby(local_rank);
  }

  void call(int local_rank, std::uint32_t generation) {
    Worker& worker = at(local_rank);
    require(generation > worker.called, "a worker is called to a generation of the past");
    worker.called = generation;
    if (worker.has_left_loop) refuse(local_rank);
    if (!worker.comes_when_called) return;
    job_.queue.after(job_.habits.time(1ms, 20ms),
                     [this, local_rank, life = worker.life, generation] {
                       arrive(local_rank, life, generation);
                     });
  }

  void refuse(int local_rank) {
    const agent::WorkerCannotRegroup refusal{key_.round, local_rank};
    job_.queue.after(1ms, agent_.process, [this, refusal] { agent_.step(refusal); });
  }

  void arrive(int local_rank, std::uint64_t life, std::uint32_t generation) {
    Worker& worker = at(local_rank);
    if (!worker.is_alive || worker.life != life || worker.called != generation) return;
    if (!worker.comes_when_called || waits_at_) return;
    worker.waits_in = generation;
    const WorkerGroup& group = job_.groups[key_];
    for (const auto& [node, its] : group.workers) {
      const Worker& peer = node->at(its);
      if (!peer.is_alive || node->key_ != key_ || peer.waits_in != generation) return;
    }
    job_.trace("all workers are in generation ", generation);
    require(std::ranges::any_of(
                group.workers, [](const auto& its) { return its.first->at(its.second).has_state; }),
            "all workers are in a generation, and none has the state");
    for (const auto& [node, its] : group.workers) node->regrouped(its, generation);
    begin_step(job_, key_);
  }

  // What it says may come after its end.
  void regrouped(int local_rank, std::uint32_t generation) {
    at(local_rank).generation = generation;
    at(local_rank).has_state = true;
    agent_.facts->generation = generation;
    job_.queue.after(job_.habits.time(100us, 2ms), agent_.process,
                     [this, local_rank, generation, round = key_.round] {
                       agent_.step(agent::WorkerRegrouped{round, local_rank, generation});
                     });
  }

  VirtualJob& job_;
  const Agent agent_;
  std::vector<Worker> workers_;
  GroupKey key_;  // of the last round
  int first_rank_ = 0;
  bool can_recover_ = false;  // its workers have said so
  bool is_held_ = false;      // they wait at their next boundary
  bool reacts_ = true;        // to the signal of a preemption, of workers that cannot recover
  std::optional<Boundary> waits_at_;  // they wait at this one
  std::int64_t passed_ = 0;
  std::int64_t park_at_ = 0;
  bool counts_steps_ = false;
  std::int64_t leave_at_ = 0;  // 0: not at any
};

}  // namespace ddprun::sim
