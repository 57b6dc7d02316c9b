#include "worker_lib/c10d/shm_backend.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "worker_lib/c10d/shm_jobs.h"

namespace ddprun {
namespace {

using shm::Op;
using shm::Type;
using Tensors = ShmBackend::Tensors;

const Tensors& only(const char* name, const std::vector<Tensors>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, "shm: ", name, " takes one list of tensors, not ",
                    lists.size());
  return lists[0];
}

void check_like(const char* name, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK_VALUE(one.scalar_type() == other.scalar_type() && one.numel() == other.numel(),
                    "shm: ", name, " takes tensors of one size and type, not ", one.scalar_type(),
                    one.sizes(), " and ", other.scalar_type(), other.sizes());
}

void check_count(const char* name, const Tensors& tensors, int size) {
  TORCH_CHECK_VALUE(static_cast<int>(tensors.size()) == size, "shm: ", name, " takes ", size,
                    " tensors, one for each rank, not ", tensors.size());
}

void check_pairs(const char* name, const Tensors& outputs, const Tensors& inputs) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "shm: ", name, " of ", inputs.size(),
                    " tensors into ", outputs.size());
}

// What can be reduced as it lies in memory: a complex sum is one of its parts.
at::Tensor as_reducible(const char* name, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const bool is_sum = shm_op_of(op) == Op::kSum || shm_op_of(op) == Op::kAverage;
  const at::Tensor real = tensor.is_complex() && is_sum ? at::view_as_real(tensor) : tensor;
  const std::string why_not = shm::why_not(shm_type_of(real), shm_op_of(op));
  TORCH_CHECK_VALUE(why_not.empty(), "shm: ", name, " of ", tensor.scalar_type(), ": ", why_not);
  return real;
}

}  // namespace

ShmBackend::ShmBackend(std::shared_ptr<shm::NodeGroup> node, std::chrono::milliseconds timeout,
                       std::shared_ptr<GroupRecord> record)
    : Backend(node->exchange().rank(), node->exchange().size()),
      node_(std::move(node)),
      record_(std::move(record)),
      timeout_(timeout) {}

ShmBackend::~ShmBackend() { node_->close(); }

shm::Clock::time_point ShmBackend::until(std::chrono::milliseconds timeout) const {
  return shm::Clock::now() + (timeout == c10d::kUnsetTimeout ? timeout_ : timeout);
}

ShmBackend::WorkPtr ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only("broadcast", tensors);
  auto job = std::make_shared<TensorJob>(*node_, until(options.timeout), tensors);
  job->set<shm::Broadcast>(shm_type_of(tensor), job->write(tensor).data_ptr(), tensor.nbytes(),
                           static_cast<int>(options.rootRank));
  return post(std::move(job), c10d::OpType::BROADCAST);
}

ShmBackend::WorkPtr ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  const auto end = until(options.timeout);
  if (tensor.layout() == at::kSparse) {
    TORCH_CHECK_VALUE(options.reduceOp == c10d::ReduceOp::SUM,
                      "shm: all_reduce of a sparse tensor is a sum and nothing else");
    auto job = std::make_shared<TensorJob>(*node_, end, tensors);
    job->sum_sparse(tensor);
    return post(std::move(job), c10d::OpType::_ALLREDUCE_SPARSE);
  }
  const at::Tensor real = as_reducible("all_reduce", tensor, options.reduceOp);
  auto job = std::make_shared<TensorJob>(*node_, end, tensors);
  job->reduce(real, options.reduceOp);
  return post(std::move(job), c10d::OpType::ALLREDUCE);
}

ShmBackend::WorkPtr ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor real = as_reducible("reduce", only("reduce", tensors), options.reduceOp);
  auto job = std::make_shared<TensorJob>(*node_, until(options.timeout), tensors);
  job->reduce(real, options.reduceOp, static_cast<int>(options.rootRank));
  return post(std::move(job), c10d::OpType::REDUCE);
}

ShmBackend::WorkPtr ShmBackend::gather_into(const char* name, const Tensors& parts,
                                            const at::Tensor& input, int root,
                                            std::chrono::milliseconds timeout, c10d::OpType type) {
  auto job = std::make_shared<TensorJob>(*node_, until(timeout), parts);
  std::vector<void*> places;
  for (const at::Tensor& part : parts) {
    check_like(name, input, part);
    places.push_back(job->write(part).data_ptr());
  }
  job->set<shm::Gather>(shm_type_of(input), job->read(input).data_ptr(), input.nbytes(),
                        std::move(places), root);
  return post(std::move(job), type);
}

ShmBackend::WorkPtr ShmBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only("all_gather", inputs);
  const Tensors& parts = only("all_gather", outputs);
  check_count("all_gather", parts, getSize());
  return gather_into("all_gather", parts, input, shm::Gather::kAll, options.timeout,
                     c10d::OpType::ALLGATHER);
}

ShmBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(
      output.numel() == input.numel() * getSize() && output.scalar_type() == input.scalar_type(),
      "shm: all_gather into a tensor of ", output.numel(), " ", output.scalar_type(), " from ",
      getSize(), " ranks with ", input.numel(), " ", input.scalar_type(), " each");
  auto job = std::make_shared<TensorJob>(*node_, until(options.timeout), Tensors{output});
  auto* const all = static_cast<std::byte*>(job->write(output).data_ptr());
  std::vector<void*> places(static_cast<std::size_t>(getSize()));
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    places[rank] = all + rank * input.nbytes();
  }
  job->set<shm::Gather>(shm_type_of(input), job->read(input).data_ptr(), input.nbytes(),
                        std::move(places));
  return post(std::move(job), c10d::OpType::_ALLGATHER_BASE);
}

ShmBackend::WorkPtr ShmBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  const at::Tensor& input = only("gather", inputs);
  const int root = static_cast<int>(options.rootRank);
  const Tensors parts = getRank() == root ? only("gather", outputs) : Tensors{};
  if (getRank() == root) check_count("gather", parts, getSize());
  return gather_into("gather", parts, input, root, options.timeout, c10d::OpType::GATHER);
}

ShmBackend::WorkPtr ShmBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  const at::Tensor& output = only("scatter", outputs);
  const int root = static_cast<int>(options.rootRank);
  const Tensors parts = getRank() == root ? only("scatter", inputs) : Tensors{};
  if (getRank() == root) check_count("scatter", parts, getSize());
  auto job = std::make_shared<TensorJob>(*node_, until(options.timeout), outputs);
  std::vector<shm::Source> sources;
  for (const at::Tensor& part : parts) {
    check_like("scatter", output, part);
    sources.push_back({job->read(part).data_ptr(), part.nbytes()});
  }
  job->set<shm::Scatter>(shm_type_of(output),
                         shm::Place{job->write(output).data_ptr(), output.nbytes()},
                         std::move(sources), root);
  return post(std::move(job), c10d::OpType::SCATTER);
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  const at::Tensor output =
      as_reducible("reduce_scatter", only("reduce_scatter", outputs), options.reduceOp);
  const Tensors& parts = only("reduce_scatter", inputs);
  check_count("reduce_scatter", parts, getSize());
  auto job = std::make_shared<TensorJob>(*node_, until(options.timeout), outputs);
  std::vector<shm::Source> sources;
  for (const at::Tensor& part : parts) {
    check_like("reduce_scatter", outputs[0], part);
    at::Tensor real = as_reducible("reduce_scatter", part, options.reduceOp);
    if (options.reduceOp.op_ == c10d::ReduceOp::PREMUL_SUM) {
      real = real.clone();  // the inputs stay what they are
      scale(real, options.reduceOp);
    }
    sources.push_back({job->read(real).data_ptr(), real.nbytes()});
  }
  const shm::Type type = shm_type_of(output);
  job->set<shm::ReduceScatter>(type, shm::Place{job->write(output).data_ptr(), output.nbytes()},
                               std::move(sources), type, shm_op_of(options.reduceOp));
  return post(std::move(job), c10d::OpType::REDUCE_SCATTER);
}

ShmBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(
      input.numel() == output.numel() * getSize() && output.scalar_type() == input.scalar_type(),
      "shm: reduce_scatter of a tensor of ", input.numel(), " ", input.scalar_type(), " to ",
      getSize(), " ranks with ", output.numel(), " ", output.scalar_type(), " each");
  const at::Tensor flat = input.contiguous().view({getSize(), -1});
  std::vector<Tensors> parts{flat.unbind(0)};
  Tensors outputs{output};
  if (output.numel() == 0) parts[0].assign(static_cast<std::size_t>(getSize()), output);
  return reduce_scatter(outputs, parts, options);
}

ShmBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<std::int64_t>& output_splits,
                                              std::vector<std::int64_t>& input_splits,
                                              const c10d::AllToAllOptions& options) {
  c10d::checkSplitSizes(input_splits, input, getSize());
  c10d::checkSplitSizes(output_splits, output, getSize());
  auto job = std::make_shared<TensorJob>(*node_, until(options.timeout), Tensors{output});
  const auto bytes = [this](const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                            int rank) {
    if (splits.empty()) return tensor.nbytes() / static_cast<std::size_t>(getSize());
    const std::size_t rows = static_cast<std::size_t>(tensor.size(0));
    return rows == 0 ? 0
                     : tensor.nbytes() / rows *
                           static_cast<std::size_t>(splits[static_cast<std::size_t>(rank)]);
  };
  auto* from = static_cast<const std::byte*>(job->read(input).data_ptr());
  auto* to = static_cast<std::byte*>(job->write(output).data_ptr());
  std::vector<shm::Source> sent;
  std::vector<shm::Place> received;
  for (int rank = 0; rank < getSize(); ++rank) {
    sent.push_back({from, bytes(input, input_splits, rank)});
    received.push_back({to, bytes(output, output_splits, rank)});
    from += sent.back().bytes;
    to += received.back().bytes;
  }
  job->set<shm::AllToAll>(shm_type_of(input), std::move(sent), std::move(received));
  return post(std::move(job), c10d::OpType::ALLTOALL_BASE);
}

