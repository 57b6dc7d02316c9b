// The control group of a job's workers: a process that clears its environment and creates its own
// session still ends with its round, and no group is left, however the agent ends.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "rendezvous/common/unique_fd.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kHasGroup = "the workers' control group is ";
constexpr const char* kHasNone = "workers have no control group of their own: ";

// The rest of the line after these words; empty where they are not.
std::string after(const std::string& words, const std::string& text) {
  const std::size_t at = text.find(words);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + words.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

// Why there can be no control groups here; empty: there can be.
const std::string& obstacle() {
  static const std::string why = [] {
    Job job(ddprun({}, {"/bin/true"}), {.environment = {{"DDPRUN_LOG_LEVEL", "DEBUG"}}});
    job.wait();
    return job.err().find(kHasGroup) != std::string::npos ? "" : after(kHasNone, job.err()) + ".";
  }();
  return why;
}

class ControlGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "a worker begins in its group by clone3, which that sanitizer does not know";
#endif
    if (!obstacle().empty()) GTEST_SKIP() << obstacle();
  }
  void TearDown() override {
    if (hidden_ > 0) ::kill(hidden_, SIGKILL);
  }

  // A worker that leaves a process behind which nothing but the control group can find, in round 0;
  // then does what the rest says.
  Command hiding(const std::string& then) const {
    return {"/bin/sh", "-c",
            "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then env -i /usr/bin/setsid /bin/sleep 1000 & "
            "echo $! > " +
                folder_ / "pid.new; mv " + folder_ / "pid.new " + folder_ / "pid; fi; " + then};
  }
  JobSetup setup() const { return {.environment = {{"DDPRUN_LOG_LEVEL", "DEBUG"}}}; }

  // Waits until it is there, in a session of its own.
  pid_t hidden_by(Job& job) {
    job.reaches([&] {
      hidden_ = std::atoi(read_file(folder_ / "pid").c_str());
      return hidden_ > 0 && read_file("/proc/" + std::to_string(hidden_) + "/comm") == "sleep\n";
    });
    EXPECT_GT(hidden_, 0) << job.err();
    EXPECT_EQ(::getsid(hidden_), hidden_);
    return hidden_;
  }
  static bool ends(pid_t pid) {
    return eventually([&] {
      const auto info = process(pid);
      return !info || info->state == 'Z';
    });
  }
  // The first one, and the present one: after a round in which somebody hid there is another.
  static std::string group_of(const Job& job) { return after(kHasGroup, job.err()); }
  static std::string last_group_of(const Job& job) {
    const std::string text = job.err();
    return after(kHasGroup, text.substr(std::min(text.size(), text.rfind(kHasGroup))));
  }

  const TemporaryTree folder_;
  pid_t hidden_ = 0;
};

TEST_F(ControlGroupTest, EndsWhoHidFromItsRoundWithThatRound) {
  Job job(ddprun({"--max-restarts=1"},
                 hiding("if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then exit 3; fi; touch " +
                        folder_ / "again; while ! [ -e " + folder_ / "go ]; do sleep 0.01; done")),
          setup());
  ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(folder_ / "again"); })) << job.err();
  hidden_ = std::atoi(read_file(folder_ / "pid").c_str());
  ASSERT_GT(hidden_, 0);
  const auto info = process(hidden_);
  EXPECT_TRUE(!info || info->state == 'Z') << "the next round runs beside it";
  write_file(folder_ / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  for (const std::string& group : {group_of(job), last_group_of(job)}) {
    EXPECT_FALSE(std::filesystem::exists(group)) << group;
  }
}

TEST_F(ControlGroupTest, EndsWhoHidFromTheAgentWithTheAgent) {
  for (const int signal : {0, SIGTERM, SIGKILL}) {
    SCOPED_TRACE(signal);
    std::filesystem::remove(folder_ / "pid");
    std::filesystem::remove(folder_ / "go");
    Job job(
        ddprun({"--kill-orphans"}, hiding("while ! [ -e " + folder_ / "go ]; do sleep 0.01; done")),
        setup());
    const pid_t hidden = hidden_by(job);
    const std::string group = group_of(job);
    ASSERT_TRUE(std::filesystem::exists(group)) << job.err();
    if (signal == 0) {
      write_file(folder_ / "go", "");
    } else {
      job.signal(signal);
    }
    EXPECT_EQ(job.wait(), signal == 0         ? exited(0)
                          : signal == SIGKILL ? killed_by(signal)
                                              : exited(128 + signal))
        << job.err();
    EXPECT_TRUE(ends(hidden));
    EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(group); })) << group;
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

TEST_F(ControlGroupTest, IsRemovedWhenKeeperAndAgentAreKilledInTurn) {
  Job job(ddprun({}, hiding("sleep 1000")), setup());
  const pid_t hidden = hidden_by(job);
  for (const auto& child : children_of(job.pid())) {
    if (child.name == "ddprun-keeper") ::kill(child.pid, SIGKILL);
  }
  ASSERT_TRUE(job.reaches([&] {
    return job.err().find("the keeper was killed; there is a new one") != std::string::npos;
  })) << job.err();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), killed_by(SIGKILL));
  EXPECT_TRUE(ends(hidden));
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(group_of(job)); }));
}

