// What the record of collectives (rendezvous/common/worker_abi/collective_record.h) says of an operation of
// c10d. Pure; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "rendezvous/common/worker_abi/collective_record.h"

namespace ddprun {

inline record::Operation operation_of(c10d::OpType type) {
  using c10d::OpType;
  using record::Operation;
  switch (type) {
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
    case OpType::_ALLREDUCE_SPARSE:
      return Operation::kAllReduce;
    case OpType::BROADCAST:
      return Operation::kBroadcast;
    case OpType::REDUCE:
      return Operation::kReduce;
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
    case OpType::ALLGATHER_COALESCED:
      return Operation::kAllGather;
    case OpType::GATHER:
      return Operation::kGather;
    case OpType::SCATTER:
      return Operation::kScatter;
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
      return Operation::kReduceScatter;
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return Operation::kAllToAll;
    case OpType::BARRIER:
      return Operation::kBarrier;
    case OpType::SEND:
    case OpType::RECV:
      return Operation::kSendReceive;
    default:
      return Operation::kOther;
  }
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
