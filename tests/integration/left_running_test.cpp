// What the workers of a successful job leave running on purpose lives on and is named; what stays in their process
// groups, and whatever a job leaves that does not succeed, is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kLivesOn = "lives on (--kill-orphans ends it): ";

class LeftRunning : public ::testing::TestWithParam<bool> {
 protected:
  void TearDown() override {
    for (const char* const name : {"0", "1"}) {
      if (const pid_t pid = pid_in(name); pid > 0) ::kill(pid, SIGKILL);
    }
  }

  // A program that leaves a process behind, in its process group or in a session of its own, and then does the rest. The
  // process's number is in a file named as the rank.
  Command leaving(const std::string& rest) const {
    return script("sleep 1000 & " + left_is("$!") + "; " + until_it_sleeps() + rest);
  }
  Command leaving_session(const std::string& rest) const {
    return script("setsid sh -c '" + left_is("$$") + "; exec sleep 1000' & " + until_it_sleeps() +
                  rest);
  }
  // A file, because ddprun makes one $ of two in arguments.
  Command script(const std::string& text) const {
    write_file(folder_ / "program", text);
    return {"/bin/sh", folder_ / "program"};
  }
  std::string until_it_sleeps() const {
    return until_it_sleeps_as("$(cat " + folder_ / "$RANK" + ")");
  }
  static std::string until_it_sleeps_as(const std::string& pid) {
    return "until [ \"$(cat /proc/" + pid + "/comm)\" = sleep ]; do sleep 0.01; done 2>/dev/null; ";
  }
  std::string left_is(const std::string& pid) const {
    return "echo " + pid + " > " + folder_ / "new.$RANK" + "; mv " + folder_ / "new.$RANK" + " " +
           folder_ / "$RANK";
  }
  pid_t pid_in(const std::string& name) const {
    return std::atoi(read_file(folder_ / name).c_str());
  }
  static bool lives(pid_t pid) {
    const auto info = process(pid);
    return pid > 0 && info && info->state != 'Z';
  }
  static bool ends(pid_t pid) {
    return pid > 0 && eventually([pid] { return !lives(pid); });
  }
  // As ddprun names the process.
  std::string named(const std::string& name, const std::string& command) const {
    return std::to_string(pid_in(name)) + " (" + command + ")";
  }

  // Where the parameter is false without control groups, if that can be set up.
  Ended run(const std::vector<std::string>& options, const Command& program, JobSetup setup = {}) {
    Command command = ddprun(options, program);
    if (!GetParam()) command = without_control_groups(command);
    Job job(command, std::move(setup));
    const Ended ended = job.wait();
    err_ = job.err();
    // Before ~Job, which kills all that is left.
    lived_ = lives(pid_in("0"));
    return ended;
  }
  bool has_no_such_thing(const Ended& ended) const {
    return !GetParam() && (ended == exited(1) || ended == exited(99));
  }

  const TemporaryTree folder_;
  std::string err_;
  bool lived_ = false;
};

INSTANTIATE_TEST_SUITE_P(, LeftRunning, ::testing::Values(true, false), [](const auto& which) {
  return which.param ? "InAControlGroup" : "WithoutOne";
});

TEST_P(LeftRunning, ASessionOfItsOwnOutlivesASuccessfulJobAndIsNamed) {
  const Ended ended = run({}, leaving_session("exit 0"));
  if (has_no_such_thing(ended)) GTEST_SKIP() << err_;
  EXPECT_EQ(ended, exited(0)) << err_;
  EXPECT_TRUE(lived_) << err_;
  EXPECT_THAT(err_, HasSubstr(kLivesOn + named("0", "sleep 1000") + "\n"));
  EXPECT_EQ(count_of("\n", err_), 1U) << err_;
}

// ddprun does not wait for the end of a pipe that such a process holds.
TEST_P(LeftRunning, TheOutputOfWhatLivesOnIsNotAwaited) {
  const Ended ended =
      run({"--tee=3", "--log-dir=" + folder_ / "logs"}, leaving_session("echo done"));
  if (has_no_such_thing(ended)) GTEST_SKIP() << err_;
  EXPECT_EQ(ended, exited(0)) << err_;
  EXPECT_TRUE(lived_) << err_;
}

TEST_P(LeftRunning, KillOrphansEndsItAlsoAfterSuccess) {
  for (const bool is_option : {true, false}) {
    std::filesystem::remove(folder_ / "0");
    JobSetup setup{.environment = {{"DDPRUN_LOG_LEVEL", "INFO"}}};
    if (!is_option) setup.environment["DDPRUN_KILL_ORPHANS"] = "1";
    const Ended ended =
        run(is_option ? std::vector<std::string>{"--kill-orphans"} : std::vector<std::string>{},
            leaving_session("exit 0"), setup);
    if (has_no_such_thing(ended)) GTEST_SKIP() << err_;
    EXPECT_EQ(ended, exited(0)) << err_;
    EXPECT_TRUE(ends(pid_in("0"))) << err_;
    EXPECT_THAT(err_, HasSubstr("is killed: " + named("0", "sleep 1000")));
  }
}

