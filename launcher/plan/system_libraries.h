// Whether a job may need a library that the system loads for it: a name service for a host, NVML to count GPUs, MUNGE
// between nodes. (ddprun is linked statically and cannot load one; see launcher/other_program.h.)
#pragma once

#include <string_view>

#include "launcher/settings/settings.h"

namespace ddprun::cli {

// Whether --nproc-per-node is the number of GPUs, or may be.
bool counts_gpus(std::string_view workers_per_node);

// Several nodes, whatever they are told of each other; a host that is no address; workers counted or placed by GPUs.
// Settings that will be refused need none. Pure; any thread.
bool needs_system_libraries(const Settings& settings);

}  // namespace ddprun::cli
