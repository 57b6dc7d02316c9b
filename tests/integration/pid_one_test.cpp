// ddprun as the first process of a container: it must reap all orphans, and the kernel gives it no
// default action for signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// How a PID namespace can be made here, if at all.
std::optional<Command> new_namespace(std::string& refusal) {
  for (const bool as_user : {false, true}) {
    Command command{"unshare", "--pid", "--fork", "--mount-proc"};
    if (as_user) command.insert(command.begin() + 1, "--map-root-user");
    Command attempt = command;
    attempt.push_back("true");
    Job job(attempt);
    if (job.wait() == exited(0)) return command;
    refusal = job.err();
  }
  return std::nullopt;
}

class PidOne : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string refusal;
    unshare_ = new_namespace(refusal);
    if (!unshare_) GTEST_SKIP() << "no PID namespace can be made here: " << refusal;
  }

  void start(const std::vector<std::string>& options, const Command& program) {
    Command command = *unshare_;
    const Command words = ddprun(options, program);
    command.insert(command.end(), words.begin(), words.end());
    job_.emplace(command);
  }
  bool starts(std::size_t workers) {
    return job_->reaches([&] { return stamps(folder_.path(), 0).size() == workers; });
  }
  // As the outside sees it.
  pid_t launcher() const {
    const auto children = children_of(job_->pid());
    return children.size() == 1 ? children.front().pid : -1;
  }

  const TemporaryTree folder_;
  std::optional<Command> unshare_;
  std::optional<Job> job_;
};

TEST_F(PidOne, EndsWithItsWorkersCode) {
  for (const int code : {0, 7}) {
    start({"--nproc-per-node=2"}, worker({"on-rank", "1", "exit", std::to_string(code)}));
    EXPECT_EQ(job_->wait(), exited(code)) << job_->err();
  }
  start({}, worker({"signal", "11"}));
  EXPECT_EQ(job_->wait(), exited(139)) << job_->err();
}

TEST_F(PidOne, ReapsStrangers) {
  start({}, worker({"orphans", "20", "stranger", "daemon", "stamp", folder_.path(), "until",
                    folder_ / "go"}));
  ASSERT_TRUE(starts(1)) << job_->err();
  EXPECT_TRUE(eventually([&] {
    const auto children = children_of(launcher());
    return !children.empty() && std::none_of(children.begin(), children.end(),
                                             [](const auto& child) { return child.state == 'Z'; });
  }));
  write_file(folder_ / "go", "");
  EXPECT_EQ(job_->wait(), exited(0)) << job_->err();
  EXPECT_THAT(job_->left_over(), IsEmpty());
}

TEST_F(PidOne, PassesATerminationOn) {
  start({"--nproc-per-node=2"},
        {"/bin/sh", "-c",
         "trap ': > $0.told.$RANK; exit 0' TERM; : > $0.$RANK; while :; do sleep 0.01; done",
         folder_ / "worker"});
  const auto exist = [&](const std::string& name) {
    return std::filesystem::exists(folder_ / (name + "0")) &&
           std::filesystem::exists(folder_ / (name + "1"));
  };
  ASSERT_TRUE(job_->reaches([&] { return exist("worker."); })) << job_->err();
  kill(launcher(), SIGTERM);
  EXPECT_EQ(job_->wait(), exited(143)) << job_->err();
  EXPECT_TRUE(exist("worker.told."));
  EXPECT_THAT(job_->err(), HasSubstr("STOPPED by SIGTERM"));
  EXPECT_THAT(job_->left_over(), IsEmpty());
}

TEST_F(PidOne, RestartsAndReplacesItsKeeper) {
  start({"--nproc-per-node=2", "--max-restarts=1"},
        worker({"stamp", folder_.path(), "on-round", "1", "exit", "0", "wait"}));
  ASSERT_TRUE(starts(2)) << job_->err();
  const auto keeper = [&]() -> pid_t {
    for (const auto& child : children_of(launcher())) {
      if (child.name == "ddprun-keeper" && child.state != 'Z') return child.pid;
    }
    return -1;
  };
  const pid_t first = keeper();
  ASSERT_GT(first, 0);
  kill(first, SIGKILL);
  EXPECT_TRUE(job_->reaches([&] { return keeper() > 0 && keeper() != first; })) << job_->err();
  for (const auto& child : children_of(launcher())) {
    if (child.name == "ddprun_test_wor") {
      kill(child.pid, SIGKILL);
      break;
    }
  }
  EXPECT_EQ(job_->wait(), exited(0)) << job_->err();
}

}  // namespace
}  // namespace ddprun::test
