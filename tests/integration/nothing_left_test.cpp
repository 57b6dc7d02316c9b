// However a job ends, none of its processes and files is left: the workers have children, some of
// which ignore SIGTERM, and still none survives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "tests/support/job.h"
#include "tests/support/network.h"

namespace ddprun::test {
namespace {

using ::testing::AnyOf;
using ::testing::IsEmpty;

// Two workers with two children each; they wait until `go` exists, if they wait at all.
Command busy_job(const TemporaryTree& folder, std::initializer_list<std::string> ending) {
  Command command = ddprun({"--nproc-per-node=2", "--shutdown-timeout=0.2"},
                           worker({"child", "deaf-child", "stamp", folder.path()}));
  command.insert(command.end(), ending);
  return command;
}

bool both_started(Job& job, const TemporaryTree& folder) {
  return job.reaches([&] { return stamps(folder.path(), 0).size() == 2; });
}

TEST(NothingIsLeft, AfterANormalEnd) {
  const TemporaryTree folder;
  Job job(busy_job(folder, {"exit", "0"}));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST(NothingIsLeft, AfterAFailure) {
  const TemporaryTree folder;
  Job job(busy_job(folder, {"on-rank", "1", "exit", "3", "wait"}));
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

class NothingIsLeftAfterSignal : public ::testing::TestWithParam<int> {};

TEST_P(NothingIsLeftAfterSignal, ToTheLauncher) {
  const TemporaryTree folder;
  Job job(busy_job(folder, {"wait"}));
  ASSERT_TRUE(both_started(job, folder)) << job.err();
  job.signal(GetParam());
  EXPECT_EQ(job.wait(), exited(128 + GetParam())) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Each, NothingIsLeftAfterSignal,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT));

TEST(NothingIsLeft, AfterTheLauncherItselfIsKilled) {
  const TemporaryTree folder;
  Job job(busy_job(folder, {"ignore", "15", "wait"}));
  ASSERT_TRUE(both_started(job, folder)) << job.err();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), killed_by(SIGKILL));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// Processes that made a session of their own lost their parent, but not their job. (Without --kill-orphans they live on
// after success: left_running_test.cpp.)
TEST(NothingIsLeft, OfProcessesThatLeftTheirWorkersSession) {
  for (const int signal : {0, SIGTERM}) {
    const TemporaryTree folder;
    Job job(
        ddprun({"--nproc-per-node=2", "--kill-orphans"},
               worker({"daemon", "stamp", folder.path(), "until", folder / "go", "exit", "0"})));
    ASSERT_TRUE(both_started(job, folder)) << job.err();
    ASSERT_GE(job.processes().size(), 4U) << "two workers, two daemons";
    if (signal == 0) {
      write_file(folder / "go", "");
    } else {
      job.signal(signal);
    }
    EXPECT_EQ(job.wait(), exited(signal == 0 ? 0 : 128 + signal)) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

TEST(NothingIsLeft, OfOrphansNotEvenAsZombies) {
  const TemporaryTree folder;
  Job job(ddprun({}, worker({"orphans", "20", "stamp", folder.path(), "wait"})));
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 1; })) << job.err();
  EXPECT_TRUE(eventually([&] {
    const auto children = children_of(job.pid());
    return std::none_of(children.begin(), children.end(),
                        [](const ProcessInfo& child) { return child.state == 'Z'; });
  }));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(143));
}

// The keeper is a process like any other: it can be killed too.
TEST(NothingIsLeft, AfterTheKeeperAndThenTheLauncherAreKilled) {
  const TemporaryTree folder;
  Job job(busy_job(folder, {"wait"}));
  ASSERT_TRUE(both_started(job, folder)) << job.err();
  const auto keeper = [&]() -> pid_t {
    const auto workers = job.workers();
    for (const auto& child : children_of(job.pid())) {
      const auto is_child = [&](const auto& entry) { return entry.second == child.pid; };
      if (child.state != 'Z' && std::none_of(workers.begin(), workers.end(), is_child)) {
        return child.pid;
      }
    }
    return -1;
  };
  const pid_t first = keeper();
  ASSERT_GT(first, 0);
  kill(first, SIGKILL);
  ASSERT_TRUE(job.reaches([&] { return keeper() > 0 && keeper() != first; })) << job.err();
  EXPECT_EQ(job.workers().size(), 2U) << "the workers go on";
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), killed_by(SIGKILL));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// Before the launcher has done anything else: its first child is the keeper.
TEST(NothingIsLeft, AKeeperThatIsKilledAtOnceIsReplaced) {
  for (int run = 0; run < (full_tests() ? 200 : 30); ++run) {
    const TemporaryTree folder;
    Job job(ddprun({}, worker({"until", folder / "go"})));
    const std::string self = std::to_string(job.pid());
    const std::string children = "/proc/" + self + "/task/" + self + "/children";
    pid_t first = 0;
    const auto until = std::chrono::steady_clock::now() + kDeadline;
    while (first == 0 && std::chrono::steady_clock::now() < until) {
      first = std::atoi(read_file(children).c_str());  // as soon as ever possible: no pause
    }
    ASSERT_GT(first, 0);
    kill(first, SIGKILL);
    ASSERT_TRUE(job.reaches([&] {
      return job.err().find("the keeper was killed; there is a new one") != std::string::npos;
    })) << "run "
        << run;
    write_file(folder / "go", "");
    ASSERT_EQ(job.wait(), exited(0)) << job.err();
  }
}

