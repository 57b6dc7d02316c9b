// Reads the facts that --health-check=auto judges: files of /proc, /sys and /dev below a root directory (tests use one of
// their own), NVML, and the job's folders. What cannot be read is no fact. Everything here may wait for ever for a file
// server or a device: it runs in a process that can be killed. One thread.
#pragma once

#include <functional>
#include <string_view>

#include "agent/health/health_facts.h"
#include "launcher/machine/placement.h"
#include "rendezvous/common/environment.h"

namespace ddprun::cli {

// `at`: is called with what is looked at next. `environment`: of the workers, for CUDA_VISIBLE_DEVICES.
agent::HealthFacts read_node_health(const agent::HealthQuestion& question,
                                    const agent::Machine& machine, const Environment& environment,
                                    const std::function<void(std::string_view)>& at);

}  // namespace ddprun::cli
