// The workers of this node as everything reads them that does not change them: the status of the node, the watch for
// hangs, the observers. It shows the workers of the round that runs, or of the last one. Owned by Workers; event
// loop only. Nothing here waits for a worker.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/node_core.h"
#include "agent/job.h"
#include "agent/process/process.h"
#include "agent/process/worker_link.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/worker_abi/group_calls.h"
#include "rendezvous/round/hang_core.h"
#include "rendezvous/round/lag_core.h"

namespace ddprun::agent {

// What the class Workers knows of one rank of this node.
struct Worker {
  std::unique_ptr<WorkerProcess> process;  // null: it has ended, or was not started
  std::shared_ptr<WorkerLink> link;        // null: likewise, or it was started without one
  std::uint64_t number = 0;                // counts the processes of all ranks
  std::string error_file;                  // empty: none
  // The link of the worker that has ended, as long as it may be replaced.
  std::shared_ptr<WorkerLink> before = nullptr;
  bool is_starting = false;               // its program is not executed yet
  std::optional<Error> not_started = {};  // why it never will be; its end follows
  std::string hang = {};  // the verdict upon which it is killed; empty: there is none
  std::string hang_stack = {};
  std::string nan =
      {};  // the value upon which it is killed (--on-nan): a sentence; empty: there is none
  std::string asked_by = {};  // the request upon which it is killed; empty: there is none
  // It is to be told of a preemption, by this signal or by its link; 0: by its link alone. None: it is not to be told.
  std::optional<int> leave_signal = {};
  bool was_told_to_leave = false;  // by either
  bool was_signalled_to_leave = false;
};

class WorkerView {
 public:
  // `workers`: by local rank. The owner changes them.
  WorkerView(const Job& job, const rdzv::RoundStart& round, const std::vector<Worker>& workers)
      : job_(job), round_(round), workers_(workers), holds_(workers.size()) {}

  const rdzv::RoundStart& round() const { return round_; }  // the current one, or the last
  int count() const { return static_cast<int>(workers_.size()); }
  int running() const;
  int rank_of(int local_rank) const { return round_.rank_offset + local_rank; }
  pid_t pid(int local_rank) const;  // 0: it does not run

  // None: the worker reported none, has no link, or has ended.
  std::optional<WorkerProgress> progress(int local_rank) const;
  StepMarks marks(int local_rank) const;                  // likewise
  std::vector<GroupCalls> calls(int local_rank) const;    // likewise
  record::RecordedThreads threads(int local_rank) const;  // likewise
  // Of those that run: when they came to their latest calls, at most so many of each group.
  std::vector<rdzv::RankArrivals> arrivals(std::size_t most) const;

  // What holds it, and how long it has been held, as far as earlier looks tell.
  std::pair<RankState, std::chrono::nanoseconds> held(int local_rank);
  // What the workers do that were stopped by the signal, by local rank.
  std::vector<WorkerSeen> look(int signal) const;
  // In words, which of these workers wait for execve, and for which program; empty: none.
  std::string what_starts(const std::vector<int>& local_ranks) const;

 private:
  struct Hold {
    std::uint64_t number = 0;    // the process that was looked at
    std::uint64_t switches = 0;  // at the last look
    rdzv::HeldFor held_for = {};
  };
  const Worker& worker(int local_rank) const {
    return workers_.at(static_cast<std::size_t>(local_rank));
  }

  const Job& job_;
  const rdzv::RoundStart& round_;
  const std::vector<Worker>& workers_;
  std::vector<Hold> holds_;  // by local rank
};

}  // namespace ddprun::agent
