// One worker fails: the whole group starts again, in a fresh round, until the budget is spent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

bool all_started(Job& job, const TemporaryTree& folder, int round, std::size_t workers) {
  return job.reaches([&] { return stamps(folder.path(), round).size() == workers; });
}

TEST(Restart, AKilledWorkerRestartsTheWholeGroup) {
  for (int victim = 0; victim < 3; ++victim) {
    SCOPED_TRACE("victim " + std::to_string(victim));
    const TemporaryTree folder;
    Job job(ddprun({"--nproc-per-node=3", "--max-restarts=1"},
                   worker({"environment", folder / "environment.{round}.{rank}",  //
                           "stamp", folder.path(), "wait"})));
    ASSERT_TRUE(all_started(job, folder, 0, 3)) << job.err();
    const auto before = stamps(folder.path(), 0);
    ASSERT_EQ(kill(before.at(victim).pid, SIGKILL), 0);
    ASSERT_TRUE(all_started(job, folder, 1, 3)) << job.err();

    for (const auto& [rank, stamp] : before) {
      EXPECT_EQ(process(stamp.pid), std::nullopt) << "rank " << rank << " of the old round";
      auto environment = environment_in(folder / ("environment.1." + std::to_string(rank)));
      EXPECT_EQ(environment["RANK"], std::to_string(rank));
      EXPECT_EQ(environment["WORLD_SIZE"], "3");
      EXPECT_EQ(environment["TORCHELASTIC_RESTART_COUNT"], "1");
      EXPECT_EQ(environment["TORCHELASTIC_MAX_RESTARTS"], "1");
      EXPECT_TRUE(is_listening(std::stoi(environment.at("MASTER_PORT"))));
    }
    EXPECT_EQ(job.processes().size(), 3U + 1U) << "the workers and the keeper";
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
  }
}

// Steps of the first round, and less afterwards: a checkpoint that each time leads to the same step.
TEST(Restart, AJobWithoutProgressEndsWithItsOwnExitCode) {
  Job job(ddprun({"--nproc-per-node=2", "--max-restarts=2", "--no-progress-restarts=2"},
                 worker({"link", "on-round", "0", "progress", "400", "on-round", "1", "progress",
                         "390", "on-round", "2", "progress", "400", "exit", "3"})));
  EXPECT_EQ(job.wait(), exited(116)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("restart 2 of 2"));
  EXPECT_THAT(job.err(), Not(HasSubstr("restart 3 of 2")));
  EXPECT_THAT(job.err(),
              HasSubstr("no rank that failed had come past step 400, in spite of 2 restarts "
                        "(--no-progress-restarts)"));
}

TEST(Restart, StepsThatGoOnAreProgressAndUnknownOnesSayNothing) {
  Job job(ddprun({"--max-restarts=3", "--no-progress-restarts=1"},
                 worker({"link", "on-round", "0", "progress", "400", "on-round", "1", "progress",
                         "401", "on-round", "2", "progress", "402", "on-round", "3", "progress",
                         "403", "exit", "3"})));
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("restart 3 of 3"));
  Job silent(ddprun({"--max-restarts=3", "--no-progress-restarts=1"}, worker({"exit", "3"})));
  EXPECT_EQ(silent.wait(), exited(3)) << silent.err();
  EXPECT_THAT(silent.err(), HasSubstr("restart 3 of 3"));
}

TEST(Restart, ABudgetOfATimeEndsAJobThatFailsTooOftenWithinIt) {
  Job job(ddprun({"--max-restarts=2/1h"}, worker({"exit", "3"})));
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("restart 2 of 2"));
  Job slow(ddprun({"--max-restarts=1/1s", "--dry-run"}, worker({"exit", "3"})));
  EXPECT_EQ(slow.wait(), exited(0)) << slow.err();
  EXPECT_THAT(slow.out(), HasSubstr("1 within 1 s"));
  for (const std::string text : {"3/", "/1h", "3/0", "3/1h/2", "x", "-1", "3/0.5"}) {
    Job wrong(ddprun({"--max-restarts=" + text}, worker({"exit", "0"})));
    EXPECT_EQ(wrong.wait(), exited(2)) << text;
    EXPECT_THAT(wrong.err(), HasSubstr("--max-restarts=" + text + ": give a whole number"));
  }
}

