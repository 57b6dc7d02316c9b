// Which ranks of a job compute slowly: from when each rank came to the calls that none can leave before all have come. The
// all-reduce makes the step of every rank equally long, so the length of steps says nothing; the order of arrival does.
// It is an observation, upon which nothing is done. Pure; one thread.
//
// clang-format off
//
//   a call counts          if every member of its group has come to it, and it is known when
//   a rank is late in it   if it came later than half of the members by more than a twentieth of a step, kLeast, and what the
//                          clocks of nodes may differ, and by half as much as the last at least (1). In a broadcast only the root
//   a rank is slow         if in the last minute (2) it was late once in kSlowShare of the steps (3), and of all the time for which
//                          calls of its group waited for late ranks, kSlowPart was for it
//   it is slow no more     if it was late in less than half of them, or nothing is known of it any more
//
//   (1) less the time for which it waited for others since the call before, in calls of other groups, longer than the member
//       in the middle. A call of which that is not known does not count
//   (2) longer if it has not kSteps steps, up to twenty minutes. There must be calls in all of that time, and recent ones
//   (3) ranks report their steps. Where none does, each call is a step
//
//   A rank that exchanges messages with others is not late, nor for a minute after: it is not known how long it waits for them,
//   and the stages of a pipeline differ by design. Not named is a rank that loses less than a twentieth of a step in each of
//   many calls: whether such times add up is not known, since it may be one and the same.
//
// clang-format on
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/worker_abi/collective_record.h"

namespace ddprun::rdzv {

// What one node says at a look.
struct RankArrivals {
  int rank = 0;
  std::optional<std::int64_t> steps = {};  // that it has done
  std::vector<record::GroupArrivals> groups = {};

  bool operator==(const RankArrivals&) const = default;
};
struct NodeArrivals {
  std::chrono::nanoseconds clock{};        // this core's clock minus the node's
  std::chrono::nanoseconds clock_error{};  // at most
  std::vector<RankArrivals> ranks;
};

// Where the time of a rank has gone in the last minute; shares of it.
struct RankTimes {
  std::optional<double> in_calls;  // nothing: it is not known when they were over
  double waiting = 0;              // in calls, for ranks that had not come
  double late = 0;                 // steps in which it was late, of all
  std::chrono::nanoseconds lag{};  // the median of how late it was then

  bool operator==(const RankTimes&) const = default;
};

struct SlowRank {
  int rank = 0;
  double share = 0;                // the part of the steps in which it was late
  std::chrono::nanoseconds lag{};  // the median of how late
  std::chrono::nanoseconds
      step{};  // the mean length of one; of the time between two calls where no steps are known
  bool has_steps = false;
  int reference = 0;  // a rank of the same group that is not late

  bool operator==(const SlowRank&) const = default;
};

// "rank 5 on b1 comes last in 93 % of steps, 41 ms late (12 % of a step): next_batch (loader.py:40)". `where` may be empty.
std::string sentence(const SlowRank& slow, const std::string& host, const std::string& where);

// The difference between the clock of another machine and this one's, from questions and answers. The answer that came
// fastest says it best, until the clocks may have gone apart further. An answer that contradicts it says that the other machine
// was started again.
class ClockOffset {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  // All three are times since the beginning of the respective clock.
  void answered(Nanoseconds asked, Nanoseconds received, Nanoseconds other);
  struct Estimate {
    Nanoseconds offset{};  // this clock minus the other
    Nanoseconds error = Nanoseconds::max();
  };
  Estimate at(Nanoseconds now) const;

 private:
  struct Sample {
    Nanoseconds at{};
    Nanoseconds offset{};
    Nanoseconds error{};
  };
  std::deque<Sample> samples_;
};

class LagCore {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  static constexpr double kSteps = 40;
  static constexpr double kSlowShare = 0.8;
  static constexpr double kSlowPart = 0.7;
  static constexpr std::chrono::milliseconds kLeast{2};
  static constexpr std::chrono::seconds kWindow{60};
  static constexpr int kWindowsKept = 20;

