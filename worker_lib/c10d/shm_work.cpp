#include "worker_lib/c10d/shm_work.h"

#include <ATen/ATen.h>

#include <utility>

#include "worker_lib/c10d/words.h"

namespace ddprun {

shm::Type shm_type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return shm::Type::kFloat32;
    case at::kDouble:
      return shm::Type::kFloat64;
    case at::kBFloat16:
      return shm::Type::kBFloat16;
    case at::kHalf:
      return shm::Type::kFloat16;
    case at::kChar:
      return shm::Type::kInt8;
    case at::kShort:
      return shm::Type::kInt16;
    case at::kInt:
      return shm::Type::kInt32;
    case at::kLong:
      return shm::Type::kInt64;
    case at::kByte:
      return shm::Type::kUInt8;
    case at::kUInt16:
      return shm::Type::kUInt16;
    case at::kUInt32:
      return shm::Type::kUInt32;
    case at::kUInt64:
      return shm::Type::kUInt64;
    case at::kBool:
      return shm::Type::kBool;
    default:
      return shm::Type::kUnknown;
  }
}

shm::Op shm_op_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return shm::Op::kSum;
    case c10d::ReduceOp::AVG:
      return shm::Op::kAverage;
    case c10d::ReduceOp::PRODUCT:
      return shm::Op::kProduct;
    case c10d::ReduceOp::MIN:
      return shm::Op::kMinimum;
    case c10d::ReduceOp::MAX:
      return shm::Op::kMaximum;
    case c10d::ReduceOp::BAND:
      return shm::Op::kAnd;
    case c10d::ReduceOp::BOR:
      return shm::Op::kOr;
    case c10d::ReduceOp::BXOR:
      return shm::Op::kXor;
    case c10d::ReduceOp::UNUSED:
      break;
  }
  return shm::Op::kNone;
}

ShmError::ShmError(const Failure& failure)
    : DistBackendError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, failure.what()),
      code_(failure.error().code) {}

ErrorCode code_of(const std::exception& error) {
  if (const auto* const ours = dynamic_cast<const ShmError*>(&error)) return ours->code();
  if (const auto* const ours = dynamic_cast<const Failure*>(&error)) return ours->error().code;
  const std::string words = words_of(error);
  const bool is_late =
      words.find("imed out") != std::string::npos || words.find("imeout") != std::string::npos;
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

// Callbacks of a future are called without the lock.
ShmPromise::FuturePtr ShmPromise::future(const Tensors& results) {
  std::unique_lock lock(mutex_);
  if (!future_) {
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (is_over_) complete(future_, results);  // nobody has it yet
  }
  return future_;
}

void ShmPromise::end(std::exception_ptr error, const Tensors& results) {
  std::unique_lock lock(mutex_);
  is_over_ = true;
  error_ = std::move(error);
  const FuturePtr future = future_;
  lock.unlock();
  if (future) complete(future, results);
}

void ShmPromise::complete(const FuturePtr& future, const Tensors& results) {
  if (error_) {
    future->setError(error_);
  } else {
    future->markCompleted(c10::IValue(results));
  }
}

ShmWork::ShmWork(int rank, c10d::OpType type, std::shared_ptr<shm::NodeGroup> node,
                 std::shared_ptr<ShmJob> job, std::uint64_t number)
    : Work(rank, type), node_(std::move(node)), job_(std::move(job)), number_(number) {}

bool ShmWork::isCompleted() { return queue().is_over(*job_); }

bool ShmWork::isSuccess() const { return queue().is_over(*job_) && !job_->error(); }

std::exception_ptr ShmWork::exception() const {
  return queue().is_over(*job_) && job_->error() ? torch_error(job_->error()) : nullptr;
}

bool ShmWork::wait(std::chrono::milliseconds timeout) {
  if (timeout <= kNoTimeout) {
    queue().wait(*job_);
  } else if (!queue().wait_until(*job_, shm::Clock::now() + timeout)) {
    throw ShmError(
        Failure(ErrorCode::kTimeout,
                "shm: timed out after " + std::to_string(timeout.count()) + " ms of waiting"));
  }
  if (job_->error()) std::rethrow_exception(torch_error(job_->error()));
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> ShmWork::getFuture() {
  auto future = job_->promise().future(job_->results());
  queue().run_on(*job_);
  return future;
}

}  // namespace ddprun
