// The rules by which ranks are called slow, with jobs that are computed, not run: an hour of each kind, looked at as agents
// look, every five seconds.
#include "rendezvous/round/lag_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A job whose ranks compute and then make calls together. Times are milliseconds.
struct JobSpec {
  int world = 4;
  int ranks_per_node = 4;
  int calls_per_step = 4;
  bool is_async = true;  // as DDP's reducer: a rank does not wait between the calls of a step
  bool counts_steps = true;
  bool has_ends = true;
  nanoseconds clock_error{};
  std::size_t most = 256;  // calls in an answer
  // What a rank computes before a call of a step, the first of which is 0.
  std::function<double(int rank, int step, int call, std::mt19937& random)> before;
  std::uint64_t group = 7;
};

class Job {
 public:
  explicit Job(JobSpec spec, unsigned seed = 1) : spec_(std::move(spec)), random_(seed) {
    ranks_.resize(static_cast<std::size_t>(spec_.world));
    for (int node = 0; node * spec_.ranks_per_node < spec_.world; ++node) {
      clocks_.push_back(nanoseconds(node == 0 ? 0 : 987'654'321'000 * node));
    }
  }

  void step() {
    std::vector<double> at(ranks_.size(), end_);
    double last_call_end = end_;
    for (int call = 0; call < spec_.calls_per_step; ++call) {
      double last = 0;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        at[rank] += spec_.before(static_cast<int>(rank), steps_, call, random_);
        last = std::max(last, at[rank]);
      }
      last_call_end = std::max(last_call_end, last) + 1;
      ++calls_;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        auto& its = ranks_[rank];
        its.push_back({calls_, ns(rank, at[rank]), ns(rank, last_call_end)});
        if (its.size() > 1000) its.pop_front();
        if (!spec_.is_async) at[rank] = last_call_end;
      }
    }
    end_ = last_call_end;
    ++steps_;
  }

  double now_ms() const { return end_; }
  void pass(double ms) { end_ += ms; }

  // At a moment of the last step.
  std::vector<NodeArrivals> look(double at_ms) const {
    std::vector<NodeArrivals> nodes;
    for (std::size_t node = 0; node < clocks_.size(); ++node) {
      NodeArrivals& made = nodes.emplace_back();
      made.clock = -clocks_[node] + (node == 0 ? nanoseconds() : spec_.clock_error);
      made.clock_error = node == 0 ? nanoseconds() : std::chrono::abs(spec_.clock_error);
      for (int local = 0; local < spec_.ranks_per_node; ++local) {
        const auto rank =
            node * static_cast<std::size_t>(spec_.ranks_per_node) + static_cast<std::size_t>(local);
        record::GroupArrivals group{.id = spec_.group,
                                    .size = static_cast<std::uint32_t>(spec_.world),
                                    .rank = static_cast<std::uint32_t>(rank)};
        for (record::Arrival call : ranks_[rank]) {
          if (call.entered_ns > ns(rank, at_ms)) continue;
          if (!spec_.has_ends) {
            call.left_ns = call.entered_ns;
          } else if (*call.left_ns > ns(rank, at_ms)) {
            call.left_ns.reset();
          }
          group.calls.push_back(call);
        }
        const std::size_t count = std::min(group.calls.size(), spec_.most);
        group.calls.erase(group.calls.begin(),
                          group.calls.end() - static_cast<std::ptrdiff_t>(count));
        const std::int64_t steps = at_ms < end_ ? steps_ - 1 : steps_;
        made.ranks.push_back({static_cast<int>(rank),
                              spec_.counts_steps ? std::optional(steps) : std::nullopt,
                              {group}});
      }
    }
    return nodes;
  }

  // Looks every five seconds, also in the middle of a step. Every rank that was called slow, with the second at which it was.
  std::map<int, double> run(std::chrono::seconds until, LagCore& core) {
    std::map<int, double> found;
    while (end_ < static_cast<double>(until.count()) * 1000) {
      step();
      for (; next_look_ <= end_; next_look_ += 5000) {
        const nanoseconds now(static_cast<std::int64_t>(next_look_ * 1e6));
        for (const SlowRank& each : core.look(now, look(next_look_))) {
          found.try_emplace(each.rank, next_look_ / 1000);
        }
      }
    }
    return found;
  }
  std::map<int, double> run(std::chrono::seconds time) {
    LagCore core;
    return run(time, core);
  }

