// Tensors as c10d takes them, for the collectives and messages of a Group. Private to worker_lib; pure
// but for in-place arguments.
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include "ddprun/collectives.h"
#include "worker_lib/group/membership.h"

namespace ddprun {

namespace detail {

template <typename... Parts>
[[noreturn]] void refuse(const char* name, const Parts&... parts) {
  throw Failure(ErrorCode::kInvalidArgument, c10::str(name, ": ", parts...));
}

void check_is_dense(const char* name, const torch::Tensor& tensor);
// What is written in place: c10d takes the memory as it lies.
torch::Tensor in_place(const char* name, const torch::Tensor& tensor);
torch::Tensor dense(const char* name, const torch::Tensor& tensor);
// A dense tensor's elements in the order of its memory, in one dimension.
torch::Tensor flat(const torch::Tensor& tensor);
// What is only moved needs no type that the backend can calculate with.
torch::Tensor as_bytes(const torch::Tensor& tensor, at::IntArrayRef shape = {});

// Alone, or between nodes.
bool is_gloo(const Membership& membership, const torch::Tensor& tensor);

}  // namespace detail

// What the ranks must agree on, besides the tensor that a call is about.
struct Group::Call {
  const char* name;
  int root = -1;
  std::optional<ReduceOp> op = {};
  Mode mode = Mode::kAsync;
  bool has_equal_rows = true;  // the first dimension must agree too
  // What it writes before `finish`, and whether that is the same on all ranks: for Recovery.
  Tensors results = {};
  bool is_equal_everywhere = false;

  std::string to_string(const detail::Membership& membership, const Tensors& tensors) const;
};

}  // namespace ddprun
