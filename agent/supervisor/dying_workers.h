// Workers whose deaths are known, from the lock in the page of their link, and which the kernel has not ended yet: others
// may have taken their places. Until the others have gone on, these get only the processors that the others leave over.
// Owned by Workers; event loop only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>

#include "agent/output/log.h"
#include "agent/process/process.h"

namespace ddprun::agent {

class DyingWorkers {
 public:
  // `number`: by which ended() knows it. What runs in its process group, and has not died with it, is killed.
  void add(std::unique_ptr<WorkerProcess> process, std::uint64_t number);
  // The kernel has ended it. False: it is none of these.
  bool ended(std::uint64_t number);

  // They may be reaped from now on. `after`: how long one may still need when its last thread is late.
  void let_end(std::chrono::milliseconds after) const;
  // Logs each one that is left, and forgets it.
  void give_up(const Log& log);

  bool are_all_gone() const { return workers_.empty(); }
  bool owns(pid_t child) const;

 private:
  struct Dying {
    std::unique_ptr<WorkerProcess> process;
    std::uint64_t number = 0;
  };
  std::list<Dying> workers_;
};

}  // namespace ddprun::agent
