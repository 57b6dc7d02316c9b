#include "worker_lib/group/leave_vote.h"

#include <algorithm>
#include <limits>

namespace ddprun {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

}  // namespace

bool LeaveVote::vote(bool is_told, const Agree& agree, Clock::time_point now) {
  const Ballot agreed = agree({is_told ? -1 : 0, proposal(now)});
  has_decided_ = agreed[0] < 0;
  calls_left_ = interval_ = agreed[1];
  last_vote_ = now;
  return has_decided_;
}

// As many calls as will fill the period at the pace of the last ones, but at most eight times as
// many as then: the first steps tell little, and a vote costs a step's worth of waiting.
std::int64_t LeaveVote::proposal(Clock::time_point now) const {
  if (!may_be_told_) return kNever;
  if (interval_ == 0) return 1;
  const double taken = std::max(1e-9, std::chrono::duration<double>(now - last_vote_).count());
  const double fitting =
      std::chrono::duration<double>(kPeriod).count() / taken * static_cast<double>(interval_);
  const std::int64_t most = std::min(kCallsMax, kGrowthMax * interval_);
  return std::clamp(static_cast<std::int64_t>(std::min(fitting, double{kCallsMax})),
                    std::int64_t{1}, most);
}

}  // namespace ddprun
