// The GPUs that this process may use, asked of the driver alone: no CUDA library is loaded, so a
// program that trains on the CPU does not pay for one. CUDA_VISIBLE_DEVICES is honoured, by the
// driver itself. Values; any thread. The driver is initialised once, which takes it some tenths of
// a second on a machine with GPUs.
//
//   for (const ddprun::Gpu& gpu : ddprun::list_gpus()) std::cout << gpu.to_string() << "\n";
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddprun/environment.h"

namespace ddprun {

struct Gpu {
  int index = 0;               // as in torch::Device(torch::kCUDA, index)
  std::string name;            // "NVIDIA H200"
  std::uint64_t bytes = 0;     // of its memory, used or not
  int compute_capability = 0;  // 90 is 9.0; 0: not known

  std::string to_string() const;  // "GPU 0: NVIDIA H200, 139.8 GiB, compute capability 9.0"
};

// None when there is no driver, or no GPU that this process may see. `driver` is for tests.
std::vector<Gpu> list_gpus(const char* driver = "libcuda.so.1");
// How many, without asking for more.
int count_gpus(const char* driver = "libcuda.so.1");

// The newest CUDA that the driver knows, as CUDA counts: 12040 is 12.4; 0: not known.
int cuda_of_driver(const char* driver = "libcuda.so.1");

// Which of `visible` GPUs is this worker's: that with the number of its local rank. A task of Slurm
// that sees one alone was given it. Throws UsageError where there is none.
int gpu_of_worker(const Environment& environment, int visible);

}  // namespace ddprun
