#include "ddprun/failure_vote.h"

#include <cmath>
#include <limits>

#include "ddprun/context.h"
#include "ddprun/error.h"
#include "worker_lib/c10d/error_text.h"
#include "worker_lib/group/agreement.h"
#include "worker_lib/group/context_access.h"

namespace ddprun {
namespace {

using namespace detail;

constexpr std::int64_t kNoStep = std::numeric_limits<std::int64_t>::max();

std::string describe(std::int64_t step, const std::string& what) {
  return "the loss of step " + std::to_string(step) + " is " + what +
         "; look at that batch, lower the learning rate, or clip gradients";
}

std::string describe(std::int64_t step, double loss) {
  return describe(step, std::isnan(loss) ? "NaN" : loss > 0 ? "infinite" : "minus infinity");
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
  if (!trouble_) trouble_ = Trouble{step, error_text(thrown), thrown};
}

std::array<std::int64_t, 3> FailureVote::vote_state() const { return vote_->state(); }

void FailureVote::restore_vote(const std::array<std::int64_t, 3>& state) {
  vote_->restore(state, LeaveVote::Clock::now());
}

void FailureVote::poll() {
  if (vote([] { return false; })) end_together();
}

bool FailureVote::should_leave() {
  if (is_leaving_ || !vote([this] { return detail::ContextAccess::is_told_to_leave(*context_); }))
    return is_leaving_;
  settle();
  detail::ContextAccess::note_leaving(*context_);
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
  const std::int64_t step = least(group_, {trouble_ ? trouble_->step : kNoStep, 0})[0];
  std::optional<RankError> mine;
  if (trouble_ && trouble_->step == step) mine.emplace().text = trouble_->why;
  const auto first = first_error(group_, std::move(mine)).value();
  if (first.rank == group_.rank() && trouble_->thrown) std::rethrow_exception(trouble_->thrown);
  throw Failure(ErrorCode::kUnavailable,
                "rank " + std::to_string(group_.global_rank(first.rank)) + ": " + first.text);
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
    first_bad_ = torch::full({}, kNoStep, torch::dtype(torch::kInt64).device(loss.device()));
  }
  first_bad_ =
      torch::where(loss.detach().isfinite().view({}), first_bad_, first_bad_.clamp_max(step));
}

void FiniteGuard::look() {
  if (!first_bad_.defined()) return;
  const auto step = first_bad_.item<std::int64_t>();
  if (step == kNoStep) return;
  failures_.report(step, describe(step, "NaN or infinite"));
}

}  // namespace ddprun