 private:
  std::int64_t ns(std::size_t rank, double ms) const {
    const std::size_t node = rank / static_cast<std::size_t>(spec_.ranks_per_node);
    return static_cast<std::int64_t>(ms * 1e6) + clocks_[node].count();
  }

  JobSpec spec_;
  std::mt19937 random_;
  std::vector<std::deque<record::Arrival>> ranks_;
  std::vector<nanoseconds> clocks_;
  std::uint64_t calls_ = 0;
  int steps_ = 0;
  double end_ = 1;
  double next_look_ = 5000;
};

double noise(std::mt19937& random, double mean) {
  return std::exponential_distribution<double>(1 / mean)(random);
}

using Random = std::mt19937;

// Before the first call of a step `first`, before each other 5 ms, and always some noise.
auto compute(std::function<double(int rank, int step, Random& random)> first, double jitter = 1) {
  return [=](int rank, int step, int call, Random& random) {
    return (call == 0 ? first(rank, step, random) : 5) + noise(random, jitter);
  };
}
auto even(double ms, double jitter = 3) {
  return compute([=](int, int, Random& random) { return ms + noise(random, jitter); });
}
auto one_slow(int slow, double ms, double by, double jitter = 3) {
  return compute([=](int rank, int, Random& random) {
    return ms + (rank == slow ? by : 0) + noise(random, jitter);
  });
}

std::vector<int> ranks_of(const std::map<int, double>& found) {
  std::vector<int> ranks;
  for (const auto& [rank, at] : found) ranks.push_back(rank);
  return ranks;
}

TEST(LagCoreTest, NamesTheRankThatComesLastWithinNinetySeconds) {
  LagCore core;
  const auto found = Job({.before = one_slow(2, 100, 30)}).run(10min, core);
  ASSERT_THAT(ranks_of(found), ElementsAre(2));
  EXPECT_LT(found.at(2), 70);
  EXPECT_GE(found.at(2), 40);
  ASSERT_EQ(core.slow().size(), 1U);
  const SlowRank slow = core.slow()[0];
  EXPECT_GT(slow.share, 0.9);
  EXPECT_NEAR(static_cast<double>(slow.lag.count()) / 1e6, 30, 6);
  EXPECT_NE(slow.reference, 2);
}

TEST(LagCoreTest, SaysItInASentence) {
  SlowRank slow{.rank = 5, .share = 0.934, .lag = 41ms, .step = 340ms, .has_steps = true};
  EXPECT_EQ(sentence(slow, "b1", "next_batch (loader.py:40)"),
            "rank 5 on b1 comes last in 93 % of steps, 41 ms late (12 % of a step): "
            "next_batch (loader.py:40)");
  slow.has_steps = false;
  EXPECT_EQ(sentence(slow, "b1", ""),
            "rank 5 on b1 comes last in 93 % of calls, 41 ms late (12 % of the time between two)");
}

// ---- slow ranks

struct Named {
  const char* name;
  JobSpec spec;
  std::vector<int> slow;

  friend void PrintTo(const Named& job, std::ostream* out) { *out << job.name; }
};

std::string test_name(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) text += c;
  }
  return text;
}

// Calls that are spread over the step, in each of which ranks wait; rank 1 is late before one of them.
JobSpec spread(int calls, double between, double late, double jitter) {
  return {.calls_per_step = calls,
          .is_async = false,
          .before = [=](int rank, int, int call, Random& random) {
            return between + (rank == 1 && call == 0 ? late : 0) + noise(random, jitter);
          }};
}

