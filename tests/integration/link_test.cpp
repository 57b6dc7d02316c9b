// The worker link between real processes: which processes have one, which must not, and which
// workers learn of a preemption.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

bool both_there(const TemporaryTree& folder) {
  return std::filesystem::exists(folder / "0") && std::filesystem::exists(folder / "1");
}

Command joined(Command first, const Command& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(Link, EveryWorkerHasItsOwnAndItsChildrenHaveNone) {
  Job job(ddprun({"--nproc-per-node=3"}, worker({"link", "as-fork", "no-link"})));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  Job child(ddprun({"--nproc-per-node=3"}, worker({"as-fork", "no-link"})));
  EXPECT_EQ(child.wait(), exited(0)) << child.err();
}

TEST(Link, AProgramThatTheWorkerStartsHasNone) {
  Command starts_one{"/bin/sh", "-c", "\"$0\" \"$@\"; exit $?"};
  Job job(ddprun({}, joined(starts_one, worker({"no-link"}))));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  Command becomes_one{"/bin/sh", "-c", "exec \"$0\" \"$@\""};
  Job wrapped(ddprun({}, joined(becomes_one, worker({"link"}))));
  EXPECT_EQ(wrapped.wait(), exited(0)) << "a wrapper that execs: " << wrapped.err();
}

TEST(Link, IsGoneAfterAnExecOfAWorkerThatHasOpenedIt) {
  const TemporaryTree folder;
  Job job(ddprun({"--preempt-signal=USR1"},
                 worker({"link", "take-leave", "become", "no-link", "end-well-on", "10", "touch",
                         folder / "0", "wait"})));
  ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(folder / "0"); })) << job.err();
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait(), exited(113)) << "it gets the signal again: " << job.err();
}

TEST(Link, OfANestedLaunchersWorkersIsTheInnerOnes) {
  Job job(ddprun({"--nproc-per-node=2"}, ddprun({"--nproc-per-node=2"}, worker({"link"}))));
  EXPECT_EQ(job.wait(), exited(0)) << "each ddprun gives its own workers a link: " << job.err();
}

TEST(Link, OneOfALauncherInBetweenIsNotTaken) {
  // As a launcher that knows nothing of links would: descriptors closed, variables inherited, and
  // the numbers used for something else.
  Command between{"/bin/bash", "-c",
                  "eval \"exec $DDPRUN_LINK_FD</dev/null $DDPRUN_LINK_PAGE_FD</etc/passwd\"; "
                  "exec \"$0\" \"$@\""};
  Job job(ddprun({}, joined(between, worker({"no-link"}))));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST(Link, APreemptionComesOverItToWorkersThatTakeItAndAsASignalToOthers) {
  const TemporaryTree folder;
  // Rank 0 would die by the signal, rank 1 only ends by it; it has opened its link, and does not
  // take requests.
  Job job(ddprun({"--nproc-per-node=2", "--preempt-signal=USR1"},
                 worker({"link",  //
                         "on-rank",
                         "0",
                         "take-leave",
                         "on-rank",
                         "1",
                         "end-well-on",
                         "10",  //
                         "touch",
                         folder / "{rank}",  //
                         "on-rank",
                         "0",
                         "until-told",
                         "on-rank",
                         "0",
                         "touch",
                         folder / "told",
                         "on-rank",
                         "0",
                         "exit",
                         "0",
                         "wait"})));
  ASSERT_TRUE(job.reaches([&] { return both_there(folder); })) << job.err();
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait(), exited(113)) << job.err();
  EXPECT_TRUE(std::filesystem::exists(folder / "told"));
  EXPECT_THAT(job.err(), Not(HasSubstr("rank 0 (pid"))) << "it ended with 0";
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST(Link, APreemptionReachesTheWorkersOfANestedLauncher) {
  const TemporaryTree folder;
  Job job(ddprun({"--preempt-signal=USR1"},
                 ddprun({"--preempt-signal=USR1", "--nproc-per-node=2"},
                        worker({"link", "take-leave", "touch", folder / "{rank}", "until-told",
                                "touch", folder / "told{rank}"}))));
  ASSERT_TRUE(job.reaches([&] { return both_there(folder); })) << job.err();
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait(), exited(113)) << job.err();
  EXPECT_TRUE(std::filesystem::exists(folder / "told0"));
  EXPECT_TRUE(std::filesystem::exists(folder / "told1"));
}

