// Files and programs whose file system is slow, or does not answer at all: system calls with their paths are delayed. The
// agent starts workers, answers its leader and ddpctl, and ends when it is told to, as if all of them were fast.
#include <fnmatch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A node of which nothing is heard for six seconds is lost.
constexpr auto kLongerThanALostNode = 8s;
constexpr auto kForEver = 600s;
constexpr auto kStopLimit = 1s;
constexpr int kWorkers = 8;

std::string delays(const std::string& call, const std::string& path, milliseconds delay) {
  return call + ":delay=" + std::to_string(delay.count()) + ",path=" + path;
}
std::string delays_exec(milliseconds delay) { return delays("execve", worker({}).front(), delay); }

bool have_begun_to_start(Job& job, int workers) {
  // The keeper is a child, too.
  return job.reaches([&] { return static_cast<int>(children_of(job.pid()).size()) > workers; });
}

milliseconds until_the_end(Job& job) {
  const auto begun = steady_clock::now();
  job.wait();
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - begun);
}

TEST(SlowExec, OfEightWorkersTakesTheTimeOfOneAndTheNodeStaysInItsRound) {
  Cluster cluster({.meeting = Meeting::kC10d, .nnodes = "2", .nproc = kWorkers});
  const auto begun = steady_clock::now();
  cluster.start(0);
  Job slow(with_calls_denied({delays_exec(kLongerThanALostNode)}, cluster.command(1)),
           cluster.on(1));
  EXPECT_EQ(cluster.next_round(2 * kWorkers), 0) << cluster.told() << slow.err();
  EXPECT_GE(steady_clock::now() - begun, kLongerThanALostNode);
  EXPECT_LT(steady_clock::now() - begun, 2 * kLongerThanALostNode);
  cluster.let_finish();
  EXPECT_EQ(slow.wait(), exited(0)) << slow.err();
  EXPECT_EQ(cluster[0].wait(), exited(0)) << cluster.told();
  EXPECT_EQ(cluster.last_round(), 0);
  EXPECT_THAT(cluster.told() + slow.err(), Not(HasSubstr("lost")));
}

class SlowExecOfOneNode : public ::testing::Test {
 protected:
  Command slow_job(const std::vector<std::string>& options = {}) const {
    std::vector<std::string> all{"--nproc-per-node=" + std::to_string(kWorkers), "--rdzv-id=slow"};
    all.insert(all.end(), options.begin(), options.end());
    return with_calls_denied({delays_exec(kForEver)}, ddprun(all, worker({"wait"})));
  }
  JobSetup setup() const { return {.environment = {{"DDPRUN_CONTROL_DIR", tree_ / "control"}}}; }
  Told asked(const std::vector<std::string>& words) const {
    return run_to_its_end(ddpctl(words), setup());
  }

  const TemporaryTree tree_;
};

TEST_F(SlowExecOfOneNode, HoldsUpNoSignal) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Job job(slow_job(), setup());
    ASSERT_TRUE(have_begun_to_start(job, kWorkers)) << job.err();
    job.signal(signal);
    EXPECT_LE(until_the_end(job), kStopLimit) << job.err();
    EXPECT_EQ(job.wait(), exited(128 + signal)) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

TEST_F(SlowExecOfOneNode, IsNamedAndHoldsUpNoQuestion) {
  Job job(slow_job(), setup());
  ASSERT_TRUE(have_begun_to_start(job, kWorkers)) << job.err();
  EXPECT_EQ(asked({"status"}).code, 0);
  EXPECT_TRUE(job.reaches([&] {
    return job.err().find("and 2 more wait for the kernel to execute " + worker({}).front()) !=
           std::string::npos;
  })) << job.err();
  EXPECT_EQ(asked({"status"}).code, 0);
  EXPECT_EQ(asked({"stop"}).code, 0);
  EXPECT_LE(until_the_end(job), kStopLimit) << job.err();
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
}