std::vector<Named> slow_jobs() {
  std::vector<Named> jobs;
  jobs.push_back({"of many small calls", spread(40, 5, 60, 0.5), {1}});
  jobs.push_back({"of calls with noise", spread(16, 15, 30, 1), {1}});
  jobs.push_back({"of long calls", spread(8, 250, 300, 5), {1}});
  jobs.push_back({"of very long calls", spread(4, 2000, 1500, 20), {1}});
  jobs.push_back({"of 320 calls", spread(320, 1, 100, 0.05), {1}});
  jobs.push_back({"without steps",
                  {.calls_per_step = 1, .counts_steps = false, .before = one_slow(3, 100, 30)},
                  {3}});
  jobs.push_back({"without ends", {.has_ends = false, .before = one_slow(3, 100, 30)}, {3}});
  jobs.push_back({"two ranks of a slow node",
                  {.world = 8,
                   .ranks_per_node = 2,
                   .clock_error = 300us,
                   .before = compute([](int rank, int, Random&) {
                     return 200.0 + (rank == 4 || rank == 5 ? 40 : 0);
                   })},
                  {4, 5}});
  jobs.push_back({"on two nodes with other clocks",
                  {.ranks_per_node = 2, .clock_error = -2ms, .before = one_slow(3, 100, 30)},
                  {3}});
  jobs.push_back({"of which few calls are seen",
                  {.calls_per_step = 40, .most = 50, .before = one_slow(0, 100, 60)},
                  {0}});
  jobs.push_back({"with steps of 8 s", {.before = one_slow(1, 8000, 900)}, {1}});
  jobs.push_back({"with steps of 20 s", {.before = one_slow(1, 20'000, 5000, 500)}, {1}});
  JobSpec third = spread(4, 20, 0, 1);
  third.before = [](int rank, int, int call, Random& random) {
    return 20 + (rank == 1 && call == 2 ? 30 : 0) + noise(random, 1);
  };
  jobs.push_back({"before its third call", third, {1}});
  return jobs;
}

class SlowJobTest : public ::testing::TestWithParam<Named> {};

TEST_P(SlowJobTest, IsNamed) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    EXPECT_EQ(ranks_of(Job(GetParam().spec, seed).run(30min)), GetParam().slow) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(LagCore, SlowJobTest, ::testing::ValuesIn(slow_jobs()),
                         [](const auto& each) { return test_name(each.param.name); });

TEST(LagCoreTest, SaysWhenItIsOver) {
  LagCore core;
  Job job({.before = compute([](int rank, int step, Random&) {
             return 100.0 + (rank == 2 && step < 1000 ? 30 : 0);
           })});
  EXPECT_THAT(ranks_of(job.run(100s, core)), ElementsAre(2));
  EXPECT_EQ(core.slow().size(), 1U);
  EXPECT_THAT(job.run(400s, core), IsEmpty());
  EXPECT_THAT(core.slow(), IsEmpty());
}

// ---- balanced jobs, by the hour

std::vector<Named> balanced_jobs() {
  const JobSpec plain{.before = even(100)};
  std::vector<Named> jobs;
  const auto add = [&](const char* name, const std::function<void(JobSpec&)>& change) {
    JobSpec spec = plain;
    change(spec);
    jobs.push_back({name, spec, {}});
  };
  add("even", [](JobSpec&) {});
  add("two ranks", [](JobSpec& its) { its.world = its.ranks_per_node = 2; });
  add("two ranks on busy processors", [](JobSpec& its) {
    its.world = its.ranks_per_node = 2;
    its.before = even(100, 60);
  });
  add("busy processors, long steps", [](JobSpec& its) {
    its.world = its.ranks_per_node = 2;
    its.before = even(5000, 3000);
  });
  add("uneven batches", [](JobSpec& its) {
    its.before = compute([](int, int, Random& random) {
      return std::uniform_real_distribution<double>(50, 250)(random);
    });
  });
  add("ranks that take turns", [](JobSpec& its) {
    its.before = compute(
        [](int rank, int step, Random&) { return 100.0 + (step / 20 % 4 == rank ? 50 : 0); });
  });
  add("a rank that is slow for 45 s, now and then", [](JobSpec& its) {
    its.before = compute([](int rank, int step, Random&) {
      return 100.0 + (rank == 1 && step % 1000 >= 730 ? 50 : 0);
    });
  });
  add("rank 0 logs every tenth step", [](JobSpec& its) {
    its.before = compute(
        [](int rank, int step, Random&) { return 100.0 + (rank == 0 && step % 10 == 0 ? 80 : 0); });
  });
  add("rank 0 logs a little at every step", [](JobSpec& its) {
    its.before = compute([](int rank, int, Random&) { return 100.0 + (rank == 0 ? 3 : 0); });
  });
  add("rank 0 evaluates for 20 s every 100 steps", [](JobSpec& its) {
    its.before = compute([](int rank, int step, Random&) {
      return 100.0 + (rank == 0 && step % 100 == 99 ? 20'000 : 0);
    });
  });
  add("two nodes, clocks 20 ms apart", [](JobSpec& its) {
    its.ranks_per_node = 2;
    its.clock_error = 20ms;
  });
  add("short steps", [](JobSpec& its) { its.before = even(3, 1); });
  add("steps are not known, many calls", [](JobSpec& its) {
    its.counts_steps = false;
    its.is_async = false;
    its.before = even(100, 20);
  });
  // Each wait for a processor may be that of any rank.
  const auto busy = [](int calls, double between, int one_in, double least, double most) {
    return [=](int, int, int, Random& random) {
      const bool waits = std::uniform_int_distribution<int>(1, one_in)(random) == 1;
      return between + (waits ? std::uniform_real_distribution<double>(least, most)(random) : 0) +
             0 * calls;
    };
  };
  for (const int one_in : {5, 7, 10}) {
    for (const int world : {2, 4}) {
      const std::string name = "20 calls that lose 4 ms, one in " + std::to_string(one_in) +
                               ", world " + std::to_string(world);
      static std::deque<std::string> names;
      add(names.emplace_back(name).c_str(), [&](JobSpec& its) {
        its.world = its.ranks_per_node = world;
        its.calls_per_step = 20;
        its.is_async = false;
        its.before = busy(20, 1, one_in, 4, 4);
      });
    }
  }
  add("60 calls that lose 15 to 60 ms, one in 20", [&](JobSpec& its) {
    its.calls_per_step = 60;
    its.is_async = false;
    its.before = busy(60, 3, 20, 15, 60);
  });
  return jobs;
}

class BalancedJobTest : public ::testing::TestWithParam<Named> {};

TEST_P(BalancedJobTest, NamesNoRankInAnHour) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    EXPECT_THAT(ranks_of(Job(GetParam().spec, seed).run(1h)), IsEmpty()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(LagCore, BalancedJobTest, ::testing::ValuesIn(balanced_jobs()),
                         [](const auto& each) { return test_name(each.param.name); });

// ---- several groups

// Jobs whose calls are put together here.
class Calls {
 public:
  void add_group(std::uint64_t id, const std::vector<int>& ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      groups_[ranks[i]].push_back({.id = id,
                                   .size = static_cast<std::uint32_t>(ranks.size()),
                                   .rank = static_cast<std::uint32_t>(i)});
      at_.try_emplace(ranks[i], 1);
    }
  }
  // 0 1 and 2 3 compute together; 0 2 and 1 3 have the same part of the model.
  void add_pairs_and_gradients_across() {
    add_group(1, {0, 1});
    add_group(2, {2, 3});
    add_group(3, {0, 2});
    add_group(4, {1, 3});
  }
  void compute(int rank, double ms) { at_[rank] += ms; }
  void compute_all(double ms) {
    for (auto& [rank, at] : at_) at += ms;
  }
  // All members wait for all, or for the root.
  void call(std::uint64_t id, std::int32_t root = -1) {
    double last = 0;
    for (const auto& [group, rank] : members_of(id)) {
      const bool counts = root < 0 || std::cmp_equal(group->rank, root);
      if (counts) last = std::max(last, at_[rank]);
    }
    for (const auto& [group, rank] : members_of(id)) {
      const auto ns = [](double ms) { return static_cast<std::int64_t>(ms * 1e6); };
      const double left = std::max(at_[rank], last) + 0.5;
      const std::uint64_t number = ++group->entered;
      group->calls.push_back({number, ns(at_[rank]), ns(left), root});
      if (group->calls.size() > most) group->calls.erase(group->calls.begin());
      at_[rank] = left;
    }
  }
  void message(int rank) {
    auto& its = groups_[rank];
    const auto known = std::ranges::find(its, true, &record::GroupArrivals::is_channel);
    if (known == its.end()) {
      its.push_back({.id = 99, .size = 2, .rank = 0, .is_channel = true, .entered = 1});
    } else {
      known->entered += 1;
    }
  }
  // After a step; looks if five seconds are over.
  void step() {
    ++steps_;
    const double now = at_.begin()->second;
    if (now < next_look_) return;
    next_look_ = now + 5000;
    NodeArrivals node;
    for (const auto& [rank, its] : groups_) node.ranks.push_back({rank, steps_, its});
    for (const auto& each : core.look(nanoseconds(static_cast<std::int64_t>(now * 1e6)), {node})) {
      found[each.rank] = now / 1000;
    }
  }
  // All compute for 60 ms, and rank 0 for longer.
  void step_with_one_call(std::uint64_t group, double late) {
    compute_all(60);
    compute(0, late);
    call(group);
    step();
  }
  double now_s() const { return at_.begin()->second / 1000; }

  std::size_t most = 256;
  LagCore core;
  std::map<int, double> found;

 private:
  std::vector<std::pair<record::GroupArrivals*, int>> members_of(std::uint64_t id) {
    std::vector<std::pair<record::GroupArrivals*, int>> members;
    for (auto& [rank, its] : groups_) {
      for (auto& group : its) {
        if (group.id == id) members.emplace_back(&group, rank);
      }
    }
    return members;
  }

  std::map<int, std::vector<record::GroupArrivals>> groups_;
  std::map<int, double> at_;
  std::int64_t steps_ = 0;
  double next_look_ = 5000;
};

// Two pairs that compute together (tensor parallel: 0 1, 2 3), and across them the gradients (0 2, 1 3). Rank 1 is slow, so
// rank 0 waits for it, and is late for rank 2 because of that.
TEST(LagCoreTest, NamesNoRankThatWaitsForTheSlowOne) {
  Calls job;
  job.add_pairs_and_gradients_across();
  while (job.now_s() < 200) {
    for (int layer = 0; layer < 4; ++layer) {
      job.compute_all(20);
      job.compute(1, 10);
      job.call(1);
      job.call(2);
    }
    job.call(3);
    job.call(4);
    job.step();
  }
  EXPECT_THAT(ranks_of(job.found), ElementsAre(1));
}

// Rank 0 of a pair loads, and sends the batch to the other one, which is then late for its own peer.
TEST(LagCoreTest, NamesNoRankThatWaitsForABroadcast) {
  Calls job;
  job.add_pairs_and_gradients_across();
  while (job.now_s() < 200) {
    job.compute(0, 50);
    job.call(1, 0);
    job.call(2, 0);
    job.compute_all(50);
    job.call(3);
    job.call(4);
    job.step();
  }
  EXPECT_THAT(ranks_of(job.found), ElementsAre(0));
}

// DDP broadcasts the buffers of rank 0 before each step, so that all wait there for its loader.
TEST(LagCoreTest, NamesTheRootForWhoseBroadcastAllWait) {
  Calls job;
  job.add_group(1, {0, 1, 2, 3});
  while (job.now_s() < 200) {
    job.compute(0, 40);
    job.call(1, 0);
    job.compute_all(60);
    job.call(1);
    job.step();
  }
  EXPECT_THAT(ranks_of(job.found), ElementsAre(0));
}

// A group of the beginning, in which rank 0 was late; and one that a replacement has ended.
TEST(LagCoreTest, ForgetsAGroupThatMakesNoCallsAnyMore) {
  Calls job;
  job.add_group(1, {0, 1});
  job.add_group(2, {0, 1});
  while (job.now_s() < 40) {
    job.step_with_one_call(1, /*late=*/40);
  }
  while (job.now_s() < 700) {
    job.step_with_one_call(2, /*late=*/0);
    EXPECT_THAT(job.found, IsEmpty());
  }
}

TEST(LagCoreTest, CallsNoRankSlowOfWhichNothingIsKnownAnyMore) {
  Calls job;
  job.add_group(1, {0, 1});
  job.add_group(2, {0, 1});
  while (job.now_s() < 120) {
    job.step_with_one_call(1, /*late=*/40);
  }
  EXPECT_EQ(job.core.slow().size(), 1U);
  while (job.now_s() < 160) {
    job.step_with_one_call(2, /*late=*/0);
  }
  EXPECT_THAT(job.core.slow(), IsEmpty());
}

// Stages of a pipeline.
TEST(LagCoreTest, SaysNothingOfRanksThatExchangeMessages) {
  Calls job;
  job.add_group(1, {0, 1});
  const auto steps_until = [&](double end, bool with_messages) {
    while (job.now_s() < end) {
      job.compute_all(60);
      job.compute(1, 40);
      if (with_messages) job.message(1);
      job.call(1);
      job.step();
    }
  };
  steps_until(300, true);
  EXPECT_THAT(job.found, IsEmpty());
  steps_until(500, false);
  EXPECT_THAT(ranks_of(job.found), ElementsAre(1)) << "a message of long ago does not count";
}

TEST(LagCoreTest, SaysNothingWhereANodeDoesNotAnswer) {
  LagCore core;
  Job job({.ranks_per_node = 2, .before = one_slow(1, 100, 50)});
  for (int look = 0; look < 100; ++look) {
    for (int step = 0; step < 30; ++step) job.step();
    auto nodes = job.look(job.now_ms());
    nodes.pop_back();
    EXPECT_THAT(core.look(nanoseconds(static_cast<std::int64_t>(job.now_ms() * 1e6)), nodes),
                IsEmpty());
  }
}

// A node may send nonsense.
TEST(LagCoreTest, TakesCallsThatComeTwice) {
  LagCore core;
  record::GroupArrivals group{.id = 1, .size = 2, .rank = 0};
  group.calls = {{5, 100, 200}, {5, 100, 200}, {5, 300, 400}};
  NodeArrivals node{.ranks = {{0, 1, {group}}, {1, 1, {group}}}};
  EXPECT_THAT(core.look(10s, {node}), IsEmpty());
  EXPECT_THAT(core.look(20s, {node}), IsEmpty());
}

// ---- where the time goes

// A worker may write anything into its record.
TEST(LagCoreTest, TakesTimesOfAnyKind) {
  constexpr std::int64_t kTimeMax = INT64_MAX / 4 - 1;  // as read_arrivals() has it
  LagCore core;
  const auto rank = [](int number, std::int64_t now_ms, auto entered) {
    record::GroupArrivals group{
        .id = 7, .size = 2, .rank = static_cast<std::uint32_t>(number), .entered = 1};
    for (std::int64_t call = now_ms / 100 - 200; call < now_ms / 100; ++call) {
      if (call > 0) group.calls.push_back({static_cast<std::uint64_t>(call), entered(call), {}});
    }
    return RankArrivals{number, std::nullopt, {group}};
  };
  for (std::int64_t now_ms = 5000; now_ms <= 120'000; now_ms += 5000) {
    const auto honest = rank(0, now_ms, [](std::int64_t call) { return call * 100'000'000; });
    const auto other = rank(1, now_ms, [](std::int64_t) { return kTimeMax; });
    core.look(nanoseconds(now_ms * 1'000'000), {{.ranks = {honest, other}}});
  }
  ASSERT_EQ(core.slow().size(), 1U);
  EXPECT_EQ(core.slow()[0].rank, 1);
  EXPECT_EQ(core.slow()[0].lag, 20min) << "no lag is longer than what is kept";
}

TEST(LagCoreTest, SaysWhereTheTimeGoes) {
  LagCore core;
  // A step: 100 ms (rank 1: 150) to the first call, of which there is one, that takes a millisecond.
  Job({.world = 2,
       .ranks_per_node = 2,
       .calls_per_step = 1,
       .before = [](int rank, int, int, Random&) { return rank == 1 ? 150.0 : 100.0; }})
      .run(2min, core);
  const auto& times = core.times();
  ASSERT_EQ(times.size(), 2U);
  EXPECT_NEAR(times.at(0).waiting, 50.0 / 151, 0.02);
  EXPECT_NEAR(times.at(0).in_calls.value_or(0), 51.0 / 151, 0.02);
  EXPECT_NEAR(times.at(1).waiting, 0, 0.01);
  EXPECT_NEAR(times.at(1).in_calls.value_or(1), 1.0 / 151, 0.02);
  EXPECT_GT(times.at(1).late, 0.9);
  EXPECT_EQ(times.at(0).late, 0);
}

TEST(LagCoreTest, DoesNotInventEnds) {
  LagCore core;
  Job({.has_ends = false, .before = even(100)}).run(1min, core);
  EXPECT_FALSE(core.times().at(0).in_calls.has_value());
}

// The bar is 0.2 % of a core: of 5 s, 10 ms. A large job asks for fewer calls.
TEST(LagCoreTest, ALookAtManyRanksIsShort) {
  const auto took = [](int world, std::size_t calls) {
    std::vector<NodeArrivals> nodes(1);
    for (int rank = 0; rank < world; ++rank) {
      RankArrivals& its = nodes[0].ranks.emplace_back();
      its.rank = rank;
      for (int of = 0; of < 4; ++of) {  // groups of 2, 4, 8 and all
        const int size = of == 3 ? world : 2 << of;
        record::GroupArrivals group{.id = static_cast<std::uint64_t>(of * 100'000 + rank / size),
                                    .size = static_cast<std::uint32_t>(size),
                                    .rank = static_cast<std::uint32_t>(rank % size)};
        for (std::size_t call = 0; call < calls; ++call) {
          const auto at = static_cast<std::int64_t>(1e9 + 20e6 * static_cast<double>(call) +
                                                    of * 5e6 + rank % 3 * 3e6);
          group.calls.push_back({call + 1, at, at + 1'000'000});
        }
        its.groups.push_back(std::move(group));
      }
    }
    LagCore core;
    const auto begin = std::chrono::steady_clock::now();
    core.look(10s, nodes);
    return std::chrono::steady_clock::now() - begin;
  };
  EXPECT_LT(took(8, 256), 100ms);
  EXPECT_LT(took(256, 64), 1s);
  EXPECT_LT(took(4096, 16), 3s);
}

// ---- clocks

TEST(ClockOffsetTest, TakesTheAnswerThatCameFastest) {
  ClockOffset clock;
  clock.answered(10s, 10s + 40ms, 3s + 35ms);  // the answer was fast, the question was not
  EXPECT_EQ(clock.at(10s + 40ms).error, 20ms);
  clock.answered(20s, 20s + 2ms, 13s + 1ms);
  EXPECT_EQ(clock.at(20s + 2ms).offset, 7s);
  EXPECT_EQ(clock.at(20s + 2ms).error, 1ms);
  clock.answered(30s, 30s + 50ms, 23s + 5ms);
  EXPECT_EQ(clock.at(30s + 50ms).offset, 7s);
}

TEST(ClockOffsetTest, TrustsAnAnswerLessAndLess) {
  ClockOffset clock;
  clock.answered(20s, 20s + 2ms, 13s + 1ms);
  EXPECT_GE(clock.at(80s).error, 30ms);
  clock.answered(80s, 80s + 4ms, 73s + 12ms);  // ten milliseconds in a minute
  EXPECT_EQ(clock.at(80s + 4ms).offset, 6990ms);
}

TEST(ClockOffsetTest, NoticesThatTheClockIsAnotherOne) {
  ClockOffset clock;
  clock.answered(20s, 20s + 2ms, 13s + 1ms);
  clock.answered(30s, 30s + 20ms, 90s + 10ms);
  EXPECT_EQ(clock.at(30s + 20ms).offset, -60s);
  EXPECT_EQ(clock.at(30s + 20ms).error, 10ms);
}

TEST(ClockOffsetTest, IsNotKnownAtFirst) {
  EXPECT_EQ(ClockOffset().at(1s).error, nanoseconds::max());
}

}  // namespace
}  // namespace ddprun::rdzv
