#include "worker_lib/c10d/shm_work.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "worker_lib/c10d/error_text.h"
#include "worker_lib/c10d/recorded_call.h"

namespace ddprun {

shm::Type shm_type_of(const at::Tensor& tensor) {
  using shm::Type;
  static constexpr std::pair<at::ScalarType, Type> kTypes[] = {
      {at::kFloat, Type::kFloat32}, {at::kDouble, Type::kFloat64}, {at::kBFloat16, Type::kBFloat16},
      {at::kHalf, Type::kFloat16},  {at::kChar, Type::kInt8},      {at::kShort, Type::kInt16},
      {at::kInt, Type::kInt32},     {at::kLong, Type::kInt64},     {at::kByte, Type::kUInt8},
      {at::kUInt16, Type::kUInt16}, {at::kUInt32, Type::kUInt32},  {at::kUInt64, Type::kUInt64},
      {at::kBool, Type::kBool}};
  const auto* const found =
      std::ranges::find(kTypes, tensor.scalar_type(), &std::pair<at::ScalarType, Type>::first);
  return found == std::end(kTypes) ? Type::kUnknown : found->second;
}

shm::Op shm_op_of(const c10d::ReduceOp& op) {
  using c10d::ReduceOp;
  using shm::Op;
  static constexpr std::pair<ReduceOp::RedOpType, Op> kOps[] = {
      {ReduceOp::SUM, Op::kSum},     {ReduceOp::PREMUL_SUM, Op::kSum},
      {ReduceOp::AVG, Op::kAverage}, {ReduceOp::PRODUCT, Op::kProduct},
      {ReduceOp::MIN, Op::kMinimum}, {ReduceOp::MAX, Op::kMaximum},
      {ReduceOp::BAND, Op::kAnd},    {ReduceOp::BOR, Op::kOr},
      {ReduceOp::BXOR, Op::kXor}};
  const auto* const found =
      std::ranges::find(kOps, op.op_, &std::pair<ReduceOp::RedOpType, Op>::first);
  return found == std::end(kOps) ? Op::kNone : found->second;
}

ShmError::ShmError(const Failure& failure)
    : DistBackendError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, failure.what()),
      code_(failure.error().code) {}

ErrorCode code_of(const std::exception& error) {
  if (const auto* const ours = dynamic_cast<const ShmError*>(&error)) return ours->code();
  if (const auto* const ours = dynamic_cast<const Failure*>(&error)) return ours->error().code;
  const std::string text = error_line(error);
  const bool is_late =
      text.find("imed out") != std::string::npos || text.find("imeout") != std::string::npos;
  return is_late ? ErrorCode::kTimeout : ErrorCode::kUnavailable;
}

std::exception_ptr torch_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Failure& failure) {
    return std::make_exception_ptr(ShmError(failure));
  } catch (...) {
    return error;
  }
}

ShmJob::FuturePtr ShmJob::future() {
  const std::scoped_lock lock(mutex_);
  if (!future_) {
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (has_ended_) complete(future_);  // nobody has it yet
  }
  return future_;
}

// Callbacks of a future are called without the lock.
void ShmJob::ended() noexcept {
  if (ticket_ != 0) record_->leave(ticket_);
  std::unique_lock lock(mutex_);
  has_ended_ = true;
  const FuturePtr future = future_;
  lock.unlock();
  if (future) complete(future);
}

void ShmJob::await_future() {
  std::unique_lock lock(mutex_);
  const FuturePtr future = future_;
  lock.unlock();
  if (future) future->wait();
}

void ShmJob::complete(const FuturePtr& future) {
  if (error()) {
    future->setError(torch_error(error()));
  } else {
    future->markCompleted(c10::IValue(results_));
  }
}

namespace {

class ShmWork : public c10d::Work {
 public:
  ShmWork(int rank, c10d::OpType type, std::shared_ptr<shm::NodeGroup> node,
          std::shared_ptr<ShmJob> job, std::uint64_t number)
      : Work(rank, type), node_(std::move(node)), job_(std::move(job)), number_(number) {}

  bool isCompleted() override { return is_over(); }
  bool isSuccess() const override { return is_over() && !job_->error(); }
  std::exception_ptr exception() const override {
    return is_over() && job_->error() ? torch_error(job_->error()) : nullptr;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const GroupRecord::Waiting waiting = job_->waiting();
    if (timeout <= kNoTimeout) {
      queue().wait(*job_);
    } else if (!queue().wait_until(*job_, shm::Clock::now() + timeout)) {
      throw ShmError(
          Failure(ErrorCode::kTimeout,
                  "shm: timed out after " + std::to_string(timeout.count()) + " ms of waiting"));
    }
    job_->await_future();
    if (job_->error()) std::rethrow_exception(torch_error(job_->error()));
    return true;
  }
  void abort() override { node_->close(); }
  std::vector<at::Tensor> result() override { return job_->results(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = job_->future();
    if (queue().run_on(*job_)) job_->await_future();
    return future;
  }
  std::uint64_t getSequencenumber() const override { return number_; }

 private:
  shm::Queue& queue() const { return node_->queue(); }
  bool is_over() const {
    if (!queue().is_over(*job_)) return false;
    job_->await_future();
    return true;
  }

  std::shared_ptr<shm::NodeGroup> node_;
  std::shared_ptr<ShmJob> job_;
  std::uint64_t number_;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> post_job(std::shared_ptr<ShmJob> job, c10d::OpType type, int rank,
                                        std::uint64_t number,
                                        const std::shared_ptr<shm::NodeGroup>& node,
                                        const std::shared_ptr<GroupRecord>& record) {
  auto work = c10::make_intrusive<ShmWork>(rank, type, node, job, number);
  if (record) {
    const auto& results = job->results();
    job->record_as(record, record->enter(call_of(type, results.empty() ? nullptr : &results[0])));
  }
  node->queue().post(std::move(job));
  return work;
}

}  // namespace ddprun
