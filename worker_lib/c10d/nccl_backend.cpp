// Inside libddprun_nccl.so only: the functions that need CUDA's and NCCL's headers.
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "worker_lib/c10d/nccl_module.h"

extern "C" {

// Hands over one reference; takes none of the store's.
__attribute__((visibility("default"))) c10d::Backend* ddprun_make_nccl_backend(
    c10d::Store* store, const ddprun::NcclGroup& group, std::int64_t timeout_ms) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(timeout_ms);
  options->group_name = group.name;
  options->group_desc = group.name;
  options->global_ranks_in_group = group.global_ranks;
  const at::Device gpu(at::kCUDA, static_cast<c10::DeviceIndex>(group.gpu));
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(store), group.rank,
      static_cast<int>(group.global_ranks.size()), options);
  backend->setBoundDeviceId(gpu);
  backend->eagerConnectSingleDevice(gpu);
  return backend.release();
}

__attribute__((visibility("default"))) void ddprun_use_gpu(int index) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
}

// libtorch_cuda has loaded NCCL, and everybody can see it.
__attribute__((visibility("default"))) ddprun::CudaVersions ddprun_cuda_versions() {
  ddprun::CudaVersions versions{.cuda = CUDART_VERSION, .nccl = NCCL_VERSION_CODE};
  const auto ask = reinterpret_cast<ncclResult_t (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  if (ask != nullptr && ask(&versions.loaded_nccl) != ncclSuccess) versions.loaded_nccl = 0;
  return versions;
}

}  // extern "C"
