// Which rank a process is among the tasks of a Slurm step, by the variables that srun sets: used instead of
// torchrun's when a program is started by `srun ./train` directly. Pure; any thread.
//
//   SLURM_STEP_ID           there only inside a step: a shell of the allocation's is no rank
//   SLURM_PROCID            rank
//   SLURM_STEP_NUM_TASKS    world size (else SLURM_NTASKS)
//   SLURM_LOCALID           local rank
//   SLURM_NODEID            and SLURM_STEP_TASKS_PER_NODE, "4(x2),3": local world size
//                           (else SLURM_NTASKS_PER_NODE)
//   SLURM_STEP_NODELIST     its first host runs rank 0 (else SLURM_JOB_NODELIST)
//   SLURM_JOB_ID            and SLURM_STEP_ID make the port: slurm_port()
#pragma once

#include <optional>
#include <string_view>

#include "worker_lib/process/parse_environment.h"

namespace ddprun {

// Nothing when this process is no task of a step. MASTER_ADDR and MASTER_PORT are left for the
// caller to fill in where the user set them. Throws UsageError for variables that make no sense.
std::optional<Environment> slurm_environment(const VariableLookup& lookup);

// The number of tasks on node `index` of "4(x2),3"; nothing if the text is no such list or shorter.
std::optional<int> tasks_on_node(std::string_view tasks_per_node, int index);

}  // namespace ddprun
