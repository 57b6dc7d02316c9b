// The failure report for users and programs that do not watch the terminal: files, messages,
// stacks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

JobSetup with(const std::string& name, const std::string& value) {
  JobSetup setup;
  setup.environment[name] = value;
  return setup;
}

TEST(Failure, IsTheTerminationMessageOfTheContainer) {
  const TemporaryTree folder;
  write_file(folder / "message", "");
  const auto setup = with("DDPRUN_TERMINATION_LOG", folder / "message");
  Job good(ddprun({}, worker({"exit", "0"})), setup);
  EXPECT_EQ(good.wait(), exited(0));
  EXPECT_EQ(read_file(folder / "message"), "");
  Job bad(ddprun({}, worker({"complain", "no data", "exit", "3"})), setup);
  EXPECT_EQ(bad.wait(), exited(3));
  EXPECT_THAT(read_file(folder / "message"), StartsWith("ddprun: "));
  EXPECT_THAT(read_file(folder / "message"), HasSubstr("| no data"));
}

// As when rank 0 leaves a loop earlier than the others, which then fail in a collective.
TEST(Failure, NamesTheRanksThatHadLeftBefore) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2"},
                 worker({"stamp", folder.path(), "on-rank", "0", "exit", "0", "until",
                         folder / "go", "complain", "Connection closed by peer", "exit", "1"})));
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 2; })) << job.err();
  ASSERT_TRUE(job.reaches([&] { return job.workers().size() == 1; })) << job.err();
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(1));
  EXPECT_THAT(job.err(), HasSubstr("  before it   rank 0 had ended with exit code 0; a collective "
                                   "call that waits for it fails\n"));
}

// By its name, its message and its last words.
TEST(Failure, MovesNoCursorAndForgesNoLine) {
  const TemporaryTree folder;
  const std::string program = folder / "x\x1b[2J\nddprun: all is well";
  std::filesystem::create_symlink(worker({}).front(), program);
  write_file(folder / "log", "");
  Job job(ddprun({"--no-python"}, {program, "error-file", "bad\\u001b[2J\\nddprun: all is well",
                                   "complain", "last\x1b[2J", "exit", "3"}),
          with("DDPRUN_TERMINATION_LOG", folder / "log"));
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  const std::string report = read_file(folder / "log");
  EXPECT_THAT(report, HasSubstr(R"(x\x1b[2J\nddprun: all is well FAILED)"));
  EXPECT_THAT(report, HasSubstr("  its error\n    bad\\x1b[2J\n    ddprun: all is well\n"));
  EXPECT_THAT(report, HasSubstr("    | last\\x1b[2J\n"));
  EXPECT_EQ(report.find('\x1b'), std::string::npos);
  EXPECT_EQ(report.find("\nddprun:"), std::string::npos);
  EXPECT_TRUE(job.err().ends_with(report)) << job.err();
}

// Whatever lies where a worker's error file should be, and where the launcher outside wants one.
TEST(Failure, AFifoInPlaceOfAnErrorFileHoldsUpNothing) {
  const TemporaryTree folder;
  ASSERT_EQ(::mkfifo((folder / "outside").c_str(), 0600), 0);
  Job job(ddprun({"--no-python"}, {"/bin/sh", "-c", "mkfifo $TORCHELASTIC_ERROR_FILE; exit 3"}),
          with("TORCHELASTIC_ERROR_FILE", folder / "outside"));
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("ended with exit code 3"));
}

TEST(Failure, ReachesTheLauncherOutsideThroughItsErrorFile) {
  const TemporaryTree folder;
  const auto setup = with("TORCHELASTIC_ERROR_FILE", folder / "error.json");
  Job told(ddprun({"--nproc-per-node=2"}, worker({"on-rank", "1", "error-file", "ValueError: x",  //
                                                  "on-rank", "1", "exit", "3", "wait"})),
           setup);
  EXPECT_EQ(told.wait(), exited(3));
  EXPECT_EQ(read_file(folder / "error.json"),
            R"({"message":{"message":"ValueError: x","extraInfo":{"py_callstack":"",)"
            R"("timestamp":"1760000000"},"errorCode":3}})");
  Job killed(ddprun({}, worker({"signal", "9"})), setup);
  EXPECT_EQ(killed.wait(), exited(137));
  EXPECT_THAT(read_file(folder / "error.json"), HasSubstr("was killed by SIGKILL"));
}

