// Ranks whose calls do not notice that another one is gone, as over NCCL: the agent tells them, and they say
// who it was within a second, whether it was killed or threw, here or on another node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr auto kNamedWithin = 1s;
// The workers ignore SIGTERM, and are to end by themselves.
constexpr const char* kNoHurry = "--failure-shutdown-timeout=30";

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

class HangingCalls : public ::testing::TestWithParam<const char*> {};

// Signals the last of three ranks, and returns how long the others take to say `what`.
milliseconds until_said(Job& job, int signal, const std::string& what) {
  EXPECT_TRUE(job.reaches([&] { return count(job.err(), " waits\n") == 3; })) << job.err();
  const auto begun = std::chrono::steady_clock::now();
  kill(job.workers().at(2), signal);
  EXPECT_TRUE(job.reaches([&] { return count(job.err(), what) >= 2; })) << job.err();
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begun);
}

Command hanging(const std::string& how) {
  return ddprun({"--nproc-per-node=3", kNoHurry}, {DDPRUN_HANGING_WORKER, how});
}

TEST_P(HangingCalls, EndWhenARankIsKilledAndNameIt) {
  Job job(hanging(GetParam()));
  EXPECT_LE(until_said(job, SIGKILL, "rank 2 died, as the launcher says"), kNamedWithin);
  EXPECT_EQ(job.wait(), exited(128 + SIGKILL)) << job.err();
  for (const char* rank : {"0", "1"}) {
    const std::string name = std::string("rank ") + rank;
    EXPECT_THAT(job.err(), ContainsRegex("hanging_worker: " + name + ": .*failed on " + name +
                                         ",? after .*: rank 2 died, as the launcher says"));
  }
  EXPECT_THAT(job.err(), Not(HasSubstr("goes on")));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_P(HangingCalls, EndWhenARankThrowsAndQuoteIt) {
  Job job(hanging(GetParam()));
  EXPECT_LE(until_said(job, SIGUSR1, "rank 2 failed: thrown on purpose"), kNamedWithin);
  EXPECT_EQ(job.wait(), exited(1)) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("goes on")));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Of, HangingCalls, ::testing::Values("throws", "backward", "quiet"));

TEST(HangingCalls, OfASmallerGroupEndToo) {
  Job job(hanging("smaller"));
  EXPECT_LE(until_said(job, SIGKILL, "rank 2 died, as the launcher says"), kNamedWithin);
  EXPECT_EQ(job.wait(), exited(128 + SIGKILL)) << job.err();
}

TEST(HangingCalls, AreNotEndedByARankThatHasLeftInGoodOrder) {
  Job job(hanging("returns"));
  ASSERT_TRUE(job.reaches([&] { return count(job.err(), " waits\n") == 3; })) << job.err();
  kill(job.workers().at(2), SIGUSR1);
  ASSERT_TRUE(job.reaches([&] { return job.workers().size() == 2; })) << job.err();
  kill(job.workers().at(0), SIGKILL);
  EXPECT_EQ(job.wait(), exited(128 + SIGKILL)) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("failed on rank 1 .*: rank 0 died, as the launcher says"));
}

TEST(HangingCalls, EndOnOtherNodesToo) {
  Cluster cluster({.meeting = Meeting::kStatic,
                   .nnodes = "3",
                   .options = {kNoHurry},
                   .program = {DDPRUN_HANGING_WORKER, "throws"}});
  cluster.start_all(3);
  ASSERT_TRUE(eventually([&] { return count(cluster.told(), " waits\n") == 3; })) << cluster.told();
  const auto begun = std::chrono::steady_clock::now();
  kill(cluster[2].workers().at(2), SIGKILL);
  EXPECT_TRUE(eventually([&] {
    return count(cluster.told(), "rank 2 died, as the launcher") >= 2;
  })) << cluster.told();
  EXPECT_LE(std::chrono::steady_clock::now() - begun, kNamedWithin);
  EXPECT_THAT(cluster.wait(), Each(Pair(::testing::_, exited(128 + SIGKILL)))) << cluster.told();
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

}  // namespace
}  // namespace ddprun::test
