// What LibTorch's versions 2.11 to 2.15 call differently, under one name. Each is found out from the
// headers themselves, not from a version number. Private to worker_lib.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddprun::compat {

// A node of autograd's graph: held by std::shared_ptr until 2.14, by c10::intrusive_ptr since.
template <typename Node, typename... Arguments>
auto make_node(Arguments&&... arguments) {
  using Pointer = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

// The collectives on one tensor each way, whose names end in _single since 2.15. (Templates, so that a
// name which is not there is not looked up.)
template <typename Group>
auto all_gather_single(Group& group, at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) {
  if constexpr (requires { group.all_gather_single(output, input, options); }) {
    return group.all_gather_single(output, input, options);
  } else {
    return group._allgather_base(output, input, options);
  }
}

template <typename Group>
auto reduce_scatter_single(Group& group, at::Tensor& output, at::Tensor& input,
                           const c10d::ReduceScatterOptions& options) {
  if constexpr (requires { group.reduce_scatter_single(output, input, options); }) {
    return group.reduce_scatter_single(output, input, options);
  } else {
    return group._reduce_scatter_base(output, input, options);
  }
}

template <typename Group>
auto all_to_all_single(Group& group, at::Tensor& output, at::Tensor& input,
                       std::vector<std::int64_t>& received, std::vector<std::int64_t>& sent,
                       const c10d::AllToAllOptions& options) {
  if constexpr (requires { group.all_to_all_single(output, input, received, sent, options); }) {
    return group.all_to_all_single(output, input, received, sent, options);
  } else {
    return group.alltoall_base(output, input, received, sent, options);
  }
}

}  // namespace ddprun::compat