TEST(Link, AWorkerWhoseLinkIsClosedGetsTheSignal) {
  const TemporaryTree folder;
  Job job(ddprun(
      {"--nproc-per-node=2", "--preempt-signal=USR1"},
      worker({"end-well-on", "10", "link-garbage", "5", "touch", folder / "{rank}", "wait"})));
  ASSERT_TRUE(job.reaches([&] { return both_there(folder); })) << job.err();
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait(), exited(113)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("rank 0 sent 5 bytes over its link"));
  EXPECT_THAT(job.err(), HasSubstr("rank 1 sent 5 bytes over its link"));
}

TEST(Link, TheReportAndTheEventsTellHowFarTheFailedWorkerCame) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--events=" + (folder / "events")},
                 worker({"link", "progress", "412/1000", "on-rank", "1", "saving",  //
                         "on-rank", "1", "exit", "3", "wait"})));
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_THAT(job.err(),
              ContainsRegex("progress +step 412 of 1000, [0-9.]+ m?s before; saving for "));
  EXPECT_THAT(
      read_file(folder / "events"),
      HasSubstr(
          R"("progress":{"step":412,"total_steps":1000,"step_kind":"program","since_step_us":)"));
}

TEST(Link, ANanIsAnEventAndIsNamedWhenTheJobFails) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--events=" + (folder / "events")},
                 worker({"link", "progress", "119,loss=0.5", "progress", "120,loss=nan", "on-rank",
                         "1", "exit", "3", "wait"})));
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_THAT(job.err(),
              ContainsRegex("\n  nan         rank [01] reported loss = nan at step 120\n"));
  EXPECT_THAT(read_file(folder / "events"),
              ContainsRegex(R"("event":"nan",.*"step":120,"name":"loss","value":"nan")"));
}

TEST(Link, ANanStopsAJobOfTwoNodesWithoutARestart) {
  Cluster cluster({.options = {"--on-nan=stop", "--max-restarts=3"},
                   .actions = {"link", "on-rank", "1", "progress", "120,loss=nan", "wait"}});
  cluster.start_all(2);
  for (const auto& [node, ended] : cluster.wait()) {
    EXPECT_EQ(ended, exited(116)) << "node " << node << ": " << cluster.told();
    EXPECT_THAT(cluster[node].err(),
                HasSubstr("FAILED: rank 1 reported loss = nan at step 120; --on-nan=stop\n"));
  }
  EXPECT_EQ(cluster.last_round(), 0);
}

TEST(Link, AWorkerKilledInTheMiddleOfANoteHasTheOneBefore) {
  const TemporaryTree folder;
  Job job(ddprun({}, worker({"link", "progress", "1", "touch", folder / "0", "progress-forever"})));
  ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(folder / "0"); })) << job.err();
  kill(job.workers().at(0), SIGKILL);
  EXPECT_EQ(job.wait(), exited(128 + SIGKILL)) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("progress +step [0-9]+, [0-9]+ ms before"));
}

TEST(Link, AWorkerThatDoesNotUseItIsNotMentioned) {
  Job job(ddprun({}, worker({"exit", "3"})));
  EXPECT_EQ(job.wait(), exited(3));
  EXPECT_THAT(job.err(), Not(HasSubstr("progress")));
  EXPECT_THAT(job.err(), Not(HasSubstr("over its link")));
}

}  // namespace
}  // namespace ddprun::test
