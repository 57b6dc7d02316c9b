// System calls that a filter refuses, or that the kernel does not have: the job works, or ddprun says
// why not in one sentence and ends with a documented exit code. It ends in time, also when it is told
// to, and leaves no process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

// The agent, its keeper, and what will become a worker. Workers make calls of their own, so here they
// are programs with another name.
constexpr const char* kOurs = ",process=ddprun*";

// ddprun has no say: the C library makes these calls before main(), or cannot do without them.
const std::set<std::string> kOfTheLibrary{
    "arch_prctl",    // the C library cannot start
    "exit",          // a thread cannot end, and the C library tries again for ever
    "futex",         // a thread cannot wait, and the C library aborts
    "mmap",          // the C library cannot be loaded, and its loader ends by SIGSEGV
    "mprotect",      // the C library cannot start
    "rt_sigreturn",  // a signal handler cannot return
};

// A call that the loader of the C library makes, too, which says so before main().
bool is_of_loader(const Job& job) {
  return job.err().find("error while loading shared libraries") != std::string::npos;
}

std::set<std::string> calls_of_ours(const std::string& record) {
  std::set<std::string> calls;
  std::istringstream lines(read_file(record));
  std::string process, call;
  while (lines >> process >> call) {
    if (process.starts_with("ddprun")) calls.insert(call);
  }
  return calls;
}

Command waiting_job(const TemporaryTree& folder) {
  return ddprun({"--nproc-per-node=2", "--shutdown-timeout=1"},
                {"/bin/sh", "-c", ": >" + (folder / "runs-$RANK") + "; exec sleep 1000"});
}
bool both_run(const TemporaryTree& folder) {
  return std::filesystem::exists(folder / "runs-0") && std::filesystem::exists(folder / "runs-1");
}

// The calls of a whole job, of one that is stopped, and of one whose workers fail.
std::set<std::string> calls_of_jobs() {
  const TemporaryTree folder;
  const std::string record = "--record=" + folder / "calls";
  Job works(with_calls_denied({record}, ddprun({"--nproc-per-node=2"}, {"/bin/true"})));
  EXPECT_EQ(works.wait(), exited(0)) << works.err();
  Job fails(with_calls_denied(
      {record}, ddprun({"--nproc-per-node=2", "--max-restarts=1"}, {"/bin/sh", "-c", "exit 3"})));
  EXPECT_EQ(fails.wait(), exited(3)) << fails.err();
  Job is_stopped(with_calls_denied({record}, waiting_job(folder)));
  EXPECT_TRUE(is_stopped.reaches([&] { return both_run(folder); })) << is_stopped.err();
  is_stopped.signal(SIGTERM);
  EXPECT_NE(is_stopped.wait(), Ended{}) << is_stopped.err();
  auto calls = calls_of_ours(folder / "calls");
  // Not everywhere made.
  calls.insert({"clone3", "pidfd_open", "wait4", "waitid", "poll"});
  return calls;
}

std::vector<std::string> sentences(const std::string& err) {
  std::vector<std::string> found;
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("ddprun: ")) found.push_back(line);
  }
  return found;
}

class EveryCall : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryCall, IsRefusedAndTheJobWorksOrSaysWhyNot) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer makes calls of its own";
  const auto calls = calls_of_jobs();
  EXPECT_THAT(calls, IsSupersetOf({"epoll_wait", "read", "write", "execve", "kill", "close"}));
  int worked = 0;
  for (const std::string& call : calls) {
    SCOPED_TRACE(call);
    Job job(with_calls_denied({call + ":deny=" + GetParam() + kOurs},
                              ddprun({"--nproc-per-node=2", "--shutdown-timeout=1"},
                                     {"/bin/sh", "-c", "echo worker $RANK"})));
    const Ended ended = job.wait();
    EXPECT_THAT(job.left_over(), IsEmpty()) << job.err();
    if (kOfTheLibrary.contains(call) || is_of_loader(job)) continue;
    if (ended == exited(0)) {
      worked += 1;
      EXPECT_THAT(job.out(), AllOf(HasSubstr("worker 0\n"), HasSubstr("worker 1\n"))) << job.err();
    } else {
      EXPECT_THAT(ended, AnyOf(exited(114), exited(126), exited(127))) << job.err();
      const std::size_t said = call == "write" ? 0 : 1;
      EXPECT_EQ(sentences(job.err()).size(), said) << job.err();
    }
  }
  EXPECT_GT(worked, static_cast<int>(calls.size()) / 2);
}

TEST_P(EveryCall, IsRefusedAndTheJobCanBeStopped) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer makes calls of its own";
  for (const std::string& call : calls_of_jobs()) {
    SCOPED_TRACE(call);
    if (kOfTheLibrary.contains(call)) continue;
    const TemporaryTree folder;
    Job job(with_calls_denied({call + ":deny=" + GetParam() + kOurs}, waiting_job(folder)));
    if (job.reaches([&] { return both_run(folder); })) job.signal(SIGTERM);
    EXPECT_THAT(job.wait(),
                AnyOf(exited(128 + SIGTERM), exited(114), exited(115), exited(126), exited(127)))
        << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty()) << job.err();
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, EveryCall, ::testing::Values("EPERM", "ENOSYS"),
                         [](const auto& error) { return std::string(error.param); });

