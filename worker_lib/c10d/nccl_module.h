// The CUDA part of worker_lib, a shared library of its own (libddprun_nccl.so) that is loaded when
// a GPU is asked for: it needs libtorch_cuda, whose loading costs CPU-only programs a tenth of a
// second. Its functions are named below; both sides are built together.
//
// LibTorch decides whether there is CUDA when it is first asked, and stays with that answer. A
// program may ask before it makes its Context (torch::manual_seed does), so where a GPU can be seen
// libtorch_cuda is loaded before main() begins.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace ddprun {

// Whether a process of this machine may see a GPU of NVIDIA: the driver's device is in `folder`, and
// `visible`, the value of CUDA_VISIBLE_DEVICES or null, does not hide all of them.
bool may_see_gpus(const char* folder, const char* visible);

// Loads the module (once). Throws Failure with where it was looked for; UsageError when LibTorch's own CUDA
// part cannot be loaded, as without NCCL.
void load_nccl_module();

// Of CUDA and NCCL, as these count them (13000 is CUDA 13.0, 22809 NCCL 2.28.9); 0: not known.
struct CudaVersions {
  int cuda = 0;  // that the module, and so LibTorch, is built for
  int nccl = 0;  // likewise
  int loaded_nccl = 0;
};
// Throws UsageError when the NCCL that is loaded has another major version. After load_nccl_module().
void require_nccl();
// Why not, in a sentence; empty: it fits.
std::string nccl_misfit(const CudaVersions& versions);
std::string driver_misfit(const CudaVersions& versions, int cuda_of_driver);

// Throws UsageError when LibTorch cannot use any of the GPUs that the driver counts, and says why.
// After load_nccl_module().
void require_cuda(int gpus);

// Makes the GPU the one that this thread means by "the GPU", as torch.cuda.set_device() does.
void use_gpu(int index);

// What this process sees of a GPU. To ask makes a context there.
struct GpuMemory {
  std::uint64_t id = 0;  // the same in all processes that use this GPU
  std::uint64_t free_bytes = 0;
  std::uint64_t used_bytes = 0;  // by this process at most, so far
};
GpuMemory memory_of_gpu(int index);

// What the decision needs whether ranks over NCCL can be replaced in place.
struct NcclFacts {
  int version = 0;         // NCCL's number for the version that is loaded
  int gpu_generation = 0;  // the major number of its compute capability
  bool has_several_ranks_on_node = false;
  const char* collnet = nullptr;  // NCCL_COLLNET_ENABLE
  const char* nvls = nullptr;     // NCCL_NVLS_ENABLE
};
// Why they cannot be, in a sentence; empty: they can. The same as in python/ddprun/nccl.py.
std::string why_not_replaced(const NcclFacts& facts);
// The same of this process, whose GPU this is. After require_nccl().
std::string why_not_replaced(int gpu, bool has_several_ranks_on_node);

// Sets variables of PyTorch, which it reads when a group is made. Its threads end a process in which a call has failed
// or is late, minutes after that also where the group was aborted meanwhile. The agent and --hang-timeout do that for
// ranks that can be replaced.
void keep_pytorch_from_ending_survivors();

// How a call is made for which the other ranks are needed.
enum class CallKind {
  kWaited,    // its failure is an exception where it is waited for
  kQueued,    // on a stream of the GPU; if it is ended it looks like one that is done
  kCaptured,  // into a CUDA graph
};

struct NcclGroup {
  std::string name;                         // for NCCL's own reports
  int rank = 0;                             // among these
  std::vector<std::uint64_t> global_ranks;  // of all members
  int gpu = 0;
  // Called before each call, on its thread.
  std::function<void(CallKind)> before_call = {};
};

// What make_nccl_backend() returns is one of these, too.
class NcclCommunicator {
 public:
  virtual ~NcclCommunicator() = default;
  // Its kernels end at once, with garbage; later calls fail. It returns a second later, since NCCL joins threads that
  // poll. A kernel that has not begun by then is ended by the backend's abort() alone, which also frees it. Any thread.
  virtual void end_kernels() = 0;
};

// Returns when all members are connected, so that two that give the same GPU, or a network that NCCL
// cannot use, are found out here; and so that every later call, a message between two ranks too,
// goes through this one communicator (those that NCCL makes for two ranks at their first message
// wait for each other in a ring of messages).
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const NcclGroup& group,
                                                    std::chrono::milliseconds timeout);

using NcclBackendMaker = c10d::Backend* (*)(c10d::Store* store, const NcclGroup& group,
                                            std::int64_t timeout_ms);
using GpuChooser = void (*)(int index);
using GenerationTeller = int (*)(int index);
using VersionTeller = CudaVersions (*)();
using MemoryTeller = GpuMemory (*)(int index);
inline constexpr const char* kNcclBackendMaker = "ddprun_make_nccl_backend";
inline constexpr const char* kGpuChooser = "ddprun_use_gpu";
inline constexpr const char* kGenerationTeller = "ddprun_gpu_generation";
inline constexpr const char* kVersionTeller = "ddprun_cuda_versions";
inline constexpr const char* kMemoryTeller = "ddprun_gpu_memory";

}  // namespace ddprun
