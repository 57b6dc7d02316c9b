// --attach-debugger: the given ranks wait before their first instruction, and nothing else in the
// job changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <string>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kGdb = "/usr/bin/gdb";
constexpr const char* kGdbserver = "/usr/bin/gdbserver";

// The line that ddprun printed for gdb, as a user would paste it, and what the user types then.
Command pasted(const Job& job, const std::string& beginning) {
  std::istringstream lines(job.err());
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  " + beginning)) continue;
    return {"sh", "-c",
            line +
                " -nx -q -batch -iex 'set debuginfod enabled off' -ex backtrace"
                " -ex 'break main' -ex continue -ex backtrace -ex delete -ex detach"};
  }
  return {"false"};
}

// Of rank 1, once it is stopped and the user was told; 0 if that never happens.
pid_t waiting_pid(Job& job, pid_t before = 0) {
  pid_t found = 0;
  job.reaches([&] {
    const auto workers = job.workers();
    const auto rank_1 = workers.find(1);
    if (rank_1 == workers.end() || rank_1->second == before) return false;
    const auto info = process(rank_1->second);
    if (!info || info->state != 'T') return false;
    if (job.err().find("kill -CONT " + std::to_string(info->pid) + "\n") == std::string::npos) {
      return false;
    }
    found = info->pid;
    return true;
  });
  return found;
}

class AttachDebugger : public ::testing::Test {
 protected:
  Command job_of_two(const std::vector<std::string>& more = {},
                     const Command& program = worker({"print", "here {rank}"})) {
    std::vector<std::string> options{"--nproc-per-node=2", "--attach-debugger=1"};
    options.insert(options.end(), more.begin(), more.end());
    return ddprun(options, program);
  }
  bool has_stamp(int rank, int round = 0) const {
    return stamps(folder_.path(), round).contains(rank);
  }

  const TemporaryTree folder_;
  const Command stamping_ = worker({"stamp", folder_.path()});
};

TEST_F(AttachDebugger, RunsNothingOfTheWorkerUntilItIsContinued) {
  Job job(job_of_two({}, stamping_));
  const pid_t pid = waiting_pid(job);
  ASSERT_NE(pid, 0) << job.err();
  EXPECT_TRUE(job.reaches([&] { return has_stamp(0); }));
  EXPECT_FALSE(has_stamp(1));
  ASSERT_EQ(::kill(pid, SIGCONT), 0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_TRUE(has_stamp(1));
}

// And goes on by itself when gdb has let go of it.
TEST_F(AttachDebugger, StopsAtMainUnderTheCommandThatIsPrinted) {
  if (::access(kGdb, X_OK) != 0) GTEST_SKIP() << "no gdb";
  Job job(job_of_two({}, stamping_));
  const pid_t pid = waiting_pid(job);
  ASSERT_NE(pid, 0) << job.err();
  Job debugger(pasted(job, "gdb -p " + std::to_string(pid)));
  EXPECT_EQ(debugger.wait(), exited(0)) << debugger.err();
  EXPECT_THAT(debugger.out(), HasSubstr("_start"));
  EXPECT_THAT(debugger.out(), HasSubstr("Breakpoint 1, "));
  EXPECT_THAT(debugger.out(), HasSubstr("main ("));
  EXPECT_EQ(job.wait(), exited(0)) << job.err() << debugger.out();
  EXPECT_TRUE(has_stamp(1));
}

TEST_F(AttachDebugger, PrintsACommandForAnotherMachineThatNeedsNoPort) {
  if (::access(kGdb, X_OK) != 0 || ::access(kGdbserver, X_OK) != 0) GTEST_SKIP() << "no gdbserver";
  Job job(job_of_two({}, stamping_));
  ASSERT_NE(waiting_pid(job), 0) << job.err();
  // The other machine is this one: what ssh would do there is done here.
  write_file(folder_ / "ssh", "#!/bin/sh\nshift\nexec \"$@\"\n", 0755);
  Job debugger(pasted(job, "gdb -ex 'target remote | ssh "),
               {.environment = {{"PATH", folder_.path() + ":/usr/bin:/bin"}}});
  EXPECT_EQ(debugger.wait(), exited(0)) << debugger.err();
  EXPECT_THAT(debugger.out(), HasSubstr("Breakpoint 1, "));
  EXPECT_EQ(job.wait(), exited(0)) << job.err() << debugger.out();
  EXPECT_TRUE(has_stamp(1));
}

TEST_F(AttachDebugger, EndsAtOnceWithTheJob) {
  Job job(job_of_two({}, worker({"wait"})));
  ASSERT_NE(waiting_pid(job), 0) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(seconds(10)), exited(130)) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("SIGKILL")));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(AttachDebugger, WaitsAgainAfterARestart) {
  Job job(job_of_two({"--max-restarts=1"}, worker({"stamp", folder_.path(), "until", folder_ / "go",
                                                   "on-round", "0", "exit", "3"})));
  const pid_t first = waiting_pid(job);
  ASSERT_NE(first, 0) << job.err();
  write_file(folder_ / "go", "");
  const pid_t second = waiting_pid(job, first);
  ASSERT_NE(second, 0) << job.err();
  EXPECT_FALSE(has_stamp(1, 0));
  ASSERT_EQ(::kill(second, SIGCONT), 0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_TRUE(has_stamp(1, 1));
}

// Ctrl-Z and fg: as if nothing had been.
TEST_F(AttachDebugger, StillWaitsWhenTheLauncherWasPausedAndContinued) {
  Job job(job_of_two({}, worker({"stamp", folder_.path(), "until", folder_ / "go"})));
  const pid_t pid = waiting_pid(job);
  ASSERT_NE(pid, 0) << job.err();
  ASSERT_TRUE(job.reaches([&] { return has_stamp(0); }));
  const pid_t other = stamps(folder_.path(), 0)[0].pid;
  job.signal(SIGTSTP);
  ASSERT_TRUE(eventually([&] { return process(job.pid())->state == 'T'; }));
  job.signal(SIGCONT);
  ASSERT_TRUE(eventually([&] { return process(other)->state != 'T'; }));
  EXPECT_EQ(process(pid)->state, 'T');
  EXPECT_FALSE(has_stamp(1));

  ASSERT_EQ(::kill(pid, SIGCONT), 0);
  ASSERT_TRUE(job.reaches([&] { return has_stamp(1); }));
  job.signal(SIGTSTP);  // now it is a worker like any other
  ASSERT_TRUE(
      eventually([&] { return process(pid)->state == 'T' && process(job.pid())->state == 'T'; }));
  job.signal(SIGCONT);
  write_file(folder_ / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST_F(AttachDebugger, RefusesARankThatThereIsNot) {
  Job job(ddprun({"--nproc-per-node=2", "--attach-debugger=2"}, stamping_));
  EXPECT_EQ(job.wait(), exited(2));
  EXPECT_THAT(job.err(), HasSubstr("there is no rank 2 among 2 workers"));
  EXPECT_FALSE(has_stamp(0));
}

}  // namespace
}  // namespace ddprun::test