// Each round lives for longer than the window.
TEST(Restart, RestartsOfBeforeTheWindowDoNotCount) {
  const TemporaryTree folder;
  Job job(ddprun({"--max-restarts=1/1s"},
                 worker({"stamp", folder.path(), "until", folder / "go.{round}", "exit", "3"})));
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(all_started(job, folder, round, 1)) << job.err();
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(job.reaches([&] {
      return std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(1100);
    }));
    write_file(folder / ("go." + std::to_string(round)), "");
  }
  ASSERT_TRUE(all_started(job, folder, 3, 1)) << job.err();
  write_file(folder / "go.3", "");  // at once
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_EQ(count_of("restart 1 of 1", job.err()), 3U) << job.err();
}

TEST(Restart, TheStoreOfTheOldRoundIsGone) {
  const TemporaryTree folder;
  Job job(ddprun({"--max-restarts=1"},
                 worker({"environment", folder / "environment.{round}", "stamp", folder.path(),  //
                         "on-round", "0", "until", folder / "go", "on-round", "0", "exit", "1",  //
                         "wait"})));
  ASSERT_TRUE(all_started(job, folder, 0, 1)) << job.err();
  const auto port_of = [&](const std::string& round) {
    return std::stoi(environment_in(folder / ("environment." + round)).at("MASTER_PORT"));
  };
  EXPECT_TRUE(is_listening(port_of("0")));
  write_file(folder / "go", "");
  ASSERT_TRUE(all_started(job, folder, 1, 1)) << job.err();
  EXPECT_TRUE(is_listening(port_of("1")));
  if (port_of("0") != port_of("1")) {
    EXPECT_FALSE(is_listening(port_of("0")));
  }
}

TEST(Restart, FinishedWorkersRunAgainToo) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--max-restarts=1"},
                 worker({"stamp", folder.path(), "on-rank", "0", "exit", "0",  //
                         "on-round", "0", "until", folder / "go", "on-round", "0", "exit", "1"})));
  ASSERT_TRUE(all_started(job, folder, 0, 2)) << job.err();
  ASSERT_TRUE(job.reaches([&] { return !process(stamps(folder.path(), 0).at(0).pid); }));
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(stamps(folder.path(), 1).size(), 2U);
}

TEST(Restart, EndsWithTheFirstCauseWhenTheBudgetIsSpent) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--max-restarts=2"},
                 worker({"stamp", folder.path(), "on-rank", "1", "exit", "5", "wait"})));
  EXPECT_EQ(job.wait(), exited(5));
  EXPECT_FALSE(stamps(folder.path(), 2).empty()) << "two restarts are three rounds";
  EXPECT_TRUE(stamps(folder.path(), 3).empty());
  EXPECT_THAT(job.err(), HasSubstr("rank 1"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST(Restart, DoesNotHappenUnlessAskedFor) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2"},
                 worker({"stamp", folder.path(), "on-rank", "0", "signal", "9", "wait"})));
  EXPECT_EQ(job.wait(), exited(137));
  EXPECT_TRUE(stamps(folder.path(), 1).empty());
}

TEST(Restart, AWorkerDeafToSigtermIsKilledAtTheDeadline) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=0.2"},
                 worker({"on-rank",  "0", "ignore",   "15", "stamp", folder.path(),  //
                         "on-rank",  "1", "on-round", "0",  "until", folder / "go",  //
                         "on-rank",  "1", "on-round", "0",  "exit",  "3",            //
                         "on-round", "1", "exit",     "0",  "wait"})));
  ASSERT_TRUE(all_started(job, folder, 0, 2)) << job.err();
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(seconds(10)), exited(0)) << job.err();
  EXPECT_EQ(stamps(folder.path(), 1).size(), 2U);
}

