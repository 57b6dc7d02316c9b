#include "agent/supervisor/dying_workers.h"

#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>

#include "agent/standby/background.h"

namespace ddprun::agent {

void DyingWorkers::add(std::unique_ptr<WorkerProcess> process, std::uint64_t number) {
  put_behind(process->pid());
  process->hold_end();
  process->signal_group(SIGKILL);
  workers_.push_back({std::move(process), number});
}

bool DyingWorkers::ended(std::uint64_t number) {
  return std::erase_if(workers_, [number](const Dying& each) { return each.number == number; }) > 0;
}

void DyingWorkers::let_end(std::chrono::milliseconds after) const {
  for (const Dying& each : workers_) {
    agent::let_end(each.process->pid());
    each.process->let_end(after);
  }
}

void DyingWorkers::give_up(const Log& log) {
  for (const Dying& each : workers_) {
    log.error("process " + std::to_string(each.process->pid()) + " of a worker does not end");
  }
  workers_.clear();
}

bool DyingWorkers::owns(pid_t child) const {
  return std::ranges::any_of(workers_,
                             [child](const Dying& each) { return each.process->pid() == child; });
}

}  // namespace ddprun::agent
