// GlooBackend: c10d's backend over Gloo, at the address from which this rank reaches the others, and with
// connections that can be closed. Made collectively; threads as c10d's.
#pragma once

#include <torch/types.h>

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "worker_lib/c10d/process_group.h"
#include "worker_lib/process/collective_record.h"

namespace ddprun {

class GlooBackend : public c10d::ProcessGroupGloo {
 public:
  // Connects all members within options.join_timeout.
  GlooBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
              const ProcessGroupOptions& options, std::shared_ptr<GroupRecord> record = nullptr);

  // Peers which wait for this rank fail at once; of no use afterwards.
  void abort() override;

  // The collectives, with what `record` is to say of them.
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
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
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  // Messages end when somebody waits for them: until then, they are in the record.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;

 protected:
  const std::shared_ptr<GroupRecord>& record() const { return record_; }

 private:
  template <typename Begin>
  WorkPtr recorded(const record::Call& call, const Begin& begin);
  template <typename Begin>
  WorkPtr message(c10d::OpType type, int peer, int tag, const Tensors& tensors, const Begin& begin);

  const std::shared_ptr<GroupRecord> record_;  // may be null
};

}  // namespace ddprun
