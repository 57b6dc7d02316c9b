// What this machine offers to workers: CPUs and GPUs, found without CUDA or LibTorch. Reads /sys,
// /proc and /dev below a root directory (tests use one of their own), and asks the NVIDIA driver's
// library (NVML) if there is one. Any thread. Nothing is cached, and asking NVML takes
// milliseconds: ask once, and only if a GPU count is wanted.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/gpu/nvml.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

struct Machine {
  std::string root;                           // "" is the machine itself
  std::string nvml_library = Nvml::kLibrary;  // empty: do not ask NVML
  std::optional<std::vector<int>> affinity;   // none: ask the kernel for this process's mask
};

// "0-3,8" as the kernel writes CPU lists, ascending; nullopt if it is not one.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);
// The reverse.
std::string to_cpu_list(const std::vector<int>& cpus);

// Logical CPUs that are online, as Python's os.cpu_count() says: affinity and quotas do not count.
int count_cpus(const Machine& machine);

// The CPUs that this process may be scheduled on, ascending.
std::vector<int> allowed_cpus(const Machine& machine);

// The CPU time that the cgroups of this process allow, in CPUs (1.5: one and a half); none: no
// limit.
std::optional<double> cpu_quota(const Machine& machine);

// How many CPUs this process can keep busy: the allowed ones, or fewer if a quota is lower (rounded
// up).
int count_usable_cpus(const Machine& machine);

// All NVIDIA GPUs of this machine (or container) in the driver's order, also those that
// CUDA_VISIBLE_DEVICES hides.
std::vector<Gpu> find_gpus(const Machine& machine);

// Which of them a process with this CUDA_VISIBLE_DEVICES (nullptr: unset) would see, in its order,
// as indices. CUDA's rules: the list ends at the first entry that names no device; a list that names
// a device twice is empty; a process sees only one MIG instance, here kSomeMigInstance.
inline constexpr int kSomeMigInstance = -1;
std::vector<int> visible_gpus(const std::string* cuda_visible_devices,
                              const std::vector<Gpu>& gpus);

enum class NumaMode {  // in the order of the choices of --numa-binding
  kNode,               // the CPUs of the GPU's NUMA node
  kSocket,             // those of all nodes of the same processor
  kExclusive,          // an equal share of the node's cores, with all their hardware threads
  kCoreComplex,        // cores that share the last cache level; GPUs of a node take turns
};

// The CPUs for each worker, by local rank: worker i works with visible[i] and is bound near it,
// always within the allowed CPUs.
Result<std::vector<std::vector<int>>> numa_binding(NumaMode mode, const Machine& machine,
                                                   const std::vector<Gpu>& gpus,
                                                   const std::vector<int>& visible, int workers);

}  // namespace ddprun::agent
