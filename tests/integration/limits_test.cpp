// The agent under limits of the system, from far too low to just enough: it works, or it names the
// limit in a sentence and ends with 114. It never ends by a signal, and no process is left.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What a limit looks like to a sanitizer is its own affair.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

constexpr int kCannotRun = 114;

std::string both(const std::string& name, int value) {
  return "--" + name + "=" + std::to_string(value) + ":" + std::to_string(value);
}

// Ended with 0, or with 114 and this in what it says. True: with 0.
bool ran_or_said_why(Job& job, const std::string& sentence) {
  const Ended ended = job.wait();
  EXPECT_TRUE(ended == exited(0) || ended == exited(kCannotRun)) << ended << "\n" << job.err();
  if (ended != exited(0)) {
    EXPECT_THAT(job.err(), HasSubstr(sentence));
  }
  EXPECT_THAT(job.left_over(), IsEmpty());
  return ended == exited(0);
}

// Where the loader of the system cannot open the C library, ddprun has not begun.
bool was_loaded(Job& job) {
  return job.wait() != exited(127) ||
         job.err().find("error while loading shared libraries") == std::string::npos;
}

TEST(LimitOnOpenFiles, IsToldWhereverItIsMet) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer needs descriptors of its own";
  int runs = 0;
  int limit = 4;
  for (; limit <= 115; limit += full_tests() || limit < 30 ? 1 : 9) {
    SCOPED_TRACE(limit);
    Command command = ddprun({"--nproc-per-node=20"}, {"/bin/true"});
    command.insert(command.begin(), {"prlimit", both("nofile", limit)});
    Job job(command);
    if (!was_loaded(job)) continue;
    runs += ran_or_said_why(job, "Too many open files; the limit is " + std::to_string(limit) +
                                     " open files per process: raise it (ulimit -n)")
                ? 1
                : 0;
  }
  EXPECT_LT(runs, limit) << "no limit was met";
}

// A user of its own for each: what others run, and what nobody has reaped yet, counts too.
TEST(LimitOnProcesses, IsToldWhereverItIsMet) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer may have a thread of its own";
  if (::geteuid() != 0) GTEST_SKIP() << "only root can run as users that do not exist";
  bool has_run = false;
  const unsigned users = 1'000'000'000U + static_cast<unsigned>(::getpid()) * 64U;
  for (int limit = 1; limit <= 12; ++limit) {
    SCOPED_TRACE(limit);
    const TemporaryTree control;
    const unsigned user = users + static_cast<unsigned>(limit);
    ASSERT_EQ(::chown(control.path().c_str(), user, user), 0);
    const std::string id = std::to_string(user);
    Command command = ddprun({"--nproc-per-node=3"}, {"/bin/true"});
    command.insert(command.begin(), {"prlimit", both("nproc", limit), "setpriv", "--reuid=" + id,
                                     "--regid=" + id, "--clear-groups"});
    Job job(command, {.environment = {{"DDPRUN_CONTROL_DIR", control.path()}}, .directory = "/"});
    has_run = ran_or_said_why(job, "the limit is " + std::to_string(limit) +
                                       " processes and threads of this user: raise it (ulimit -u");
  }
  EXPECT_TRUE(has_run) << "three workers, the agent, its keeper and its threads";
}

// A round has run, and the next one finds that there are no descriptors: the agent meets the limit
// in its event loop.
TEST(LimitOnOpenFiles, IsToldWhenItIsMetByARestart) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer needs descriptors of its own";
  for (int limit = 3; limit <= 40; limit += full_tests() ? 1 : 4) {
    SCOPED_TRACE(limit);
    const TemporaryTree folder;
    Job job(ddprun({"--nproc-per-node=3", "--max-restarts=1"},
                   worker({"stamp", folder.path(), "on-round", "0", "wait", "exit", "0"})));
    ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 3; })) << job.err();
    const rlimit files{static_cast<rlim_t>(limit), static_cast<rlim_t>(limit)};
    ASSERT_EQ(::prlimit(job.pid(), RLIMIT_NOFILE, &files, nullptr), 0);
    ::kill(stamps(folder.path(), 0).at(1).pid, SIGKILL);
    ran_or_said_why(job, "Too many open files; the limit is " + std::to_string(limit));
  }
}

// The limit holds for memory files, too. The pipe that workers write to has no size.
TEST(LimitOnFileSize, StopsNoJobThatWritesNoFile) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer needs files of its own";
  for (const int limit : {0, 1, 512, 4096, 16384, 65536, 1 << 20}) {
    SCOPED_TRACE(limit);
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    Command command =
        ddprun({"--nproc-per-node=2", "--max-restarts=1"},
               {"/bin/sh", "-c", "echo limit $(ulimit -f); grep SigIgn /proc/self/status"});
    command.insert(command.begin(), {"prlimit", both("fsize", limit)});
    Job job(command, {.stdout_fd = ends[1]});
    ::close(ends[1]);
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty());
    const std::string text = read_file("/dev/fd/" + std::to_string(ends[0]));
    ::close(ends[0]);
    EXPECT_EQ(count_of("limit " + std::to_string(limit / 512) + "\n", text), 2U) << text;
    EXPECT_EQ(count_of("0000000000000000\n", text), 2U) << text << ": SIGXFSZ is ignored";
  }
}

TEST(LimitOnFileSize, IsToldWhereHangsWereToBeNoticed) {
  Command command = ddprun({"--nproc-per-node=2", "--hang-timeout=60"}, {"/bin/true"});
  command.insert(command.begin(), {"prlimit", both("fsize", 2048)});
  Job job(command);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(count_of("without its link, so it is not noticed if it hangs", job.err()), 1U)
      << job.err();
}

// A container's filter may refuse the call, and old kernels do not know it.
TEST(WithoutCloseRange, WorkersGetTheirFilesAndTheJobEnds) {
  if (kIsSanitized) GTEST_SKIP() << "what is preloaded has to come after the sanitizer";
  const TemporaryTree folder;
  Command command =
      ddprun({"--max-restarts=1"},
             worker({"state", folder / "state", "on-round", "0", "exit", "1", "exit", "0"}));
  const Command with_file{"/bin/sh", "-c", "exec 7</dev/null; exec \"$@\"", "sh"};
  command.insert(command.begin(), with_file.begin(), with_file.end());
  Job job(command, {.environment = {{"LD_PRELOAD", DDPRUN_NO_CLOSE_RANGE}}});
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty()) << "the keeper";
  const auto state = state_in(folder / "state");
  EXPECT_EQ(state.at("fds"), "0,1,2," + state.at("link"));
}

}  // namespace
}  // namespace ddprun::test