ShmBackend::WorkPtr ShmBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  check_count("all_to_all", outputs, getSize());
  check_count("all_to_all", inputs, getSize());
  auto job = std::make_shared<TensorJob>(*node_, until(options.timeout), outputs);
  std::vector<shm::Source> sent;
  std::vector<shm::Place> received;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    TORCH_CHECK_VALUE(inputs[rank].scalar_type() == inputs[0].scalar_type() &&
                          outputs[rank].scalar_type() == inputs[0].scalar_type(),
                      "shm: all_to_all takes tensors of one type");
    sent.push_back({job->read(inputs[rank]).data_ptr(), inputs[rank].nbytes()});
    received.push_back({job->write(outputs[rank]).data_ptr(), outputs[rank].nbytes()});
  }
  job->set<shm::AllToAll>(shm_type_of(inputs[0]), std::move(sent), std::move(received));
  return post(std::move(job), c10d::OpType::ALLTOALL);
}

// What was posted before has ended when this has, and where it failed this fails too.
ShmBackend::WorkPtr ShmBackend::end_of(Tensors results, std::chrono::milliseconds timeout,
                                       c10d::OpType type) {
  auto job = std::make_shared<TensorJob>(*node_, until(timeout), std::move(results));
  job->set<shm::Barrier>(Type::kUnknown);
  return post(std::move(job), type);
}

ShmBackend::WorkPtr ShmBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  for (const at::Tensor& tensor : tensors) {
    Tensors one{tensor};
    allreduce(one, options);
  }
  return end_of(tensors, options.timeout, c10d::OpType::ALLREDUCE_COALESCED);
}

// Its outputs are, unlike allgather's, a list for each rank.
ShmBackend::WorkPtr ShmBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == getSize(),
                    "shm: all_gather_coalesced takes ", getSize(),
                    " lists, one for each rank, not ", outputs.size());
  Tensors results;
  for (const Tensors& of_rank : outputs) {
    TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "shm: all_gather_coalesced takes lists of ",
                      inputs.size(), " tensors, not ", of_rank.size());
    results.insert(results.end(), of_rank.begin(), of_rank.end());
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (const Tensors& of_rank : outputs) parts.push_back(of_rank[i]);
    gather_into("all_gather_coalesced", parts, inputs[i], shm::Gather::kAll, options.timeout,
                c10d::OpType::ALLGATHER);
  }
  return end_of(std::move(results), options.timeout, c10d::OpType::ALLGATHER_COALESCED);
}

ShmBackend::WorkPtr ShmBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  check_pairs("all_gather", outputs, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) _allgather_base(outputs[i], inputs[i], options);
  return end_of(outputs, options.timeout, c10d::OpType::COALESCED);
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  check_pairs("reduce_scatter", outputs, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    _reduce_scatter_base(outputs[i], inputs[i], options);
  }
  return end_of(outputs, options.timeout, c10d::OpType::COALESCED);
}

ShmBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions& options) {
  return end_of({}, options.timeout, c10d::OpType::BARRIER);
}

// Every barrier here names who does not come.
void ShmBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_for_all*/) {
  barrier(options)->wait();
}

ShmBackend::WorkPtr ShmBackend::send(Tensors& tensors, int to, int tag) {
  auto work =
      c10::make_intrusive<MessageWork>(getRank(), c10d::OpType::SEND, only("send", tensors), node_);
  work->enter(record_, to, tag);
  node_->messages().send(work->message(to, tag, until(c10d::kUnsetTimeout)));
  return work;
}

ShmBackend::WorkPtr ShmBackend::receive(at::Tensor tensor, int from, int tag, c10d::OpType type) {
  auto work = c10::make_intrusive<MessageWork>(getRank(), type, std::move(tensor), node_);
  work->enter(record_, from, tag);
  node_->messages().receive(work->message(from, tag, until(c10d::kUnsetTimeout)));
  return work;
}

ShmBackend::WorkPtr ShmBackend::recv(Tensors& tensors, int from, int tag) {
  return receive(only("receive", tensors), from, tag, c10d::OpType::RECV);
}

ShmBackend::WorkPtr ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(only("receive", tensors), shm::Messages::kAny, tag, c10d::OpType::RECVANYSOURCE);
}

}  // namespace ddprun