TEST_F(SlowExecOfOneNode, EndsWithItsAgent) {
  Job job(slow_job(), setup());
  ASSERT_TRUE(have_begun_to_start(job, kWorkers)) << job.err();
  job.signal(SIGKILL);
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// The fast node leads: it is told to stop, or is killed.
TEST(SlowExecOfAnotherNode, HoldsUpNoEndOfTheJob) {
  struct Case {
    int signal = 0;  // to the fast node's agent, which leads
    int exit_code = 0;
  };
  for (const auto& [signal, exit_code] :
       {Case{SIGTERM, 128 + SIGTERM}, Case{SIGKILL, kLeaderLost}}) {
    Cluster cluster({.meeting = Meeting::kC10d, .nnodes = "2", .actions = {"wait"}});
    cluster.start(0);
    Job slow(with_calls_denied({delays_exec(kForEver)}, cluster.command(1)), cluster.on(1));
    ASSERT_TRUE(cluster[0].reaches([&] { return cluster[0].workers().size() == 1; }))
        << cluster.told();
    ASSERT_TRUE(have_begun_to_start(slow, 1)) << slow.err();
    cluster[0].signal(signal);
    EXPECT_EQ(slow.wait(), exited(exit_code)) << slow.err();
    EXPECT_THAT(slow.left_over(), IsEmpty());
  }
}

// ---- files

// The agent, and no other process: its keeper has a name of its own, and so have workers.
std::string delays_open(const std::string& path, const std::string& process = "ddprun") {
  return delays("openat", path, kForEver) + ",process=" + process;
}

struct HeldCall {
  long number = -1;  // -1: none is held
  std::uintptr_t arguments[2] = {};
};

// As the kernel has it, where a filter asks another process what to do about a call.
HeldCall held_call(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  HeldCall held;
  if (!read_file(process + "/wchan").starts_with("seccomp_do_user")) return held;
  std::istringstream call(read_file(process + "/syscall"));
  call >> held.number >> std::hex >> held.arguments[0] >> held.arguments[1];
  return held;
}

// In a call with a path that fits the pattern. Other calls are answered at once, and look the same for a moment.
bool is_held_at(pid_t pid, const std::string& pattern) {
  const auto [number, arguments] = held_call(pid);
  if (number < 0) return false;
  std::ifstream memory("/proc/" + std::to_string(pid) + "/mem", std::ios::binary);
  const bool is_first = number != SYS_openat && number != SYS_newfstatat;
  memory.seekg(static_cast<std::streamoff>(arguments[is_first ? 0 : 1]));
  std::string path;
  std::getline(memory, path, '\0');
  return ::fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
}

bool is_true_of_a_thread(pid_t pid, const std::function<bool(pid_t)>& is_true) {
  std::error_code ended;
  return std::ranges::any_of(
      std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", ended),
      [&](const auto& each) { return is_true(std::stoi(each.path().filename())); });
}
bool holds_a_thread_at(pid_t pid, const std::string& path) {
  return is_true_of_a_thread(pid, [&](pid_t thread) { return is_held_at(thread, path); });
}

class SlowFile : public ::testing::Test {
 protected:
  // While the agent waits for a file. The worker has stamped that it runs.
  void expect_that_it_can_be_asked_and_stopped(Job& job) const {
    EXPECT_EQ(run_to_its_end(ddpctl({"status"}), setup()).code, 0) << job.err();
    job.signal(SIGTERM);
    EXPECT_LE(until_the_end(job), kFileLimit) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty()) << job.err();
  }
  JobSetup setup() const {
    return {.environment = {{"DDPRUN_CONTROL_DIR", tree_ / "control"}, {"TMPDIR", tmp_}}};
  }
  bool runs(Job& job, std::size_t workers) const {
    return job.reaches([&] { return stamps(tree_.path(), 0).size() == workers; });
  }

  static constexpr auto kFileLimit = 6s;  // an error file has 2 s, a report 2.5 s
  const TemporaryTree tree_;
  const std::string tmp_ = [this] {
    std::filesystem::create_directory(tree_ / "tmp");
    return tree_ / "tmp";
  }();
};

TEST_F(SlowFile, AnErrorFileInATemporaryFolderHoldsUpNothing) {
  Job job(with_calls_denied({delays_open(tmp_ + "/*error.json")},
                            ddprun({"--nproc-per-node=2"},
                                   worker({"error-file", "told", "stamp", tree_.path(), "until",
                                           tree_ / "go", "on-rank", "0", "exit", "3", "wait"}))),
          setup());
  ASSERT_TRUE(runs(job, 2)) << job.err();
  write_file(tree_ / "go", "");
  EXPECT_LE(until_the_end(job), kFileLimit) << job.err();
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("cannot be read: its file system does not answer"));
}

