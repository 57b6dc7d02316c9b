// The state of NVIDIA GPUs as the driver's library (NVML) tells it. It may take seconds, and a GPU that is lost may hold it
// for ever. One thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "agent/health/health_facts.h"

namespace ddprun::cli {

// The name of a process of this machine that is none of the job; empty: it is of the job, or cannot be seen from here.
using ForeignProcess = std::function<std::string(pid_t)>;

struct GpusHealth {
  std::vector<agent::GpuHealth> gpus;
  bool is_nvml_lost = false;  // it cannot be used because of a GPU
};

// `indices`: which GPUs, in NVML's order. Without the library: no GPUs.
GpusHealth gpus_health(const std::string& library, const std::vector<int>& indices,
                       const ForeignProcess& foreign);

}  // namespace ddprun::cli
