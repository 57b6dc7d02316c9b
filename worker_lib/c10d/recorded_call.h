// What the record of collectives (rendezvous/common/worker_abi/collective_record.h) says of an operation of
// c10d. Pure; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iterator>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "rendezvous/common/worker_abi/collective_record.h"

namespace ddprun {

inline record::Operation operation_of(c10d::OpType type) {
  using c10d::OpType;
  using record::Operation;
  static constexpr std::pair<OpType, Operation> kOperations[] = {
      {OpType::ALLREDUCE, Operation::kAllReduce},
      {OpType::ALLREDUCE_COALESCED, Operation::kAllReduce},
      {OpType::_ALLREDUCE_SPARSE, Operation::kAllReduce},
      {OpType::BROADCAST, Operation::kBroadcast},
      {OpType::REDUCE, Operation::kReduce},
      {OpType::ALLGATHER, Operation::kAllGather},
      {OpType::_ALLGATHER_BASE, Operation::kAllGather},
      {OpType::ALLGATHER_COALESCED, Operation::kAllGather},
      {OpType::GATHER, Operation::kGather},
      {OpType::SCATTER, Operation::kScatter},
      {OpType::REDUCE_SCATTER, Operation::kReduceScatter},
      {OpType::_REDUCE_SCATTER_BASE, Operation::kReduceScatter},
      {OpType::ALLTOALL, Operation::kAllToAll},
      {OpType::ALLTOALL_BASE, Operation::kAllToAll},
      {OpType::BARRIER, Operation::kBarrier},
      {OpType::SEND, Operation::kSendReceive},
      {OpType::RECV, Operation::kSendReceive}};
  const auto* const found =
      std::ranges::find(kOperations, type, &std::pair<OpType, Operation>::first);
  return found == std::end(kOperations) ? Operation::kOther : found->second;
}

// `tensor` is this rank's, whose size need not be the others'.
inline record::Call call_of(c10d::OpType type, const at::Tensor* tensor) {
  record::Call call{.operation = operation_of(type)};
  if (tensor == nullptr || !tensor->defined()) return call;
  call.type = static_cast<std::uint8_t>(tensor->scalar_type());
  call.elements = static_cast<std::uint64_t>(tensor->numel());
  return call;
}

// `tensor` has as many elements on every rank, and `reduction` is equal.
inline record::Call equal_call(c10d::OpType type, const at::Tensor& tensor, std::int64_t root = -1,
                               const c10d::ReduceOp* reduction = nullptr) {
  record::Call call = call_of(type, &tensor);
  call.root = static_cast<std::int32_t>(root);
  call.signature = record::mixed(record::kHashSeed, call.elements);
  if (reduction != nullptr) {
    call.signature = record::mixed(
        call.signature,
        static_cast<std::uint64_t>(static_cast<c10d::ReduceOp::RedOpType>(reduction->op_)));
  }
  return call;
}

}  // namespace ddprun
