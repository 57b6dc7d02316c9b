// What the backends over shared memory (shm_backend.h, shm_nodes_backend.h) have in common: an
// operation as a task of the group's queue with its results and future, and the Work that c10d gives
// to who started it. Any thread.
#pragma once

#include <ATen/core/ivalue.h>

#include <exception>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "worker_lib/process/collective_record.h"
#include "worker_lib/shm/shm_group.h"

namespace ddprun {

// kUnknown and kNone for what shm does not know.
shm::Type shm_type_of(const at::Tensor& tensor);
shm::Op shm_op_of(const c10d::ReduceOp& op);

// A Failure as c10d expects errors of a backend; kClosed: a rank's process has ended.
class ShmError : public c10::DistBackendError {
 public:
  explicit ShmError(const Failure& failure);
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Of what any backend throws: kTimeout, kClosed (of ours), or as a rule kUnavailable. Gloo and LibTorch
// throw the same types for a time limit as for a connection that broke: theirs are told apart by
// their text.
ErrorCode code_of(const std::exception& error);

// A Failure as a ShmError, others as they are.
std::exception_ptr torch_error(const std::exception_ptr& error);

class ShmJob : public shm::Task {
 public:
  using Tensors = std::vector<at::Tensor>;
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  explicit ShmJob(Tensors results) : results_(std::move(results)) {}
  // Before it is posted: who writes when it is left.
  void record_as(std::shared_ptr<GroupRecord> record, record::Ticket ticket) {
    record_ = std::move(record);
    ticket_ = ticket;
  }
  void ended() noexcept override;
  // For as long as a thread waits for it.
  GroupRecord::Waiting waiting() const { return {record_, ticket_}; }

  const Tensors& results() const { return results_; }
  FuturePtr future();  // at any time
  // The queue first marks the job as ended and then completes its future, if one was asked for. A
  // caller that has seen the job end waits here until the future has its value: c10d's Reducer calls
  // wait() on the work and value() on its future directly after it.
  void await_future();

 private:
  void complete(const FuturePtr& future);

  Tensors results_;
  std::shared_ptr<GroupRecord> record_;
  record::Ticket ticket_ = 0;
  std::mutex mutex_;
  bool has_ended_ = false;
  FuturePtr future_;
};

// Says in the record, if there is one, that this rank enters the job, and posts it to the node's queue. `number`: of the
// group's operations.
c10::intrusive_ptr<c10d::Work> post_job(std::shared_ptr<ShmJob> job, c10d::OpType type, int rank,
                                        std::uint64_t number,
                                        const std::shared_ptr<shm::NodeGroup>& node,
                                        const std::shared_ptr<GroupRecord>& record);

}  // namespace ddprun