TEST_F(SlowFile, ATemporaryFolderThatRemovesNothingHoldsUpNoRestartAndNoEnd) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "which removes a temporary file before main()";
#endif
  Job job(with_calls_denied({delays("unlink", tmp_ + "/*", kForEver)},
                            ddprun({"--max-restarts=1"},
                                   worker({"stamp", tree_.path(), "on-round", "0", "exit", "3"}))),
          setup());
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(stamps(tree_.path(), 1).size(), 1U) << job.err();
}

TEST_F(SlowFile, ALogFolderHoldsUpNoQuestionAndNoSignal) {
  Job job(
      with_calls_denied({delays_open(tree_ / "logs/*/std*.log")},
                        ddprun({"--log-dir=" + tree_ / "logs", "--redirects=3"}, worker({"wait"}))),
      setup());
  ASSERT_TRUE(job.reaches([&] {
    return job.err().find("does not answer; workers start when it does") != std::string::npos;
  })) << job.err();
  expect_that_it_can_be_asked_and_stopped(job);
}

// Their locks may be held by processes that hang in the kernel.
TEST_F(SlowFile, WhatProcSaysOfAProcessHoldsUpNothing) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the limits are of processes that have the usual speed";
#endif
  for (const char* file : {"environ", "cmdline", "maps"}) {
    SCOPED_TRACE(file);
    const TemporaryTree round;
    Job job(with_calls_denied(
                {delays_open("/proc/[0-9]*/" + std::string(file))},
                ddprun({"--nproc-per-node=2"}, worker({"stamp", round.path(), "daemon", "wait"}))),
            setup());
    ASSERT_TRUE(job.reaches([&] { return stamps(round.path(), 0).size() == 2; })) << job.err();
    expect_that_it_can_be_asked_and_stopped(job);
  }
}

TEST_F(SlowFile, ACertificateForEtcdHoldsUpNoSignal) {
  write_file(tree_ / "ca.pem", "");
  Job job(with_calls_denied({delays_open(tree_ / "ca.pem")},
                            ddprun({"--nnodes=1:2", "--rdzv-backend=etcd", "--rdzv-id=slow",
                                    "--rdzv-endpoint=127.0.0.1:1",
                                    "--rdzv-conf=protocol=https,ca_cert=" + tree_ / "ca.pem"},
                                   worker({"wait"}))),
          setup());
  ASSERT_TRUE(job.reaches([&] { return holds_a_thread_at(job.pid(), tree_ / "ca.pem"); }))
      << job.err();
  job.signal(SIGTERM);
  EXPECT_LE(until_the_end(job), kStopLimit) << job.err();
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
}

// Before there is a job: a signal ends ddprun as it ends any other process.
TEST_F(SlowFile, WhatIsReadBeforeTheStartHoldsUpNoSignal) {
  write_file(tree_ / "config.json", "{}");
  write_file(tree_ / "token", "a word that only this job knows", 0600);
  const std::pair<std::string, std::string> options[] = {
      {tree_ / "config.json", "--config=" + tree_ / "config.json"},
      {tree_ / "token", "--token-file=" + tree_ / "token"},  // read by a node of several only
      {tree_ / "events.jsonl", "--events=" + tree_ / "events.jsonl"},
      {tree_ / "record.jsonl", "--record=" + tree_ / "record.jsonl"},
      {tree_ / "control", ""}};
  for (const auto& [file, option] : options) {
    SCOPED_TRACE(file);
    std::vector<std::string> all{"--nproc-per-node=1"};
    if (!option.empty()) all.push_back(option);
    if (option.starts_with("--token")) {
      all.insert(all.end(), {"--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1"});
    }
    Job job(with_calls_denied({delays_open(file + "*"), delays("mkdir", file, kForEver)},
                              ddprun(all, worker({"stamp", tree_.path(), "wait"}))),
            setup());
    ASSERT_TRUE(job.reaches([&] { return is_held_at(job.pid(), file + "*"); })) << job.err();
    job.signal(SIGTERM);
    EXPECT_LE(until_the_end(job), kStopLimit) << job.err();
    EXPECT_TRUE(stamps(tree_.path(), 0).empty()) << job.err();
  }
}

