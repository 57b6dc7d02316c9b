#include "ddprun/failure_vote.h"

#include <cmath>
#include <limits>

#include "ddprun/context.h"
#include "ddprun/error.h"
#include "worker_lib/c10d/words.h"
#include "worker_lib/group/leave_vote.h"

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

std::string describe(std::int64_t step, const std::string& what) {
  return std::string("the loss ") + (step > 0 ? "of step " + std::to_string(step) + " " : "") +
         "is " + what + "; look at that batch, lower the learning rate, or clip gradients";
}

std::string describe(std::int64_t step, double loss) {
  return describe(step, std::isnan(loss) ? "NaN" : loss > 0 ? "infinite" : "minus infinity");
}

// What `rank` has to say, on every rank of the group.
Failure failure_of(Group& group, int rank, const std::string& mine) {
  const std::string why = group.broadcast(mine, rank);
  return {ErrorCode::kUnavailable, "rank " + std::to_string(group.global_rank(rank)) + ": " + why};
}

}  // namespace

FailureVote::FailureVote(Group& group)
    : group_(group), vote_(std::make_unique<LeaveVote>(/*may_be_told=*/true)) {}

FailureVote::FailureVote(Context& context) : FailureVote(static_cast<Group&>(context)) {
  context_ = &context;
}

FailureVote::~FailureVote() = default;

void FailureVote::report(std::int64_t step, std::string why) {
  if (!trouble_) trouble_ = Trouble{step, std::move(why), nullptr};
}

void FailureVote::report(std::int64_t step, std::exception_ptr thrown) {
  if (!trouble_) trouble_ = Trouble{step, message_of(thrown), thrown};
}

void FailureVote::poll() {
  if (vote([] { return false; })) end_together();
}

bool FailureVote::should_leave() {
  if (is_leaving_ || !vote([this] { return context_->is_told_to_leave(); })) return is_leaving_;
  settle();
  return is_leaving_ = true;
}

// Whether any rank has something to say.
template <typename AlsoTold>
bool FailureVote::vote(const AlsoTold& is_also_told) {
  const auto is_told = [&] {
    if (look_) look_();
    const bool is_also = is_also_told();
    return has_report() || is_also;
  };
  return vote_->should_leave(is_told,
                             [this](LeaveVote::Ballot ballot) { return least(group_, ballot); });
}

void FailureVote::settle() {
  if (look_) look_();
  if (least(group_, {has_report() ? -1 : 0, 0})[0] < 0) end_together();
}

void FailureVote::end_together() {
  const std::int64_t step = least(group_, {trouble_ ? trouble_->step : kNever, 0})[0];
  const bool is_candidate = trouble_ && trouble_->step == step;
  const auto rank = static_cast<int>(least(group_, {is_candidate ? group_.rank() : kNever, 0})[0]);
  const Failure failure = failure_of(group_, rank, trouble_ ? trouble_->why : std::string());
  if (rank == group_.rank() && trouble_->thrown) std::rethrow_exception(trouble_->thrown);
  throw failure;
}

FiniteGuard::FiniteGuard(FailureVote& failures) : failures_(failures) {
  failures_.before_vote([this] { look(); });
}

FiniteGuard::~FiniteGuard() { failures_.before_vote(nullptr); }

void FiniteGuard::watch(double loss, std::int64_t step) {
  if (!std::isfinite(loss)) failures_.report(step, describe(step, loss));
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
  failures_.report(step, describe(step, "NaN or infinite"));
}

void check_finite(Group& group, const torch::Tensor& loss) {
  const auto value = loss.item<double>();
  const bool is_bad = !std::isfinite(value);
  const std::int64_t first = least(group, {is_bad ? group.rank() : kNever, 0})[0];
  if (first == kNever) return;
  throw failure_of(group, static_cast<int>(first), is_bad ? describe(0, value) : std::string());
}

}  // namespace ddprun