  // A test has no minutes.
  explicit LagCore(Nanoseconds window = kWindow) : window_(window) {}

  // What all nodes say that have answered. `now`: of this core's clock. Returns the ranks that are slow since this look.
  std::vector<SlowRank> look(Nanoseconds now, const std::vector<NodeArrivals>& nodes);

  std::vector<SlowRank> slow() const;  // by rank
  const std::map<int, RankTimes>& times() const { return times_; }

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // id and size
  struct Member {
    int rank = 0;
    Nanoseconds entered{};  // by this core's clock, as all times here
    std::optional<Nanoseconds> left;
    bool has_end = true;  // false: it is over, and not known since when
  };
  struct Call {
    std::uint64_t number = 0;
    std::optional<std::size_t> root = {};  // the place of the one for which the others wait
    std::vector<Member> members = {};      // by rank
    Nanoseconds middle{};                  // when half of the members had come
    Nanoseconds last{};                    // when the last one had come, or the root
  };
  struct Group {
    std::vector<int> ranks;  // in ascending order
    Nanoseconds clock_error{};
    std::vector<Call> calls = {};  // that all have come to, by number
  };
  // How long a rank waited for others, in calls of all its groups.
  struct Waits {
    std::vector<Nanoseconds> begins = {};  // these do not overlap
    std::vector<Nanoseconds> ends = {};
    std::vector<Nanoseconds> sums = {};  // how long all before were
    int groups = 0;                      // that make calls
    Nanoseconds known_since = Nanoseconds::min();

    Nanoseconds until(Nanoseconds at) const;
  };
  struct Groups {
    std::map<Key, Group> all = {};
    std::map<int, Waits> waits = {};  // by rank
  };
  struct Late {
    int events = 0;  // steps
    Nanoseconds sum{};
    std::vector<Nanoseconds> lags = {};  // one for each event
  };
  struct Look {  // what one look has added to what is known of a group
    Nanoseconds at{};
    double steps = 0;
    Nanoseconds waited{};  // for late ranks
    std::map<int, Late> late = {};
  };
  struct Judged {            // what is kept of a group
    std::uint64_t seen = 0;  // the number of the latest call that was looked at
    std::vector<int> ranks = {};
    Nanoseconds call_time{};  // the mean time between two calls, at the last look
    std::map<int, Nanoseconds> last_event = {};
    std::deque<Look> looks = {};
  };
  struct Share {  // what one look has added to what is known of a rank
    Nanoseconds at{};
    Nanoseconds until{};
    Nanoseconds span{};
    Nanoseconds in_calls{};
    Nanoseconds waiting{};
    bool has_ends = true;
  };
  struct StepCount {
    Nanoseconds at{};
    std::int64_t steps = 0;
  };

  static Groups complete_calls(const std::vector<NodeArrivals>& nodes);
  static std::map<int, Waits> waits_of(const std::map<Key, Group>& groups);
  void note_ranks(const std::vector<NodeArrivals>& nodes);
  void note_times(const Groups& groups);
  std::optional<Nanoseconds> step_time() const;
  void take(const Groups& groups, const Key& key, Judged& judged);
  // Nothing: it is not known.
  std::optional<std::map<int, Nanoseconds>> late_in(const Groups& groups, const Group& group,
                                                    std::size_t index, Nanoseconds least) const;
  void judge();
  bool is_messenger(int rank) const;

  const Nanoseconds window_;
  Nanoseconds now_{};  // when this look began
  std::map<Key, Judged> judged_;
  struct Messages {
    std::uint64_t calls = 0;
    std::optional<Nanoseconds> at = {};  // when there were more for the last time
  };
  std::map<int, Messages> messages_;  // by rank
  std::map<int, std::deque<StepCount>> step_counts_;
  std::map<int, std::deque<Share>> shares_;
  std::map<int, SlowRank> slow_;
  std::map<int, RankTimes> times_;
};

}  // namespace ddprun::rdzv
