// NodesBackend: "shm" for a group on several nodes. What a training step exchanges goes through the
// memory of each node first, and between one rank of each, its leader, through Gloo: all_reduce,
// reduce, broadcast and barrier. Everything else goes through Gloo between all ranks, which this is, as
// it would without shared memory. Sums are in the order of ranks within a node and Gloo's between
// them. Threads and failures as ShmBackend's.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "worker_lib/c10d/gloo_backend.h"
#include "worker_lib/c10d/shm_jobs.h"
#include "worker_lib/shm/shm_join.h"

namespace ddprun {

class NodesBackend : public GlooBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `leaders` connects the first rank of every node, in the order of nodes, and is nothing for the
  // others; all meet in `store`.
  NodesBackend(shm::Joined joined, c10::intrusive_ptr<c10d::Backend> leaders,
               const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
               const ProcessGroupOptions& options, std::shared_ptr<GroupRecord> record = nullptr);
  ~NodesBackend() override;

  // Of both: what Gloo cannot reduce (an average, some integers) cannot be reduced here.
  const std::string getBackendName() const override { return "gloo+shm"; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void abort() override;
  void shutdown() override { abort(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return posted_; }

 private:
  std::shared_ptr<TensorJob> job_for(Tensors results, std::chrono::milliseconds timeout);
  WorkPtr post(std::shared_ptr<ShmJob> job, c10d::OpType type) {
    return post_job(std::move(job), type, getRank(), ++posted_, joined_.node, record());
  }
  WorkPtr reduce_everywhere(const at::Tensor& tensor, const c10d::ReduceOp& op,
                            std::chrono::milliseconds timeout, c10d::OpType type);
  std::chrono::milliseconds limit(std::chrono::milliseconds timeout) const {
    return timeout == c10d::kUnsetTimeout ? timeout_ : timeout;
  }

  shm::Joined joined_;
  c10::intrusive_ptr<c10d::Backend> leaders_;
  std::chrono::milliseconds timeout_;
  std::atomic<std::uint64_t> posted_ = 0;
};

}  // namespace ddprun