// A group of processes with a limit on their memory; nothing where none can be made here.
class MemoryGroup {
 public:
  explicit MemoryGroup(const std::string& bytes) {
    const std::string name = "/ddprun_test_" + std::to_string(getpid());
    for (const auto& [root, limit] : {std::pair{"/sys/fs/cgroup/memory", "/memory.limit_in_bytes"},
                                      std::pair{"/sys/fs/cgroup", "/memory.max"}}) {
      const std::string path = root + name;
      if (mkdir(path.c_str(), 0755) != 0) continue;
      path_ = path;
      std::ofstream file(path + limit);
      if (file << bytes << std::flush) return;
      remove();
    }
  }
  ~MemoryGroup() { remove(); }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool exists() const { return !path_.empty(); }
  Command with(Command command) const {
    const Command enter{"/bin/sh", "-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"", path_};
    command.insert(command.begin(), enter.begin(), enter.end());
    return command;
  }

 private:
  // Those that were in it may still be on their way out.
  void remove() {
    if (!path_.empty()) eventually([this] { return rmdir(path_.c_str()) == 0; });
    path_.clear();
  }

  std::string path_;
};

TEST(Failure, AKillForWantOfMemoryIsToldAsOne) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "ddprun itself takes most of the memory here, so the kernel kills it";
#endif
  const MemoryGroup group("268435456");
  if (!group.exists()) GTEST_SKIP() << "no group with a memory limit can be made here";
  const TemporaryTree folder;
  Job job(group.with(ddprun({"--nproc-per-node=2", "--events=" + (folder / "events")},
                            worker({"on-rank", "1", "take-memory", "2000", "wait"}))));
  EXPECT_EQ(job.wait(), exited(137));
  EXPECT_THAT(job.err(), HasSubstr("was killed by the kernel: out of memory"));
  EXPECT_THAT(read_file(folder / "events"), HasSubstr(R"("killed_for_memory":true)"));
}

// A worker that is deaf to SIGTERM, so that it has to be killed when its grace is over.
class Stacks : public ::testing::Test {
 protected:
  Command deaf_worker() const { return worker({"ignore", "15", "stamp", folder_.path(), "wait"}); }
  bool has_started(int workers = 1) const {
    return eventually(
        [&] { return stamps(folder_.path(), 0).size() == static_cast<std::size_t>(workers); });
  }
  // The only debugger that the job finds.
  JobSetup with_gdb(const std::string& script) const {
    write_file(folder_ / "gdb", "#!/bin/sh\n" + script + "\n", 0755);
    JobSetup setup;
    setup.environment["PATH"] = folder_.path();
    return setup;
  }
  std::string stacks_file() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "logs")) {
      if (entry.path().filename() == "stacks.txt") return entry.path();
    }
    return {};
  }

  const TemporaryTree folder_;
};

TEST_F(Stacks, OfAKilledWorkerAreBesideItsLogs) {
  Job job(
      ddprun({"--log-dir=" + (folder_ / "logs"), "-r3", "--shutdown-timeout=0.1"}, deaf_worker()),
      with_gdb(
          "for word; do case $word in 'set logging file '*) file=${word#set logging file };; esac; "
          "done; echo fake-gdb \"$@\" >> $file"));
  ASSERT_TRUE(has_started()) << job.err();
  const std::string pid = std::to_string(stamps(folder_.path(), 0).at(0).pid);
  job.signal(SIGTERM);
  ASSERT_EQ(job.wait(), exited(143)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("the stacks of rank 0 before it was killed: " + stacks_file()));
  const std::string stacks = read_file(stacks_file());
  EXPECT_THAT(stacks, StartsWith("process " + pid + " (ddprun_test_wor), 1 thread\n"));
  EXPECT_THAT(stacks, HasSubstr("sleeping"));
  EXPECT_THAT(stacks, HasSubstr("fake-gdb"));
  EXPECT_THAT(stacks, HasSubstr("attach " + pid));
}

TEST_F(Stacks, AreInTheReportWhereThereAreNoLogs) {
  Job job(ddprun({"--shutdown-timeout=0.1"}, deaf_worker()), with_gdb("exit 1"));
  ASSERT_TRUE(has_started()) << job.err();
  job.signal(SIGTERM);
  ASSERT_EQ(job.wait(), exited(143)) << job.err();
  const std::string err = job.err();
  const auto report = err.find("STOPPED by SIGTERM");
  ASSERT_NE(report, std::string::npos) << err;
  EXPECT_NE(err.find("(ddprun_test_wor), 1 thread", report), std::string::npos) << err;
}

TEST_F(Stacks, DoNotHoldUpTheKillForADebuggerThatHangs) {
  Job job(ddprun({"--nproc-per-node=2", "--shutdown-timeout=0.1"}, deaf_worker()),
          with_gdb(": > " + (folder_ / "hangs") + "; exec /bin/sleep 1000"));
  ASSERT_TRUE(has_started(2)) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(seconds(15)), exited(143)) << job.err();
  EXPECT_TRUE(std::filesystem::exists(folder_ / "hangs"));
  EXPECT_THAT(job.left_over(), ::testing::IsEmpty());
}

TEST_F(Stacks, AreNotWaitedForAfterASecondSignal) {
  Job job(ddprun({"--shutdown-timeout=0.1"}, deaf_worker()),
          with_gdb(": > " + (folder_ / "hangs") + "; exec /bin/sleep 1000"));
  ASSERT_TRUE(has_started()) << job.err();
  job.signal(SIGTERM);
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder_ / "hangs"); }));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(milliseconds(3000)), exited(143)) << "less than the stacks may take";
  EXPECT_THAT(job.left_over(), ::testing::IsEmpty());
}

TEST_F(Stacks, AreNotTakenWithoutAGracePeriod) {
  Job job(ddprun({"--shutdown-timeout=0"}, deaf_worker()),
          with_gdb(": > " + (folder_ / "hangs") + "; exec /bin/sleep 1000"));
  ASSERT_TRUE(has_started()) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(143)) << job.err();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "hangs"));
}

}  // namespace
}  // namespace ddprun::test
