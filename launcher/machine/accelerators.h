// Accelerators that are not NVIDIA's, by what the kernel shows of them below a root directory (tests use one of their own).
// Any thread; reads only /sys and /dev.
#pragma once

#include <string>
#include <vector>

#include "launcher/machine/placement.h"
#include "rendezvous/common/environment.h"

namespace ddprun::agent {

// AMD GPUs of this machine, or of this container: kfd shows all of the machine, and those count that have a device file.
// Each by the name that ROCR_VISIBLE_DEVICES takes ("GPU-0123456789abcdef"; empty: the GPU has none), in kfd's order.
std::vector<std::string> find_amd_gpus(const Machine& machine);

// How many of them a process with these variables would see. ROCR_VISIBLE_DEVICES names some by index or name, and
// HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES if that is not set, some of these by index. A list ends at the first entry that
// names no device.
int count_visible_amd_gpus(const std::vector<std::string>& gpus, const Environment& environment);

// Names what else PyTorch may compute on: "/dev/accel/accel0", "an Intel GPU (xe, /dev/dri/renderD128)". Not an i915 GPU with a
// display, which is a laptop's. Empty: there is nothing.
std::string find_other_accelerator(const Machine& machine);

// The variables that hide accelerators from PyTorch, as "ZE_AFFINITY_MASK is set to '1'"; empty: none is set.
std::string hides_accelerators(const Environment& environment);

}  // namespace ddprun::agent
