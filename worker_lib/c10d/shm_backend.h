// ShmBackend: the c10d backend "shm" for tensors on the CPU, over the memory that the ranks of one
// node share (shm_group.h). What c10d asks of a backend: any thread may start an operation; a Work
// is waited for or has a future. Tensors may be laid out anyhow (what is not contiguous goes through
// a copy) and be empty; reductions are those of shm_reduce.h, and PREMUL_SUM with a factor of each
// rank's own. Sums are in the order of ranks. Sparse tensors of all_reduce are added up like
// Gloo's. The ranks' calls are compared, always.
//
// Failures are c10::DistBackendError, in one sentence that names the rank. Afterwards the group is
// of no further use.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "worker_lib/c10d/shm_work.h"

namespace ddprun {

class ShmBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // All ranks of the group share `node`. `record` may be null.
  ShmBackend(std::shared_ptr<shm::NodeGroup> node, std::chrono::milliseconds timeout,
             std::shared_ptr<GroupRecord> record = nullptr);
  ~ShmBackend() override;

  const std::string getBackendName() const override { return "shm"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  // Ends what waits for this rank, here and elsewhere.
  void abort() override { node_->close(); }
  void shutdown() override { abort(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  // Several at once are one after the other.
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return posted_; }

 private:
  shm::Clock::time_point until(std::chrono::milliseconds timeout) const;
  WorkPtr post(std::shared_ptr<ShmJob> job, c10d::OpType type) {
    return post_job(std::move(job), type, getRank(), ++posted_, node_, record_);
  }
  WorkPtr gather_into(const char* name, const Tensors& parts, const at::Tensor& input, int root,
                      std::chrono::milliseconds timeout, c10d::OpType type);
  WorkPtr end_of(Tensors results, std::chrono::milliseconds timeout, c10d::OpType type);
  WorkPtr receive(at::Tensor tensor, int from, int tag, c10d::OpType type);

  std::shared_ptr<shm::NodeGroup> node_;
  const std::shared_ptr<GroupRecord> record_;
  std::chrono::milliseconds timeout_;
  std::atomic<std::uint64_t> posted_ = 0;
};

}  // namespace ddprun
