// Inside libddprun_nccl.so only: the one function that needs CUDA's and NCCL's headers.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

// Hands over one reference; takes none of the store's.
extern "C" __attribute__((visibility("default"))) c10d::Backend* ddprun_make_nccl_backend(
    c10d::Store* store, int rank, int size, std::int64_t timeout_ms) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(timeout_ms);
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(store), rank, size, options);
  return backend.release();
}