// Workers that are stopped cannot act on SIGTERM, and must not survive for it.
TEST(NothingIsLeft, OfWorkersThatWereStopped) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    const TemporaryTree folder;
    Job job(busy_job(folder, {"wait"}));
    ASSERT_TRUE(both_started(job, folder)) << job.err();
    for (const auto& [rank, stamp] : stamps(folder.path(), 0)) kill(-stamp.pid, SIGSTOP);
    job.signal(signal);
    EXPECT_EQ(job.wait(), signal == SIGKILL ? killed_by(SIGKILL) : exited(143)) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

// Sends `signal` to a launcher that starts and stops workers all the time, at arbitrary moments:
// before, between and during starts and stops. `check` looks at how it ended.
void at_any_moment(int signal, const std::function<void(const Ended&, Job&)>& check) {
  const unsigned seed = std::random_device{}();
  testing::Test::RecordProperty("seed", static_cast<int>(seed));
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> microseconds(0, 30'000);
  for (int run = 0; run < (full_tests() ? 1000 : 60); ++run) {
    const int delay = microseconds(random);
    Job job(ddprun({"--nproc-per-node=3", "--max-restarts=1000000"},
                   worker({"child", "on-rank", "1", "exit", "1", "wait"})));
    std::this_thread::sleep_for(std::chrono::microseconds(delay));
    job.signal(signal);
    const Ended ended = job.wait();
    check(ended, job);
    ASSERT_THAT(job.left_over(), IsEmpty()) << "signalled after " << delay << " us, seed " << seed;
  }
}

TEST(NothingIsLeft, WheneverTheLauncherIsKilled) {
  at_any_moment(SIGKILL, [](const Ended& ended, Job&) { EXPECT_EQ(ended, killed_by(SIGKILL)); });
}

TEST(NothingIsLeft, WheneverTheLauncherIsInterrupted) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "with it vfork() is fork(), and returns before the worker has its process group";
#endif
  at_any_moment(SIGINT, [](const Ended& ended, Job& job) {
    // Before the launcher has its handlers the signal simply ends it.
    EXPECT_TRUE(ended == exited(130) || ended == killed_by(SIGINT)) << ended << "\n" << job.err();
  });
}

// In a network of its own, if it can be had: elsewhere anybody may take the port that has become free.
TEST(NothingIsLeft, AfterTwoHundredStartsAndStops) {
  std::optional<Network> network;
  if (!Network::obstacle()) network.emplace(1);
  const TemporaryTree folder;
  const TemporaryTree temporary;
  for (int run = 0; run < (full_tests() ? 2000 : 200); ++run) {
    const JobSetup setup{.environment = {{"TMPDIR", temporary.path()}}};
    Job job(ddprun({"--nproc-per-node=2"}, worker({"environment", folder / "environment.{rank}"})),
            network ? network->on(0, setup) : setup);
    ASSERT_EQ(job.wait(), exited(0)) << job.err();
    ASSERT_THAT(job.processes(), IsEmpty()) << "run " << run;
    const auto environment = environment_in(folder / "environment.0");
    if (!network) continue;
    network->within(0, [&] {
      EXPECT_FALSE(is_listening(std::stoi(environment.at("MASTER_PORT")))) << "run " << run;
    });
  }
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path())) << "temporary files are left";
}

TEST(Signals, AnInheritedIgnoreOfHangupIsKept) {
  const TemporaryTree folder;
  Job job(ddprun({}, worker({"stamp", folder.path(), "until", folder / "go"})),
          {.ignored = {SIGHUP}});
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 1; }));
  job.signal(SIGHUP);
  EXPECT_EQ(job.wait(milliseconds(100)), Ended{}) << "nohup ddprun must survive the logout";
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

// A worker that saves its work and ends with 0 when it is told to stop has not finished the job.
TEST(Signals, WorkersThatEndWellWhenToldToStopDoNotHideTheStop) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2"},
                 worker({"end-well-on", "15", "stamp", folder.path(), "wait"})));
  ASSERT_TRUE(both_started(job, folder));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(143)) << job.err();
}

// The first one's time limit is over when the second one is seen: it is not taken for the end of
// the time that the kernel has for SIGKILL.
TEST(Signals, TwoAtOnceWithoutAGracePeriodLeaveTheKernelItsTimeToKill) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--shutdown-timeout=0"},
                 worker({"ignore", "2", "ignore", "15", "stamp", folder.path(), "wait"})));
  ASSERT_TRUE(both_started(job, folder));
  job.signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return process(job.pid())->state == 'T'; }));
  job.signal(SIGTERM);
  job.signal(SIGINT);
  job.signal(SIGCONT);
  EXPECT_THAT(job.wait(), AnyOf(exited(128 + SIGTERM), exited(128 + SIGINT))) << job.err();
}

TEST(Signals, StoppingAndContinuingTheLauncherReachesTheWorkers) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2"}, worker({"stamp", folder.path(), "until", folder / "go"})));
  ASSERT_TRUE(both_started(job, folder));
  const auto all_are = [&](bool stopped) {
    return eventually([&] {
      for (const auto& [rank, stamp] : stamps(folder.path(), 0)) {
        if ((process(stamp.pid)->state == 'T') != stopped) return false;
      }
      return (process(job.pid())->state == 'T') == stopped;
    });
  };
  job.signal(SIGTSTP);
  EXPECT_TRUE(all_are(/*stopped=*/true));
  job.signal(SIGCONT);
  EXPECT_TRUE(all_are(/*stopped=*/false));
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

}  // namespace
}  // namespace ddprun::test
