#include "ddprun/failure_vote.h"

#include <cmath>
#include <limits>

#include "ddprun/error.h"
#include "worker_lib/src/leave_vote.h"

namespace ddprun {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// Of each element, over all ranks; through the CPU.
LeaveVote::Ballot least(Group& group, LeaveVote::Ballot ballot) {
  if (group.size() > 1) {
    group.all_reduce(torch::from_blob(ballot.data(), {2}, torch::kInt64), c10d::ReduceOp::MIN);
  }
  return ballot;
}

std::string words_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

std::string describe(double loss, std::int64_t step) {
  const char* what = std::isnan(loss) ? "NaN" : loss > 0 ? "infinite" : "minus infinity";
  return std::string("the loss ") + (step > 0 ? "of step " + std::to_string(step) + " " : "") +
         "is " + what + "; look at that batch, lower the learning rate, or clip gradients";
}

}  // namespace

FailureVote::FailureVote(Group& group)
    : group_(group), vote_(std::make_unique<LeaveVote>(/*may_be_told=*/true)) {}

FailureVote::~FailureVote() = default;

void FailureVote::report(std::int64_t step, std::string why) {
  if (!trouble_) trouble_ = Trouble{step, std::move(why), nullptr};
}

void FailureVote::report(std::int64_t step, std::exception_ptr thrown) {
  if (!trouble_) trouble_ = Trouble{step, words_of(thrown), thrown};
}

void FailureVote::poll() {
  const auto is_told = [this] {
    if (look_) look_();
    return has_report();
  };
  const auto agree = [this](LeaveVote::Ballot ballot) { return least(group_, ballot); };
  if (vote_->should_leave(is_told, agree)) end_together();
}

void FailureVote::settle() {
  if (look_) look_();
  if (least(group_, {has_report() ? -1 : 0, 0})[0] < 0) end_together();
}

void FailureVote::end_together() {
  const std::int64_t step = least(group_, {trouble_ ? trouble_->step : kNever, 0})[0];
  const bool is_candidate = trouble_ && trouble_->step == step;
  const auto rank = static_cast<int>(least(group_, {is_candidate ? group_.rank() : kNever, 0})[0]);
  const std::string why = group_.broadcast(trouble_ ? trouble_->why : std::string(), rank);
  if (rank == group_.rank() && trouble_->thrown) std::rethrow_exception(trouble_->thrown);
  throw Failure(ErrorCode::kUnavailable,
                "rank " + std::to_string(group_.job_rank(rank)) + ": " + why);
}

FiniteGuard::FiniteGuard(FailureVote& failures) : failures_(failures) {
  failures_.before_vote([this] { look(); });
}

FiniteGuard::~FiniteGuard() { failures_.before_vote(nullptr); }

void FiniteGuard::watch(double loss, std::int64_t step) {
  if (!std::isfinite(loss)) failures_.report(step, describe(loss, step));
}

void FiniteGuard::watch(const torch::Tensor& loss, std::int64_t step) {
  if (loss.device().is_cpu()) return watch(loss.item<double>(), step);
  const torch::NoGradGuard no_grad;
  if (!first_bad_.defined()) {
    first_bad_ = torch::full({}, kNever, torch::dtype(torch::kInt64).device(loss.device()));
  }
  first_bad_ =
      torch::where(loss.detach().isfinite().view({}), first_bad_, first_bad_.clamp_max(step));
}

void FiniteGuard::look() {
  if (!first_bad_.defined()) return;
  const auto step = first_bad_.item<std::int64_t>();
  if (step == kNever) return;
  failures_.report(step, "the loss of step " + std::to_string(step) +
                             " is NaN or infinite; look at that batch, lower the learning rate, "
                             "or clip gradients");
}

void check_finite(Group& group, const torch::Tensor& loss) {
  const auto value = loss.item<double>();
  const bool is_bad = !std::isfinite(value);
  const std::int64_t first = least(group, {is_bad ? group.rank() : kNever, 0})[0];
  if (first == kNever) return;
  const auto rank = static_cast<int>(first);
  const std::string why = group.broadcast(is_bad ? describe(value, 0) : std::string(), rank);
  throw Failure(ErrorCode::kUnavailable,
                "rank " + std::to_string(group.job_rank(rank)) + ": " + why);
}

}  // namespace ddprun