// ---- no pidfds: kernels before 5.3, RHEL 8, gVisor, filters

const std::vector<std::string> kWithoutPidfds{std::string("pidfd_open:deny=ENOSYS") + kOurs,
                                              std::string("clone3:deny=ENOSYS") + kOurs};
const JobSetup kDebug{.environment = {{"DDPRUN_LOG_LEVEL", "debug"}}};
constexpr const char* kBySignal = "SIGCHLD tells of the ends of workers";

Command without_pidfds(const Command& command) {
  return with_calls_denied(kWithoutPidfds, command);
}

TEST(WithoutPidfds, AJobSucceedsAndTheLogSaysOnceHowEndsAreNoticed) {
  Job job(without_pidfds(ddprun({"--nproc-per-node=3"}, {"/bin/true"})), kDebug);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(count_of(kBySignal, job.err()), 1U) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
  Job other(ddprun({"--nproc-per-node=3"}, {"/bin/true"}), kDebug);
  EXPECT_EQ(other.wait(), exited(0)) << other.err();
  EXPECT_EQ(count_of(kBySignal, other.err()), 0U) << other.err();
}

TEST(WithoutPidfds, ClonesPidfdIsEnough) {
  Job job(
      with_calls_denied({kWithoutPidfds.front()}, ddprun({"--nproc-per-node=3"}, {"/bin/true"})),
      kDebug);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST(WithoutPidfds, AFailureIsReportedAndTheOthersEnd) {
  Job job(without_pidfds(
      ddprun({"--nproc-per-node=3"}, worker({"on-rank", "1", "exit", "3", "wait"}))));
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  Job killed(without_pidfds(
      ddprun({"--nproc-per-node=3"}, worker({"on-rank", "1", "signal", "9", "wait"}))));
  EXPECT_EQ(killed.wait(), exited(128 + SIGKILL)) << killed.err();
  EXPECT_THAT(killed.err(), HasSubstr("SIGKILL"));
  EXPECT_THAT(job.left_over(), IsEmpty());
  EXPECT_THAT(killed.left_over(), IsEmpty());
}

// Many end at once: one SIGCHLD may stand for several ends.
TEST(WithoutPidfds, EveryEndIsNoticed) {
  Job job(without_pidfds(ddprun({"--nproc-per-node=40", "--max-restarts=3"},
                                worker({"on-round", "3", "exit", "0", "exit", "5"}))));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST(WithoutPidfds, AStopEndsTheWorkersAndTheirGroups) {
  const TemporaryTree folder;
  Job job(without_pidfds(
      ddprun({"--nproc-per-node=2"}, worker({"child", "touch", folder / "runs-{rank}", "wait"}))));
  ASSERT_TRUE(job.reaches([&] { return both_run(folder); })) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST(WithoutPidfds, TheRestOfAGroupEndsWithItsLeader) {
  Job job(without_pidfds(ddprun({"--nproc-per-node=2"}, worker({"deaf-child", "exit", "0"}))));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST(WithoutPidfds, TheKeeperCleansUp) {
  const TemporaryTree folder;
  Job job(without_pidfds(waiting_job(folder)));
  ASSERT_TRUE(job.reaches([&] { return both_run(folder); })) << job.err();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), killed_by(SIGKILL));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST(WithoutPidfds, AKeeperThatIsKilledIsReplaced) {
  const TemporaryTree folder;
  Job job(without_pidfds(waiting_job(folder)));
  ASSERT_TRUE(job.reaches([&] { return both_run(folder) && job.keeper(); })) << job.err();
  ::kill(*job.keeper(), SIGKILL);
  EXPECT_TRUE(job.reaches([&] {
    return job.err().find("the keeper was killed; there is a new one") != std::string::npos;
  })) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST(WithoutPidfds, AWorkerIsReplacedInPlace) {
  const TemporaryTree folder;
  const auto pid = [&folder] { return std::atoi(read_file(folder / "pid-1").c_str()); };
  Job job(
      without_pidfds(ddprun({"--standby=2", "--no-python", "--max-restarts=5", "--nproc-per-node=2",
                             "--shutdown-timeout=2", "--events=" + folder / "events"},
                            {DDPRUN_RECOVERING_WORKER, folder.path(), "300"})),
      {.environment = {{"DDPRUN_CONTROL_DIR", folder / "control"}}});
  const auto is_ready = [&] {
    return run_to_its_end(ddpctl({"status", "--json", std::to_string(job.pid())}),
                          {.environment = {{"DDPRUN_CONTROL_DIR", folder / "control"}}})
               .out.find(R"("can_recover":true,"waiting":2,"wanted":2)") != std::string::npos;
  };
  ASSERT_TRUE(job.reaches(is_ready)) << job.err();
  const pid_t before = pid();
  ::kill(before, SIGKILL);
  ASSERT_TRUE(job.reaches([&] { return pid() != before; })) << job.err();
  folder.write("finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(read_file(folder / "events"), HasSubstr(R"("how":"replaced")"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

#ifdef DDPRUN_STANDBY_PROGRAM
TEST(WithoutPidfds, StandbysBecomeWorkers) {
  const TemporaryTree folder;
  folder.write("digits", "0123456789");
  Job job(without_pidfds(ddprun({"--standby=2", "--nproc-per-node=2", "--max-restarts=5",
                                 "--shutdown-timeout=1", "--no-python"},
                                {DDPRUN_STANDBY_PROGRAM, folder.path(), "1"})),
          {.environment = {{"DDPRUN_LOG_LEVEL", "info"}}});
  ASSERT_TRUE(job.reaches([&] {
    return job.err().find("2 wait for a restart") != std::string::npos;
  })) << job.err();
  folder.write("go-0", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), AllOf(HasSubstr("round 1 rank 0"), HasSubstr(" forked;")));
  EXPECT_THAT(job.left_over(), IsEmpty());
}
#endif

// ---- a keeper that cannot wait

TEST(KeeperWithoutPoll, CleansUp) {
  const TemporaryTree folder;
  Job job(with_calls_denied({"poll:deny=EPERM,process=ddprun-keeper", "ppoll:deny=EPERM"},
                            waiting_job(folder)));
  ASSERT_TRUE(job.reaches([&] { return both_run(folder); })) << job.err();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), killed_by(SIGKILL));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST(KeeperThatCannotRead, EndsAndIsNotReplaced) {
  const TemporaryTree folder;
  Job job(with_calls_denied(
      {"read:deny=EPERM,process=ddprun-keeper", "poll:deny=EPERM,process=ddprun-keeper"},
      ddprun({"--nproc-per-node=2"}, worker({"until", folder / "end"}))));
  const char* const sentence =
      "the keeper cannot wait for the end of ddprun, so workers may live on if ddprun is killed: "
      "Operation not permitted";
  EXPECT_TRUE(job.reaches([&] { return job.err().find(sentence) != std::string::npos; }))
      << job.err();
  EXPECT_FALSE(job.keeper());
  folder.write("end", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(count_of("the keeper", job.err()), 1U) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// ---- no call that reaps

TEST(WithoutWait, EndsAreNoticedAndWhatTheyWere) {
  Job job(with_calls_denied(
      {std::string("wait4:deny=EPERM") + kOurs, std::string("waitid:deny=EPERM") + kOurs},
      ddprun({"--nproc-per-node=2"}, worker({"on-rank", "1", "exit", "3", "wait"}))));
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// ---- the tool itself

TEST(DenyCalls, DelaysAnExecutionByItsPath) {
  for (const bool is_meant : {true, false}) {
    const auto began = std::chrono::steady_clock::now();
    const Told told = run_to_its_end(
        with_calls_denied({std::string("execve:delay=1500,path=*/") + (is_meant ? "true" : "none")},
                          {"/bin/sh", "-c", "/bin/true; echo $?"}));
    EXPECT_EQ(told.out, "0\n") << told.err;
    EXPECT_TRUE(!is_meant || std::chrono::steady_clock::now() - began >= milliseconds(1500));
  }
}

TEST(DenyCalls, RefusesTheNthCallOfAProcessWithThatPath) {
  const TemporaryTree folder;
  const std::string file = folder.write("file", "text\n");
  const Told told = run_to_its_end(with_calls_denied(
      {"openat:deny=EIO,process=cat,nth=2,path=" + file},
      {"/bin/sh", "-c", "for i in 1 2 3; do cat " + file + "; : <" + file + "; done"}));
  EXPECT_EQ(told.out, "text\ntext\n");
  EXPECT_THAT(told.err, HasSubstr("Input/output error"));
}

// ---- other programs that wait

TEST(Ddpctl, SaysThatItCannotWait) {
  const TemporaryTree folder;
  Job job(waiting_job(folder));
  ASSERT_TRUE(job.reaches([&] { return both_run(folder); })) << job.err();
  const Told told = run_to_its_end(with_calls_denied(
      {"poll:deny=EPERM,process=ddpctl"}, ddpctl({"status", std::to_string(job.pid())})));
  EXPECT_NE(told.code, 0);
  EXPECT_THAT(told.err, HasSubstr("cannot wait for the job: Operation not permitted"));
}

TEST(Leader, SaysThatItCannotWait) {
  const Told told =
      run_to_its_end(with_calls_denied({"epoll_wait:deny=EPERM,process=ddpctl"},
                                       ddpctl({"leader", "--listen=127.0.0.1:0", "--nnodes=2"})));
  EXPECT_EQ(told.code, 114) << told.err;
  EXPECT_THAT(told.err, HasSubstr("epoll_wait: Operation not permitted"));
}

}  // namespace
}  // namespace ddprun::test