TEST_P(LeftRunning, AfterAFailureItIsKilledAndNamedAtInfoLevel) {
  for (const char* const level : {"WARNING", "INFO"}) {
    std::filesystem::remove(folder_ / "0");
    const Ended ended =
        run({}, leaving_session("exit 3"), {.environment = {{"DDPRUN_LOG_LEVEL", level}}});
    if (has_no_such_thing(ended)) GTEST_SKIP() << err_;
    EXPECT_EQ(ended, exited(3)) << err_;
    EXPECT_TRUE(ends(pid_in("0"))) << err_;
    const std::string words = "is killed: " + named("0", "sleep 1000");
    if (std::string(level) == "INFO") {
      EXPECT_THAT(err_, HasSubstr(words));
    } else {
      EXPECT_THAT(err_, Not(HasSubstr(words)));
    }
  }
}

TEST_P(LeftRunning, WhatStaysInAProcessGroupIsKilledWithALine) {
  const Ended ended = run({}, leaving("exit 0"));
  if (has_no_such_thing(ended)) GTEST_SKIP() << err_;
  EXPECT_EQ(ended, exited(0)) << err_;
  EXPECT_TRUE(ends(pid_in("0"))) << err_;
  EXPECT_THAT(err_,
              HasSubstr("rank 0 has succeeded, and what it left in its process group is killed"));
  EXPECT_THAT(err_, HasSubstr(": " + named("0", "sleep 1000") + "\n"));
  EXPECT_THAT(err_, Not(HasSubstr(kLivesOn)));
}

// Rank 0 ends with 0 because it is told to stop: its group is not waited for, and it has not succeeded.
TEST_P(LeftRunning, AWorkerThatIsStoppedLeavesNothing) {
  const Ended ended =
      run({"--nproc-per-node=2"},
          script("if [ $RANK = 1 ]; then until [ -e " + folder_ / "0" +
                 " ]; do sleep 0.01; done; exit 3; fi; trap 'exit 0' TERM; (trap '' TERM; exec "
                 "sleep 1000) & " +
                 until_it_sleeps_as("$!") + left_is("$!") + "; while :; do sleep 0.01; done"));
  if (has_no_such_thing(ended)) GTEST_SKIP() << err_;
  EXPECT_EQ(ended, exited(3)) << err_;
  EXPECT_TRUE(ends(pid_in("0"))) << err_;
  EXPECT_THAT(err_, Not(HasSubstr("has succeeded")));
}

// Rank 0's part is done when rank 1, on another node, fails: the job has not succeeded yet.
TEST(LeftRunningOnNodes, NothingOutlivesARoundOfWhichAnotherNodeFails) {
  const TemporaryTree folder;
  const auto pid_in = [&](const char* name) { return std::atoi(read_file(folder / name).c_str()); };
  // Rank 1 goes on when the other agent has reaped rank 0.
  const std::string program = "cd " + folder.path() + R"--(
    round=$TORCHELASTIC_RESTART_COUNT
    if [ $RANK = 0 ]; then
      setsid sh -c 'echo $$ > new; mv new left.$0; exec sleep 1000' $round &
      until [ "$(cat /proc/$(cat left.$round)/comm)" = sleep ]; do sleep 0.01; done 2>/dev/null
      echo $$ > worker.$round
      exit 0
    fi
    while ! [ -s worker.$round ] || kill -0 $(cat worker.$round) 2>/dev/null; do sleep 0.01; done
    if [ $round = 0 ]; then
      kill -0 $(cat left.0) && touch lived
      exit 3
    fi)--";
  write_file(folder / "program", program);
  Cluster cluster({.meeting = Meeting::kStatic,
                   .options = {"--max-restarts=1"},
                   .program = {"/bin/sh", folder / "program"}});
  cluster.start_all(2);
  for (const auto& [node, ended] : cluster.wait()) EXPECT_EQ(ended, exited(0)) << cluster.told();
  EXPECT_TRUE(std::filesystem::exists(folder / "lived")) << "killed before the job's end was known";
  const auto lives = [](pid_t pid) {
    const auto info = process(pid);
    return pid > 0 && info && info->state != 'Z';
  };
  EXPECT_FALSE(lives(pid_in("left.0"))) << cluster.told();
  EXPECT_TRUE(lives(pid_in("left.1"))) << cluster.told();
  EXPECT_THAT(cluster.told(),
              HasSubstr(kLivesOn + std::to_string(pid_in("left.1")) + " (sleep 1000)"));
  if (pid_in("left.1") > 0) ::kill(pid_in("left.1"), SIGKILL);
}

}  // namespace
}  // namespace ddprun::test
