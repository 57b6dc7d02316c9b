// Inside libddprun_nccl.so only: the functions that need CUDA's and NCCL's headers.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "worker_lib/c10d/nccl_module.h"

namespace {

// PyTorch's, which says before each call that it comes, and whose calls can be ended.
class NcclBackend final : public c10d::ProcessGroupNCCL, public ddprun::NcclCommunicator {
 public:
  NcclBackend(c10::intrusive_ptr<c10d::Store> store, const ddprun::NcclGroup& group,
              c10::intrusive_ptr<Options> options, at::Device gpu)
      : ProcessGroupNCCL(std::move(store), group.rank, static_cast<int>(group.global_ranks.size()),
                         std::move(options)),
        before_call_(group.before_call) {
    setBoundDeviceId(gpu);
    eagerConnectSingleDevice(gpu);
    communicator_ = reinterpret_cast<ncclComm_t>(getCommPtr());
  }

  void end_kernels() override {
    // Older versions of NCCL, which this library can be loaded with, do not have it.
    static const auto revoke =
        reinterpret_cast<ncclResult_t (*)(ncclComm_t, int)>(dlsym(RTLD_DEFAULT, "ncclCommRevoke"));
    if (revoke != nullptr) revoke(communicator_, 0);
  }

 protected:
  // Collectives and messages all come here before they are queued.
  c10::intrusive_ptr<WorkNCCL> initWork(at::Device& device, int rank, c10d::OpType type,
                                        bool is_message, const char* title,
                                        const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& outputs,
                                        bool is_recorded) override {
    if (before_call_) {
      const bool is_captured =
          c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
      before_call_(is_captured ? ddprun::CallKind::kCaptured : ddprun::CallKind::kQueued);
    }
    return ProcessGroupNCCL::initWork(device, rank, type, is_message, title, inputs, outputs,
                                      is_recorded);
  }

 private:
  const std::function<void(ddprun::CallKind)> before_call_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace

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
  return c10::make_intrusive<NcclBackend>(
             c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(store), group,
             std::move(options), gpu)
      .release();
}

__attribute__((visibility("default"))) void ddprun_use_gpu(int index) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
}

__attribute__((visibility("default"))) int ddprun_gpu_generation(int index) {
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index))->major;
}

__attribute__((visibility("default"))) ddprun::GpuMemory ddprun_gpu_memory(int index) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  const auto device = static_cast<c10::DeviceIndex>(index);
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // with its allocator
  const c10::cuda::CUDAGuard guard(device);
  std::size_t left = 0;
  std::size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&left, &total));
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& uuid = at::cuda::getDeviceProperties(device)->uuid.bytes;
  const std::hash<std::string_view> number_of;
  return {.id = std::max<std::uint64_t>(number_of({uuid, sizeof uuid}), 1),
          .free_bytes = left,
          .used_bytes = static_cast<std::uint64_t>(
              allocator::getDeviceStats(device).reserved_bytes.at(kAll).peak)};
}

// libtorch_cuda has loaded NCCL, and everybody can see it.
__attribute__((visibility("default"))) ddprun::CudaVersions ddprun_cuda_versions() {
  ddprun::CudaVersions versions{.cuda = CUDART_VERSION, .nccl = NCCL_VERSION_CODE};
  const auto ask = reinterpret_cast<ncclResult_t (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  if (ask != nullptr && ask(&versions.loaded_nccl) != ncclSuccess) versions.loaded_nccl = 0;
  return versions;
}

}  // extern "C"
