// What the workers of a round are started with: program, environment, link, the memory for snapshots, and what ddprun brings
// into Python. Owned by Workers; event loop only.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "agent/job.h"
#include "agent/process/process.h"
#include "agent/process/worker_link.h"
#include "agent/standby/standby_pool.h"
#include "agent/supervisor/parts.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class WorkerBlueprints {
 public:
  // `round`: the current one, which the owner changes.
  WorkerBlueprints(const AgentParts& parts, const rdzv::RoundStart& round)
      : parts_(parts), round_(round) {}

  // The node's memory for snapshots. Without it one is made for the first worker, where a round can follow.
  void use_snapshot(rdzv::UniqueFd snapshot) { snapshot_ = std::move(snapshot); }

  struct Around {
    int control_group = -1;        // a folder; -1: none
    bool may_be_replaced = false;  // in place
  };
  // For a worker of that rank, but for its streams and its keeper's slot.
  StandbyPool::Blueprint make(int local_rank, const std::string& error_file, const Around& around);
  void add_python_hooks(ProcessSpec& spec, ChildEnvironment& environment);

 private:
  std::shared_ptr<WorkerLink> make_link(ChildEnvironment& environment);

  const AgentParts& parts_;
  const rdzv::RoundStart& round_;
  rdzv::UniqueFd python_hooks_;  // the archive, made for the first worker
  rdzv::UniqueFd snapshot_;
  bool has_told_no_link_ = false;
};

// What the user reads about a worker that is stopped before its first instruction: whole lines. No
// debug server is started, because everybody who reaches its port controls the worker.
std::string waits_for_debugger_text(int rank, pid_t pid, const std::string& host,
                                    const Environment& environment);

}  // namespace ddprun::agent
