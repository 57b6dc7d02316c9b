// How a Context gets its store and its process group; the only place that knows which kinds there
// are. Blocking; one thread. Throws UsageError and Failure.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddprun/context.h"
#include "ddprun/environment.h"

namespace ddprun {

// The store through which the ranks meet; of this process alone in a world of one.
c10::intrusive_ptr<c10d::Store> make_store(const Environment& environment,
                                           std::chrono::milliseconds join_timeout);

// kGloo or kNccl, never kAuto. For kNccl with the CUDA part loaded.
Backend choose_backend(Backend wanted);

// Returns when all ranks have joined.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const Environment& environment, const c10::intrusive_ptr<c10d::Store>& store, Backend backend,
    torch::Device device, const ContextOptions& options);

}  // namespace ddprun