TEST_F(SlowFile, ASocketForDdpctlThatIsMadeSlowlyHoldsUpNoSignal) {
  Job job(with_calls_denied(
              {"bind:delay=" + std::to_string(milliseconds(kForEver).count()) + ",process=ddprun"},
              ddprun({}, worker({"stamp", tree_.path(), "wait"}))),
          setup());
  ASSERT_TRUE(job.reaches([&] { return held_call(job.pid()).number == SYS_bind; })) << job.err();
  job.signal(SIGTERM);
  EXPECT_LE(until_the_end(job), kStopLimit) << job.err();
}

TEST_F(SlowFile, ASocketForDdpctlThatIsRemovedSlowlyHoldsUpNoEnd) {
  Job job(with_calls_denied({delays("unlinkat", "slow.sock", kForEver) + ",process=ddprun"},
                            ddprun({"--rdzv-id=slow"}, worker({"stamp", tree_.path(), "until",
                                                               tree_ / "go", "exit", "0"}))),
          setup());
  ASSERT_TRUE(runs(job, 1)) << job.err();
  write_file(tree_ / "go", "");
  EXPECT_LE(until_the_end(job), kStopLimit) << job.err();
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_TRUE(std::filesystem::exists(tree_ / "control/slow.sock")) << "it was not removed";
}

#ifdef DDPRUN_STANDBY_PROGRAM
// The program waits for a rank itself, and the agent looks whether its libraries have changed since it loaded them.
class SlowLibraries : public SlowFile {
 protected:
  static constexpr const char* kLibrary = "*/libc.so*";

  SlowLibraries() { write_file(tree_ / "digits", "0123456789"); }

  Command command(const std::string& rule) const {
    return with_calls_denied({rule}, ddprun({"--standby=1", "--max-restarts=9", "--no-python"},
                                            {DDPRUN_STANDBY_PROGRAM, tree_.path(), "1"}));
  }
  static std::string delays_look() {
    return delays("newfstatat", kLibrary, kForEver) + ",process=ddprun";
  }
  JobSetup setup() const {
    JobSetup setup = SlowFile::setup();
    setup.environment["DDPRUN_LOG_LEVEL"] = "info";
    return setup;
  }
  static bool says(Job& job, const std::string& text) {
    return job.reaches([&] { return (job.err() + job.out()).find(text) != std::string::npos; });
  }
};

TEST_F(SlowLibraries, ThatAreLookedForHoldUpNoQuestionAndNoSignal) {
  const std::pair<std::string, std::string> rules[] = {
      {delays_open("/proc/[0-9]*/maps"), "/proc/[0-9]*/maps"}, {delays_look(), kLibrary}};
  for (const auto& [rule, path] : rules) {
    SCOPED_TRACE(path);
    Job job(command(rule), setup());
    ASSERT_TRUE(says(job, "round 0 rank 0")) << job.err();
    ASSERT_TRUE(job.reaches([&] { return holds_a_thread_at(job.pid(), path); })) << job.err();
    expect_that_it_can_be_asked_and_stopped(job);
  }
}

// The first look is when they are loaded, the second before a restart, which waits two seconds for it.
TEST_F(SlowLibraries, BeforeARestartHoldUpNoQuestionAndAreTakenForChanged) {
  Job job(command(delays_look() + ",nth=2"), setup());
  ASSERT_TRUE(says(job, "1 waits for a restart")) << job.err();
  ::kill(job.workers().at(0), SIGKILL);
  ASSERT_TRUE(job.reaches([&] { return holds_a_thread_at(job.pid(), kLibrary); })) << job.err();
  EXPECT_EQ(run_to_its_end(ddpctl({"status"}), setup()).code, 0) << job.err();
  EXPECT_TRUE(says(job, "round 1 rank 0")) << job.err();
  EXPECT_THAT(job.out(), Not(HasSubstr("forked"))) << job.out();
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}
#endif

}  // namespace
}  // namespace ddprun::test
