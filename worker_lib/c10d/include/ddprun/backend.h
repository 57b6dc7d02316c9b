// Backend: what tensors travel through, as the backends of torch.distributed.
#pragma once

#include <string>

namespace ddprun {

enum class Backend {
  kAuto,  // nccl where there is a GPU, else shm
  kGloo,  // on the CPU; on a GPU too if ContextOptions::device is one
  kNccl,  // on this rank's GPU; what is on the CPU goes through gloo beside it
  kShm,   // on the CPU, through memory that the ranks of a node share; gloo where they cannot
};

// "auto", "gloo", "nccl", "shm", or for each kind of device as PyTorch has it:
// "cpu:gloo,cuda:nccl", "cpu:gloo", "cpu:shm". Anything else is a UsageError.
Backend backend_from(const std::string& name);

}  // namespace ddprun
