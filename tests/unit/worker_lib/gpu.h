// Whether tests on a GPU can run here, and if so with the CUDA part of LibTorch loaded, which a
// program that starts on the CPU does not link.
#pragma once

#include "ddprun/devices.h"
#include "worker_lib/c10d/nccl_module.h"

namespace ddprun::test {

inline bool has_gpu() {
  if (count_gpus() == 0) return false;
  load_nccl_module();
  return true;
}

}  // namespace ddprun::test
