// Python programs that know nothing of ddprun run under it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/support/cluster.h"

namespace ddprun::test {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class Python : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(DDPRUN_PYTHON)) {
      GTEST_SKIP() << DDPRUN_PYTHON << " is not there: scripts/setup installs PyTorch in it";
    }
  }
  static std::string script(const std::string& name) {
    return DDPRUN_SOURCE_DIR "/tests/integration/" + name;
  }
  const std::string script_ = script("process_group.py");
  const JobSetup setup_{.environment = {{"PYTHON_EXEC", DDPRUN_PYTHON}}};
};

// Rank 0 hosts the store itself, at a port that the agent holds for it.
TEST_F(Python, FormsItAroundAStoreOfItsOwn) {
  JobSetup setup = setup_;
  setup.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1";
  Job job(ddprun({"--nproc-per-node=2", "--standalone"}, {script_}), setup);
  EXPECT_EQ(job.wait(seconds(90)), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("rank 0 of 2 has 3\n"));
  EXPECT_THAT(job.out(), HasSubstr("rank 1 of 2 has 3\n"));
}

// Under torchrun 2.11 half of these fail: its second round reads the addresses of the first.
TEST_F(Python, FormsItAgainAfterARestart) {
  if (!full_tests()) GTEST_SKIP() << "only with DDPRUN_TEST_FULL; on two nodes always";
  for (int run = 0; run < 20; ++run) {
    Job job(ddprun({"--nproc-per-node=2", "--max-restarts=1"}, {script_, "--die-once"}), setup_);
    EXPECT_EQ(job.wait(seconds(120)), exited(0)) << job.err();
    const std::string output = job.out();
    const auto first = output.find("rank 0 of 2 has 3\n");
    ASSERT_NE(first, std::string::npos) << output << job.err();
    EXPECT_NE(output.find("rank 0 of 2 has 3\n", first + 1), std::string::npos) << output;
  }
}

// Without a wait at the end every one of these is killed by SIGABRT, as plain scripts are under
// torchrun and ddprun alike.
TEST_F(Python, ARunPathWorkerThatEndsRightAfterACollectiveIsNotAborted) {
  const std::string path = script("gloo_at_exit.py");
  for (int run = 0; run < (full_tests() ? 20 : 1); ++run) {
    const int code = run % 2 == 0 ? 3 : 0;
    Job job(ddprun({"--nproc-per-node=2", "--run-path"}, {path, std::to_string(code)}), setup_);
    EXPECT_EQ(job.wait(seconds(120)), exited(code)) << job.err();
    EXPECT_THAT(job.out(), HasSubstr(" ends as __main__ ['" + std::to_string(code) + "']\n"));
  }
}

// The module needs neither PyTorch nor anything else.
TEST(PythonProgress, IsWhatTheEventOfAFailedWorkerSays) {
  const TemporaryTree folder;
  const JobSetup setup{.environment = {{"PYTHONPATH", DDPRUN_SOURCE_DIR "/worker_lib/python"},
                                       {"PYTHONDONTWRITEBYTECODE", "1"}}};
  const std::string script = DDPRUN_SOURCE_DIR "/tests/integration/progress.py";
  Job job(ddprun({"--events=" + folder / "events", "--no-python"}, {"/usr/bin/python3", script}),
          setup);
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_THAT(read_file(folder / "events"),
              AllOf(HasSubstr(R"("step":412,"total_steps":1000)"),
                    HasSubstr(R"("values":{"loss":2.5E-1,"learning rate":1E-3})")));

  Job alone(Command{"/usr/bin/python3", script}, setup);
  EXPECT_EQ(alone.wait(), exited(0)) << "without ddprun nothing happens: " << alone.err();
}

// The rank that dies is on one node, and the store of the next round on the other.
TEST_F(Python, FormsItOnTwoNodesAndAgainAfterARestart) {
  Cluster cluster({.options = {"--max-restarts=1"},
                   .environment = setup_.environment,
                   .program = {script_, "--die-once"}});
  cluster.start_all(2);
  EXPECT_THAT(cluster.wait(seconds(120)), Each(Pair(_, exited(0)))) << cluster.told();
  for (const int node : {0, 1}) {
    const std::string line = "rank " + std::to_string(node) + " of 2 has 3\n";
    EXPECT_EQ(cluster[node].out(), line + line) << cluster.told();
  }
}

// Every machine of its own, and no name server: PyTorch's client asks for names all the same.
TEST_F(Python, FormsItOnTwoNodesOfANetwork) {
  if (const auto& why = Network::obstacle()) GTEST_SKIP() << *why;
  Network network(2);
  Cluster cluster(
      {.meeting = Meeting::kStatic, .environment = setup_.environment, .program = {script_}},
      &network);
  cluster.start_all(2);
  EXPECT_THAT(cluster.wait(seconds(120)), Each(Pair(_, exited(0)))) << cluster.told();
  EXPECT_EQ(cluster[1].out(), "rank 1 of 2 has 3\n");
  EXPECT_THAT(network.left_over(), IsEmpty());
}

TEST_F(Python, TrainsWithDistributedDataParallel) {
  Job job(ddprun({"--nproc-per-node=2", "--standby=2"}, {script("ddp.py")}), setup_);
  EXPECT_EQ(job.wait(seconds(90)), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("rank 0: weights equal\n"));
  EXPECT_THAT(job.out(), HasSubstr("rank 1: weights equal\n"));
}

// The type and the message, and of the call stack of sixty frames its end.
TEST_F(Python, AnExceptionThatIsRecordedIsInTheReport) {
  Job job(ddprun({"--nproc-per-node=2", "--standby=2"}, {script("record.py")}), setup_);
  EXPECT_EQ(job.wait(seconds(90)), exited(1)) << job.err();
  const std::string err = job.err();
  const std::string report = err.substr(err.find("ddprun: "));
  EXPECT_THAT(report, HasSubstr("record.py FAILED: rank 1 "));
  EXPECT_THAT(report, HasSubstr("  its error\n    ValueError: lr must be positive, got -0.1\n"));
  EXPECT_LT(std::count(report.begin(), report.end(), '\n'), 40) << report;
}

class PythonsChildren : public Python {
 protected:
  // Two ranks, each with a child of torch.multiprocessing.spawn and two of multiprocessing.
  void start() {
    job_.emplace(ddprun({"--nproc-per-node=2"}, {script("children.py"), folder_.path()}), setup_);
    const auto all_started = [this] {
      for (const std::string rank : {"0", "1"}) {
        for (const std::string kind : {"spawned", "daemon_True", "daemon_False"}) {
          if (!std::filesystem::exists(folder_ / (rank + "." + kind))) return false;
        }
      }
      return true;
    };
    ASSERT_TRUE(job_->reaches(all_started, seconds(120))) << job_->err();
    ASSERT_GE(job_->processes().size(), 1U + 2 * 4U) << "keeper, workers, children";
  }

  const TemporaryTree folder_;
  std::optional<Job> job_;
};

TEST_F(PythonsChildren, GoWithAWorkerThatIsKilled) {
  start();
  kill(job_->workers().at(1), SIGKILL);
  EXPECT_EQ(job_->wait(), exited(137)) << job_->err();
  EXPECT_THAT(job_->left_over(), IsEmpty());
}

TEST_F(PythonsChildren, GoWithTheLauncherThatIsKilled) {
  start();
  job_->signal(SIGKILL);
  EXPECT_EQ(job_->wait(), killed_by(SIGKILL));
  EXPECT_THAT(job_->left_over(seconds(1)), IsEmpty());
}

}  // namespace
}  // namespace ddprun::test
