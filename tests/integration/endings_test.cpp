// A rank ends early, in every possible way: each other rank reports which one it was, long before
// the time limit of a collective, and ends too. Without a launcher, because it would stop the
// others before they notice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/net/listener.h"
#include "tests/support/job.h"
#include "tests/support/store_process.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::HasSubstr;

constexpr int kWorld = 3;
constexpr const char* kLongLimit = "60000";  // milliseconds

enum class Host { kRankZero, kAgent };

struct Setting {
  Host host;
  const char* backend;
};

class Endings : public testing::TestWithParam<Setting> {
 protected:
  void start(const std::string& how, int rank, const std::string& limit = kLongLimit) {
    ranks_.clear();
    if (host() == Host::kAgent) store_ = std::make_unique<rdzv::testing::StoreProcess>();
    for (int own = 0; own < kWorld; ++own) {
      JobSetup setup;
      const auto port = store_ ? store_->port() : port_.bound.port;
      setup.environment = {{"RANK", std::to_string(own)},
                           {"WORLD_SIZE", std::to_string(kWorld)},
                           {"LOCAL_RANK", std::to_string(own)},
                           {"LOCAL_WORLD_SIZE", std::to_string(kWorld)},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", std::to_string(port)},
                           {"TORCHELASTIC_USE_AGENT_STORE", store_ ? "True" : "False"}};
      ranks_.push_back(std::make_unique<Job>(
          Command{DDPRUN_GLOO_WORKER, "end", how, std::to_string(rank), limit, GetParam().backend},
          setup));
    }
    begun_ = std::chrono::steady_clock::now();
  }

  // All but `ending` fail and say so.
  void expect_others_say(int ending, const testing::Matcher<std::string>& said) {
    for (int rank = 0; rank < kWorld; ++rank) {
      if (rank == ending) continue;
      Job& job = *ranks_[static_cast<std::size_t>(rank)];
      EXPECT_EQ(job.wait(), exited(1)) << job.err();
      EXPECT_THAT(job.err(), said) << "rank " << rank;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begun_, 25s) << "not after the time limit";
  }
  static Host host() { return GetParam().host; }
  static bool is_shm() { return std::string(GetParam().backend) == "shm"; }
  // Who shares memory sees a process end; a connection only breaks.
  static testing::Matcher<std::string> says_it_is_gone(int rank) {
    const std::string name = "rank " + std::to_string(rank);
    if (!is_shm()) return HasSubstr(name + " gave no sign of life within 1 s");
    return testing::ContainsRegex(name + " \\(process [0-9]+\\) has died");
  }
  Job& rank(int number) { return *ranks_[static_cast<std::size_t>(number)]; }

 private:
  rdzv::Listener port_ = rdzv::reserve_port({}).value();
  std::unique_ptr<rdzv::testing::StoreProcess> store_;
  std::vector<std::unique_ptr<Job>> ranks_;
  std::chrono::steady_clock::time_point begun_;
};

// Each host of the store and each backend; all pairs of them with DDPRUN_TEST_FULL=1.
std::vector<Setting> settings() {
  std::vector<Setting> some{{Host::kRankZero, "gloo"}, {Host::kAgent, "shm"}};
  if (full_tests()) some.insert(some.end(), {{Host::kAgent, "gloo"}, {Host::kRankZero, "shm"}});
  return some;
}
INSTANTIATE_TEST_SUITE_P(StoreServedBy, Endings, testing::ValuesIn(settings()),
                         [](const auto& tested) {
                           return std::string(tested.param.host == Host::kAgent ? "TheAgent"
                                                                                : "RankZero") +
                                  "Over_" + tested.param.backend;
                         });

TEST_P(Endings, AKilledRankIsNamed) {
  start("killed", 1);
  EXPECT_EQ(rank(1).wait(), killed_by(SIGKILL));
  expect_others_say(1, says_it_is_gone(1));
}

TEST_P(Endings, ARankThatExitsOnItsOwnIsNamed) {
  start("exits", 2);
  EXPECT_EQ(rank(2).wait(), exited(3));
  expect_others_say(2, says_it_is_gone(2));
}

TEST_P(Endings, TheFirstRankIsNamedToo) {
  start("killed", 0);
  expect_others_say(
      0, host() == Host::kAgent ? says_it_is_gone(0) : HasSubstr("rank 0, at 127.0.0.1:"));
}

TEST_P(Endings, ARankThatThrowsIsQuoted) {
  for (const int thrower : {0, 1}) {
    SCOPED_TRACE(thrower);
    start("throws", thrower);
    EXPECT_EQ(rank(thrower).wait(), exited(1));
    EXPECT_THAT(rank(thrower).err(), HasSubstr("thrown on purpose"));
    expect_others_say(thrower,
                      HasSubstr("rank " + std::to_string(thrower) + " failed: thrown on purpose"));
  }
}

TEST_P(Endings, ARankThatReturnsEarlyIsNamed) {
  start("returns", 1);
  EXPECT_EQ(rank(1).wait(), exited(0)) << rank(1).err();
  expect_others_say(1, HasSubstr("rank 1 had left in good order"));
}

TEST_P(Endings, AStoppedRankIsNamedAfterTheTimeLimit) {
  start("stopped", 1, /*limit=*/"1500");
  expect_others_say(1, HasSubstr("rank 1 gave no sign of life within 1 s"));
}

TEST_P(Endings, ARankThatIsKilledWhileTheOthersAreInBackwardIsNamed) {
  start("backward", 1);
  expect_others_say(1, says_it_is_gone(1));
}

// Gloo ends one of the processes by SIGABRT; which one is the network's choice. Over shared memory
// all compare their calls.
TEST_P(Endings, TensorsOfDifferentSizesAreSaidToBe) {
  start("sizes", 1);
  bool is_said = false;
  for (int number = 0; number < kWorld; ++number) {
    EXPECT_THAT(rank(number).wait(), AnyOf(exited(1), killed_by(SIGABRT))) << rank(number).err();
    is_said = is_said || rank(number).err().find("expected size") != std::string::npos;
    if (!is_shm()) continue;
    EXPECT_THAT(rank(number).err(),
                testing::ContainsRegex("rank 0 makes all_reduce SUM of 3 float32 .*, rank 1 makes "
                                       "all_reduce SUM of 100000 float32"));
  }
  EXPECT_TRUE(is_said || is_shm()) << rank(0).err() << rank(1).err() << rank(2).err();
}

}  // namespace
}  // namespace ddprun::test
