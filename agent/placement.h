// What this machine has for workers to run on: CPUs and GPUs, found without CUDA or LibTorch. Reads
// /sys, /proc and /dev below a root that tests replace by a tree of their own, and asks the NVIDIA
// driver's library (NVML) where there is one. Any thread; nothing is cached, and asking NVML takes
// milliseconds: ask once, and only when a GPU count is wanted.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/environment.h"

namespace ddprun::agent {

struct Machine {
  std::string root;                                // "" is the machine itself
  std::string nvml_library = "libnvidia-ml.so.1";  // empty: do not ask NVML
};

// "0-3,8" as the kernel writes CPU lists, ascending; nullopt if it is not one.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);

// Logical CPUs that are online, as Python's os.cpu_count() says: affinity and quotas do not count.
int count_cpus(const Machine& machine);

struct Gpu {
  std::string uuid;  // "GPU-..."; empty if it could not be learnt
};

// All NVIDIA GPUs of this machine (or container) in the driver's order, whatever is hidden by
// CUDA_VISIBLE_DEVICES.
std::vector<Gpu> find_gpus(const Machine& machine);

// How many of them a process with this CUDA_VISIBLE_DEVICES (nullptr: unset) would see. CUDA's
// rules: the list ends at the first entry that names no device; one that names a device twice is
// empty.
int count_visible_gpus(const std::string* cuda_visible_devices, const std::vector<Gpu>& gpus);

}  // namespace ddprun::agent