// It has nothing left to save together with the one that died; the usual 30 s are for a stop.
TEST(Restart, AWorkerThatDoesNotEndAfterTheFailureOfAnotherHasAShortGrace) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--max-restarts=1", "--log-dir=" + (folder / "logs"), "-r1",
                  "--events=" + (folder / "events")},
                 worker({"on-rank",  "0", "ignore",   "15", "stamp", folder.path(),  //
                         "on-rank",  "1", "on-round", "0",  "until", folder / "go",  //
                         "on-rank",  "1", "on-round", "0",  "exit",  "3",            //
                         "on-round", "1", "exit",     "0",  "wait"})));
  ASSERT_TRUE(all_started(job, folder, 0, 2)) << job.err();
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(seconds(20)), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("--failure-shutdown-timeout gives them longer"));
  EXPECT_THAT(job.err(), Not(HasSubstr("stacks"))) << "the next round waits for them";
  EXPECT_THAT(read_file(folder / "events"), HasSubstr("\"grace_us\":1000000"));
}

TEST(Restart, AWorkerThatIsStoppedDoesNotHoldItUp) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--max-restarts=1"},
                 worker({"stamp", folder.path(), "on-round", "1", "exit", "0",  //
                         "on-rank", "1", "until", folder / "go",                //
                         "on-rank", "1", "exit", "3", "wait"})));
  ASSERT_TRUE(all_started(job, folder, 0, 2)) << job.err();
  const pid_t stopped = stamps(folder.path(), 0).at(0).pid;
  ASSERT_EQ(kill(stopped, SIGSTOP), 0);
  ASSERT_TRUE(job.reaches([&] { return process(stopped)->state == 'T'; }));
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(seconds(10)), exited(0)) << job.err();
}

// The children of a failed worker must not live on beside the next round's.
TEST(Restart, TakesTheChildrenOfDeadWorkersAlong) {
  const TemporaryTree folder;
  Job job(ddprun(
      {"--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=0.2"},
      worker({"on-round", "0", "deaf-child", "on-round", "0", "child",  //
              "stamp", folder.path(), "on-rank", "1", "on-round", "0", "exit", "3", "wait"})));
  ASSERT_TRUE(all_started(job, folder, 1, 2)) << job.err();
  EXPECT_TRUE(eventually([&] { return job.processes().size() == 2 + 1; }))
      << job.processes().size() << " instead of two workers and the keeper";
}

TEST(Restart, TwoHundredInARowLeakNeitherDescriptorNorProcessNorPort) {
  const TemporaryTree folder;
  const int restarts = full_tests() ? 2000 : 200;
  const std::string last = std::to_string(restarts);
  Job job(
      ddprun({"--nproc-per-node=2", "--max-restarts=" + last, "--events=" + (folder / "events")},
             worker({"stamp", folder.path(),                                             //
                     "on-round", "5", "until", folder / "go", "on-round", last, "wait",  //
                     "on-rank", "1", "exit", "1", "wait"})));
  ASSERT_TRUE(all_started(job, folder, 5, 2)) << job.err();
  // They may run before the agent has closed what it opened to start them; then it says so.
  ASSERT_TRUE(job.reaches([&] {
    const std::string events = read_file(folder / "events");
    std::size_t rounds = 0;
    for (std::size_t at = 0; (at = events.find("\"round_started\"", at)) != std::string::npos;
         ++at) {
      ++rounds;
    }
    return rounds == 6;
  })) << job.err();
  const auto files_before = open_files_of(job.pid());
  const auto children_before = children_of(job.pid()).size();
  write_file(folder / "go", "");
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), restarts).size() == 2; },
                          seconds(full_tests() ? 300 : 60)))
      << job.err();
  EXPECT_TRUE(eventually([&] { return open_files_of(job.pid()).size() == files_before.size(); }))
      << ::testing::PrintToString(files_before) << "\nnow\n"
      << ::testing::PrintToString(open_files_of(job.pid()));
  EXPECT_EQ(children_of(job.pid()).size(), children_before);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(143));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

}  // namespace
}  // namespace ddprun::test
