// What DistributedDataParallel finds in a module before it makes its reducer: the parameters whose
// gradients are averaged, and whether all ranks have built the same model. Throws UsageError. One
// thread of each rank.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "ddprun/ddp.h"

namespace ddprun {

struct Parameters {
  std::vector<torch::Tensor> tensors;
  std::unordered_map<std::size_t, std::string> names;  // by index into `tensors`
  std::vector<bool> are_sparse;                        // whether their gradients are
};

// Those that need a gradient, each once although modules may share it, in Python's order: a module's
// own, then its children's. Throws when there are none, or on devices of several kinds.
Parameters parameters_of(const torch::nn::Module& module);

// Each once, in the order of the first: C++'s Module::parameters() has a parameter as often as modules
// share it.
std::vector<torch::Tensor> distinct_tensors(const std::vector<torch::Tensor>& tensors);

// NCCL refuses sparse gradients in the first backward, without a name.
void refuse_sparse_over_nccl(const Parameters& parameters, c10d::ProcessGroup& group);

// Throws the same on all ranks. c10d's own check compares with rank 0 only, so that rank 0 goes on
// into a collective that nobody else comes to, and names an index.
void verify_same_model(Group& group, const torch::nn::Module& module, const DdpOptions& options);

// DdpOptions::first_bucket_bytes_cap, or its default.
std::int64_t first_bucket_bytes_of(const DdpOptions& options);

}  // namespace ddprun