// Agent and keeper were killed together; the group is as old as its name says.
TEST_F(ControlGroupTest, OfADeadAgentIsRemovedByTheNextOne) {
  Job first(ddprun({}, {"/bin/true"}), setup());
  ASSERT_EQ(first.wait(), exited(0));
  const auto folder = std::filesystem::path(group_of(first)).parent_path();
  const std::string abandoned = folder / "ddprun-1-1", in_use = folder / "ddprun-1-2";
  rdzv::UniqueFd lock;
  ASSERT_TRUE(eventually([&] {  // another test's agent may remove it before it is locked
    std::filesystem::create_directory(in_use);
    lock.reset(::open(in_use.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return lock && ::flock(lock.get(), LOCK_EX) == 0 && ::mkdirat(lock.get(), "below", 0755) == 0;
  }));
  std::filesystem::create_directory(abandoned);
  Job next(ddprun({}, {"/bin/true"}), setup());
  EXPECT_EQ(next.wait(), exited(0));
  EXPECT_FALSE(std::filesystem::exists(abandoned));
  EXPECT_TRUE(std::filesystem::exists(in_use + "/below"));
  ::rmdir((in_use + "/below").c_str());
  ::rmdir(in_use.c_str());
}

// The inner one's keeper is killed with it: the outer one removes both groups.
TEST_F(ControlGroupTest, HoldsTheGroupOfADdprunThatIsAWorker) {
  for (const int signal : {0, SIGTERM, SIGKILL}) {
    SCOPED_TRACE(signal);
    std::filesystem::remove(folder_ / "pid");
    std::filesystem::remove(folder_ / "go");
    Command inner = ddprun({}, hiding("while ! [ -e " + folder_ / "go ]; do sleep 0.01; done"));
    // The inner one leaves it running, and the outer one ends it.
    Job job(ddprun({"--kill-orphans"}, inner), setup());
    const pid_t hidden = hidden_by(job);
    const std::string outer_group = group_of(job);
    // What the inner one says comes through the outer one.
    EXPECT_TRUE(job.reaches([&] { return last_group_of(job).starts_with(outer_group + "/"); }))
        << job.err();
    if (signal == 0) {
      write_file(folder_ / "go", "");
    } else {
      job.signal(signal);
    }
    EXPECT_NE(job.wait(), Ended{}) << job.err();
    EXPECT_TRUE(ends(hidden));
    EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(outer_group); })) << outer_group;
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

// A thousand rounds of a ddprun that is killed leave no thousand groups.
TEST_F(ControlGroupTest, LosesTheGroupsOfKilledAgentsWithTheirRound) {
  Job job(ddprun({"--max-restarts=1"},
                 {"/bin/sh", "-c",
                  "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then touch " + folder_ / "again" +
                      "; while ! [ -e " + folder_ / "go ]; do sleep 0.01; done; exit 0; fi; " +
                      "unset DDPRUN_LOG_LEVEL; "
                      "exec \"$0\" --nproc-per-node=1 /bin/sh -c 'kill -9 $PPID; sleep 1000'",
                  ddprun({}).front()}),
          setup());
  ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(folder_ / "again"); })) << job.err();
  for (const auto& entry : std::filesystem::directory_iterator(last_group_of(job))) {
    EXPECT_FALSE(entry.is_directory()) << entry.path();
  }
  write_file(folder_ / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_FALSE(std::filesystem::exists(last_group_of(job)));
}

// As `echo 1 > cgroup.kill` of somebody else leaves the agent's own group: newer kernels then kill
// at birth who is started in a group below.
TEST_F(ControlGroupTest, IsDoneWithoutWhereItWouldKillWorkersAtBirth) {
  Job probe(ddprun({}, {"/bin/true"}), setup());
  ASSERT_EQ(probe.wait(), exited(0)) << probe.err();
  // Not named as an agent's group is: another agent beside it would remove it as one that was left.
  const std::string killed = std::filesystem::path(group_of(probe)).parent_path() /
                             ("killed-by-test-" + std::to_string(::getpid()));
  ASSERT_TRUE(std::filesystem::create_directory(killed));
  if (std::filesystem::exists(killed + "/cgroup.kill")) {
    write_file(killed + "/cgroup.kill", "1");
    Command command = ddprun({"--nproc-per-node=2", "--max-restarts=1", "--kill-orphans"},
                             worker({"on-round", "0", "exit", "3", "daemon", "exit", "0"}));
    command.insert(command.begin(),
                   {"/bin/sh", "-c", "echo $$ > " + killed + "/cgroup.procs && exec \"$@\"", "sh"});
    Job job(command, setup());
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
  EXPECT_TRUE(eventually([&] { return ::rmdir(killed.c_str()) == 0; })) << killed;
}

// Then the variable in their environment tells who is of the job, as far as it does.
TEST(WithoutAControlGroup, WhoKeptItsEnvironmentStillEndsWithItsRound) {
  const Command command =
      without_control_groups(ddprun({"--kill-orphans"}, worker({"daemon", "exit", "0"})));
  Job job(command, {.environment = {{"DDPRUN_LOG_LEVEL", "DEBUG"}}});
  const Ended ended = job.wait();
  if (ended == exited(1) || ended == exited(99)) GTEST_SKIP() << job.err();
  EXPECT_EQ(ended, exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr(kHasNone));
  EXPECT_THAT(job.err(), Not(HasSubstr("warning")));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

}  // namespace
}  // namespace ddprun::test
