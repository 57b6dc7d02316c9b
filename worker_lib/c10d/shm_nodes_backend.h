// NodesBackend: "shm" for a group on several nodes. What a training step exchanges goes through the
// memory of each node first, and between one rank of each, its leader, through Gloo: all_reduce,
// reduce, broadcast and barrier. Everything else goes through Gloo between all ranks, as it would
// without shared memory. Sums are in the order of ranks within a node and Gloo's between them.
// Threads and failures as ShmBackend's.
#pragma once

#include <functional>
#include <memory>

#include "worker_lib/c10d/shm_backend.h"
#include "worker_lib/shm/shm_join.h"

namespace ddprun {

class NodesBackend : public c10d::Backend {
 public:
  using Tensors = ShmBackend::Tensors;
  using WorkPtr = ShmBackend::WorkPtr;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  // `leaders` connects the first rank of every node, in the order of nodes, and is nothing for the
  // others; `all` everybody. `close_gloo` ends the connections of one of them.
  NodesBackend(shm::Joined joined, int rank, BackendPtr leaders, BackendPtr all,
               std::function<void(c10d::Backend&)> close_gloo, std::chrono::milliseconds timeout);
  ~NodesBackend() override;

  // Of both: what Gloo cannot reduce (an average, some integers) cannot be reduced here.
  const std::string getBackendName() const override { return "gloo+shm"; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void close();
  void abort() override { close(); }
  void shutdown() override { close(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    return all_->allreduce_coalesced(tensors, options);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return all_->allgather(outputs, inputs, options);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return all_->_allgather_base(output, input, options);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return all_->gather(outputs, inputs, options);
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    return all_->scatter(outputs, inputs, options);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return all_->reduce_scatter(outputs, inputs, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return all_->_reduce_scatter_base(output, input, options);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    return all_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    return all_->alltoall(outputs, inputs, options);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override { return all_->send(tensors, to, tag); }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return all_->recv(tensors, from, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return all_->recvAnysource(tensors, tag);
  }
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return posted_; }

 private:
  class Job;

  WorkPtr post(std::shared_ptr<Job> job, c10d::OpType type);
  WorkPtr reduce_everywhere(const at::Tensor& tensor, const c10d::ReduceOp& op,
                            std::chrono::milliseconds timeout, c10d::OpType type);
  std::chrono::milliseconds limit(std::chrono::milliseconds timeout) const {
    return timeout == c10d::kUnsetTimeout ? timeout_ : timeout;
  }

  shm::Joined joined_;
  BackendPtr leaders_;
  BackendPtr all_;
  std::function<void(c10d::Backend&)> close_gloo_;
  std::chrono::milliseconds timeout_;
  std::atomic<std::uint64_t> posted_ = 0;
};

}  // namespace ddprun
