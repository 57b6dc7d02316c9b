// The CUDA part of worker_lib, a shared library of its own (libddprun_nccl.so) that is loaded when
// a GPU is asked for: it needs libtorch_cuda, whose loading costs CPU-only programs a tenth of a
// second. Its one function is named below; both sides are built together.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace ddprun {

// Loads the module (once). Throws Failure with where it was looked for.
void load_nccl_module();

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout);

using NcclBackendMaker = c10d::Backend* (*)(c10d::Store* store, int rank, int size,
                                            std::int64_t timeout_ms);
inline constexpr const char* kNcclBackendMaker = "ddprun_make_nccl_backend";

}  // namespace ddprun
