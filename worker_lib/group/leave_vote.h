// When all ranks leave: the notice of a preemption reaches them at different moments, or only some
// of them, and still all must stop after the same step, or those who go on wait for ever in the
// next collective. So the ranks vote: at calls that they agreed upon before, each says whether it
// was told, and if any was, all leave. A vote is one small collective, made about twice a second:
// each also says how many calls ahead the next one should be, and the least of these numbers is
// taken by all. Ranks that have no link at all agree never to vote again.
//
// Pure but for `agree`: the time is given. Owned by the Context; every rank must call
// should_leave() equally often, or the votes do not meet.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>

namespace ddprun {

class LeaveVote {
 public:
  using Clock = std::chrono::steady_clock;
  using Ballot = std::array<std::int64_t, 2>;
  // The least of each element over all ranks; collective.
  using Agree = std::function<Ballot(Ballot)>;

  static constexpr Clock::duration kPeriod = std::chrono::milliseconds(500);
  // No more calls than this are skipped, however short they are: they may become longer.
  static constexpr std::int64_t kCallsMax = 1024;
  // From one vote to the next; the votes of the beginning are so few that nobody feels them.
  static constexpr std::int64_t kGrowthMax = 8;

  // `may_be_told`: this process has a link.
  explicit LeaveVote(bool may_be_told) : may_be_told_(may_be_told) {}

  template <typename IsTold>
  bool should_leave(const IsTold& is_told, const Agree& agree) {
    if (has_decided_ || --calls_left_ > 0) return has_decided_;
    return vote(is_told(), agree, Clock::now());
  }

  bool vote(bool is_told, const Agree& agree, Clock::time_point now);
  std::int64_t calls_until_vote() const { return calls_left_; }

  // What all ranks have the same of.
  using State = std::array<std::int64_t, 3>;
  State state() const { return {has_decided_, calls_left_, interval_}; }
  void restore(const State& state, Clock::time_point now) {
    has_decided_ = state[0] != 0;
    calls_left_ = state[1];
    interval_ = state[2];
    last_vote_ = now;
  }

 private:
  std::int64_t proposal(Clock::time_point now) const;

  bool may_be_told_;
  bool has_decided_ = false;
  std::int64_t calls_left_ = 1;
  std::int64_t interval_ = 0;  // calls from the last vote to this one
  Clock::time_point last_vote_{};
};

}  // namespace ddprun
