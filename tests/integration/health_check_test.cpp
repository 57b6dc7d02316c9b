// Health checks of a node (--health-check): before it joins, in the background, and after a failure. A command of the test,
// or ddprun's own checks of a tree of files. The tests' checks are due after parts of a second.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kCannotRun = 114;
// What must not wait for a check: the checks here have their thirty seconds, unless a test gives less.
constexpr seconds kAtOnce{8};

class HealthCheck : public ::testing::Test {
 protected:
  std::vector<std::string> options(const std::string& check,
                                   std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"--health-check=" + check, "--events=" + (folder_ / "events")});
    return more;
  }
  // The control folder is of the test's, so that ddpctl finds this job alone.
  JobSetup setup(std::map<std::string, std::string> environment = {}) const {
    environment["DDPRUN_CONTROL_DIR"] = folder_ / "control";
    return {.environment = std::move(environment)};
  }
  JobSetup soon() const { return setup({{"DDPRUN_TEST_MINUTE_MS", "20"}}); }

  // Fit until the file `bad` is there, whose text is then the last line. Says that it runs.
  std::string command() const {
    return "echo run >>" + (folder_ / "runs") + "; echo looking; test ! -e " + (folder_ / "bad") +
           " || { cat " + (folder_ / "bad") + "; exit 1; }";
  }
  // The first run is fit, and the next ones hang with a child, until a file `go` is there.
  std::string hangs_later() const {
    return "test -e " + (folder_ / "first") + " || { touch " + (folder_ / "first") +
           "; exit 0; }; test -e " + (folder_ / "go") + " && exit 0; sleep 1000 & echo $! >" +
           (folder_ / "new") + "; mv " + (folder_ / "new") + " " + (folder_ / "hangs") + "; wait";
  }
  std::size_t runs() const { return count_of("run\n", read_file(folder_ / "runs")); }
  bool is_there(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  std::vector<boost::json::object> events(const std::string& name,
                                          const std::string& file = "events") const {
    std::vector<boost::json::object> found;
    std::istringstream lines(read_file(folder_ / file));
    for (std::string line; std::getline(lines, line);) {
      boost::json::object event = boost::json::parse(line).as_object();
      if (event.at("event").as_string() == name) found.push_back(std::move(event));
    }
    return found;
  }
  // The events of these names, in their order.
  std::vector<std::string> order_of(const std::vector<std::string>& names) const {
    std::vector<std::string> found;
    std::istringstream lines(read_file(folder_ / "events"));
    for (std::string line; std::getline(lines, line);) {
      const std::string name(boost::json::parse(line).at("event").as_string());
      if (std::ranges::count(names, name) > 0) found.push_back(name);
    }
    return found;
  }
  void expect_refused(Job& job, const std::string& sentence) const {
    EXPECT_EQ(job.wait(), exited(kCannotRun)) << job.err();
    EXPECT_THAT(job.err(), AllOf(HasSubstr("this node is not fit for the job: " + sentence),
                                 HasSubstr("; repair it or take another one")));
    EXPECT_THAT(events("round_started"), IsEmpty());
    EXPECT_THAT(events("health"), SizeIs(1));
    EXPECT_THAT(job.left_over(), IsEmpty());
  }

  const TemporaryTree folder_;
};

// ---- before the node joins

TEST_F(HealthCheck, AFitNodeIsCheckedBeforeItsWorkersStart) {
  Job job(ddprun(options(command() + "; touch " + (folder_ / "checked")),
                 worker({"unless", folder_ / "checked", "exit", "3", "exit", "0"})),
          setup());
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(runs(), 1U);
  EXPECT_EQ(job.err(), "");
}

TEST_F(HealthCheck, AnUnfitNodeDoesNotJoinAndSaysWhy) {
  write_file(folder_ / "bad", "a line before\nthe disk is \x1b[31mbroken\n\n");
  Job job(ddprun(options(command()), worker({"exit", "0"})), setup());
  expect_refused(job, "the health check '" + command() +
                          "' ended with exit code 1: the disk is \\x1b[31mbroken");
  EXPECT_THAT(job.err(), Not(HasSubstr("a line before")));
  EXPECT_EQ(events("health")[0].at("severity"), "unfit");
}

TEST_F(HealthCheck, ItsErrorsCountAsOutput) {
  Job job(ddprun(options("echo out; echo 'it is on stderr' >&2; exit 9"), worker({"exit", "0"})),
          setup());
  EXPECT_EQ(job.wait(), exited(kCannotRun)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("ended with exit code 9: it is on stderr;"));
}

TEST_F(HealthCheck, OneThatSaysNothingIsNamedByItsEnd) {
  Job job(ddprun(options("kill -SEGV $$"), worker({"exit", "0"})), setup());
  expect_refused(job, "the health check 'kill -SEGV $$' ended with SIGSEGV");
}

TEST_F(HealthCheck, OneThatHangsIsKilledWithItsChildrenAndIsAFinding) {
  write_file(folder_ / "first", "");
  Job job(ddprun(options(hangs_later()), worker({"exit", "0"})),
          setup({{"DDPRUN_TEST_HEALTH_LIMIT_MS", "1500"}}));
  expect_refused(job, "the health check '" + hangs_later() + "' did not end within 1.5 s");
  const auto child = static_cast<pid_t>(std::stol(read_file(folder_ / "hangs")));
  EXPECT_TRUE(eventually([&] {
    const auto info = process(child);
    return !info || info->state == 'Z';
  }));
}

TEST_F(HealthCheck, OneThatCannotBeExecutedIsAFinding) {
  write_file(folder_ / "check", "#!/bin/sh\n");
  Job job(ddprun(options((folder_ / "check") + " --all"), worker({"exit", "0"})), setup());
  expect_refused(job,
                 "the health check '" + (folder_ / "check") + " --all' ended with exit code 126: ");
  EXPECT_THAT(job.err(), HasSubstr("Permission denied"));
  Job alone(ddprun(options(folder_ / "check"), worker({"exit", "0"})), setup());
  EXPECT_EQ(alone.wait(), exited(2)) << "that is seen before";
  EXPECT_THAT(alone.err(), HasSubstr("is no program"));
}

TEST_F(HealthCheck, OneThatWritesMuchIsReadToItsLastLine) {
  const std::string much = "head -c 100000000 /dev/zero | tr '\\0' x; echo";
  Job fit(ddprun(options(much), worker({"exit", "0"})), setup());
  EXPECT_EQ(fit.wait(), exited(0)) << fit.err();
  Job unfit(ddprun(options(much + "; echo broken; exit 1"), worker({"exit", "0"})), setup());
  EXPECT_EQ(unfit.wait(), exited(kCannotRun));
  EXPECT_THAT(unfit.err(), HasSubstr("ended with exit code 1: broken;"));
  Job long_line(ddprun(options(much + " -n; exit 1"), worker({"exit", "0"})), setup());
  EXPECT_EQ(long_line.wait(), exited(kCannotRun));
  EXPECT_LT(long_line.err().size(), 4000U);
}

TEST_F(HealthCheck, ASignalEndsTheFirstCheck) {
  write_file(folder_ / "first", "");
  Job job(ddprun(options(hangs_later()), worker({"exit", "0"})), setup());
  ASSERT_TRUE(job.reaches([&] { return is_there("hangs"); })) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(kAtOnce), exited(130)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// A check that ended while the agent was stopped is not late.
TEST_F(HealthCheck, AnAgentThatWasStoppedGivesItTimeAnew) {
  Job job(ddprun(options("touch " + (folder_ / "asked") + "; while test ! -e " + (folder_ / "go") +
                         "; do sleep 0.02; done"),
                 worker({"exit", "0"})),
          setup({{"DDPRUN_TEST_HEALTH_LIMIT_MS", "2000"}}));
  ASSERT_TRUE(job.reaches([&] { return is_there("asked"); })) << job.err();
  job.signal(SIGSTOP);
  const auto stopped = steady_clock::now();
  ASSERT_FALSE(eventually([] { return false; }, milliseconds(3500)));
  write_file(folder_ / "go", "");
  ASSERT_TRUE(eventually([&] { return steady_clock::now() - stopped > milliseconds(3700); }));
  job.signal(SIGCONT);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.err(), "");
}

TEST_F(HealthCheck, ItDoesNotOutliveAKilledAgent) {
  write_file(folder_ / "first", "");
  Job job(ddprun(options(hangs_later()), worker({"exit", "0"})), setup());
  ASSERT_TRUE(job.reaches([&] { return is_there("hangs"); })) << job.err();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), killed_by(SIGKILL));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// ---- in the background

TEST_F(HealthCheck, ANodeThatBecomesUnfitSaysSoOnceAndItsWorkersGoOn) {
  Job job(
      ddprun(options(command()), worker({"touch", folder_ / "began", "until", folder_ / "finish"})),
      soon());
  ASSERT_TRUE(job.reaches([&] { return is_there("began") && runs() >= 3; })) << job.err();
  EXPECT_EQ(job.err(), "");
  write_file(folder_ / "bad", "the disk is broken\n");
  ASSERT_TRUE(job.reaches([&] { return events("unfit_node").size() == 1; })) << job.err();
  const std::size_t before = runs();
  ASSERT_TRUE(job.reaches([&] { return runs() >= before + 3; })) << job.err();
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(count_of("this node is not fit for the job any more: ", job.err()), 1U) << job.err();
  ASSERT_THAT(events("unfit_node"), SizeIs(1));
  EXPECT_THAT(std::string(events("unfit_node")[0].at("why").as_string()),
              HasSubstr("ended with exit code 1: the disk is broken"));
  EXPECT_EQ(events("unfit_node")[0].at("node"), events("unfit_node")[0].at("host"));
}

// The loop answers ddpctl meanwhile, and a stop does not wait.
TEST_F(HealthCheck, OneThatHangsInTheBackgroundHoldsNothingUp) {
  Job job(ddprun(options(hangs_later()), worker({"wait"})), soon());
  ASSERT_TRUE(job.reaches([&] { return is_there("hangs"); })) << job.err();
  const Told told = run_to_its_end(ddpctl({"status"}), setup());
  EXPECT_EQ(told.code, 0) << told.err;
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(kAtOnce), exited(130)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(HealthCheck, TheEndOfTheJobDoesNotWaitForIt) {
  Job job(ddprun(options(hangs_later()), worker({"until", folder_ / "hangs", "exit", "0"})),
          soon());
  EXPECT_EQ(job.wait(kAtOnce), exited(0)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(HealthCheck, ASpareIsCheckedAsWell) {
  Cluster cluster({.nnodes = "1", .environment = {{"DDPRUN_TEST_MINUTE_MS", "20"}}});
  cluster.start(0);
  ASSERT_EQ(cluster.next_round(1), 0) << cluster.told();
  Job& spare = cluster.start(1, options(command()));
  ASSERT_TRUE(spare.reaches([&] { return runs() >= 3; })) << cluster.told();
  write_file(folder_ / "bad", "the disk is broken\n");
  ASSERT_TRUE(spare.reaches([&] { return events("unfit_node").size() == 1; })) << cluster.told();
  cluster.let_finish();
  EXPECT_THAT(cluster.wait(), ElementsAre(std::pair(0, exited(0)), std::pair(1, exited(0))))
      << cluster.told();
}

// ---- after a failure

TEST_F(HealthCheck, TheRestartWaitsForTheAnswerAndTheNodeIsUnfitFirst) {
  const std::string check = "test ! -e " + (folder_ / "failed.0") + " || { touch " +
                            (folder_ / "asked") + "; while test ! -e " + (folder_ / "go") +
                            "; do sleep 0.02; done; echo 'the disk is broken'; exit 1; }";
  Job job(ddprun(options(check, {"--max-restarts=1"}),
                 worker({"on-round", "0", "touch", folder_ / "failed.0", "on-round", "0", "exit",
                         "7", "touch", folder_ / "second"})),
          setup());
  ASSERT_TRUE(job.reaches([&] { return is_there("asked"); })) << job.err();
  EXPECT_FALSE(job.reaches([&] { return is_there("second"); }, milliseconds(700))) << "it waits";
  write_file(folder_ / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_TRUE(is_there("second"));
  EXPECT_THAT(order_of({"round_started", "unfit_node"}),
              ElementsAre("round_started", "unfit_node", "round_started"));
}

TEST_F(HealthCheck, ARestartWaitsNoLongerThanTheLimit) {
  Job job(ddprun(options(hangs_later(), {"--max-restarts=1"}),
                 worker({"on-round", "0", "exit", "7", "touch", folder_ / "second"})),
          setup({{"DDPRUN_TEST_HEALTH_LIMIT_MS", "1500"}}));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_TRUE(is_there("second"));
  ASSERT_THAT(events("unfit_node"), SizeIs(1)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("did not end within 1.5 s"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(HealthCheck, AStopDoesNotWaitWhileARestartDoes) {
  Job job(ddprun(options(hangs_later(), {"--max-restarts=1"}), worker({"exit", "7"})),
          setup({{"DDPRUN_LOG_LEVEL", "info"}}));
  ASSERT_TRUE(job.reaches([&] {
    return is_there("hangs") &&
           job.err().find("the restart waits for its health check") != std::string::npos;
  })) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(kAtOnce), exited(130)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(HealthCheck, AUsersStopDoesNotWaitWhileARestartDoes) {
  Job job(ddprun(options(hangs_later(), {"--max-restarts=1"}), worker({"exit", "7"})), setup());
  ASSERT_TRUE(job.reaches([&] { return is_there("hangs"); })) << job.err();
  const Told told = run_to_its_end(ddpctl({"stop"}), setup());
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_NE(job.wait(kAtOnce), (Ended{})) << job.err();
  EXPECT_THAT(events("round_started"), SizeIs(1));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(HealthCheck, AJobThatFailsNamesWhatWasFound) {
  Job job(ddprun(options(command()),
                 worker({"touch", folder_ / "began", "until", folder_ / "finish", "exit", "7"})),
          soon());
  ASSERT_TRUE(job.reaches([&] { return is_there("began"); })) << job.err();
  write_file(folder_ / "bad", "the disk is broken\n");
  ASSERT_TRUE(job.reaches([&] { return events("unfit_node").size() == 1; })) << job.err();
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(7)) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("  health      the health check of "),
                               HasSubstr(" said: the health check '")));
}

TEST_F(HealthCheck, OnlyTheNodeWhoseWorkerFailedFirstIsChecked) {
  Cluster cluster(
      {.options = {"--max-restarts=1"},
       .actions = {"on-rank", "1", "on-round", "0", "exit", "7", "until", "{folder}/finish"}});
  for (const int node : {0, 1}) {
    const std::string name = std::to_string(node);
    cluster.start(node, {"--health-check=echo run >>" + (folder_ / ("runs" + name)),
                         "--events=" + (folder_ / ("events" + name))});
  }
  int round = cluster.next_round(2);  // the first one may have been too short to be seen
  if (round == 0) round = cluster.next_round(2);
  ASSERT_EQ(round, 1) << cluster.told();
  cluster.let_finish();
  EXPECT_THAT(cluster.wait(), ElementsAre(std::pair(0, exited(0)), std::pair(1, exited(0))))
      << cluster.told();
  for (const std::string node : {"0", "1"}) {
    const auto exited = events("worker_exited", "events" + node);
    ASSERT_THAT(exited, Not(IsEmpty()));
    const bool has_failed = exited[0].at("exit_code") == 7;
    EXPECT_EQ(count_of("run\n", read_file(folder_ / ("runs" + node))), has_failed ? 2U : 1U)
        << node;
  }
}

TEST_F(HealthCheck, AnUnfitNodeIsLeftOutOfTheJob) {
  Cluster cluster({.nnodes = "1:2", .environment = {{"DDPRUN_TEST_MINUTE_MS", "20"}}});
  cluster.start(0, {"--local-addr=127.0.0.1"});
  cluster.start(1, {"--local-addr=127.0.0.2", "--health-check=test ! -e " + (folder_ / "bad") +
                                                  " || { echo broken; false; }"});
  int round = cluster.next_round(2);
  ASSERT_GE(round, 0) << cluster.told();
  write_file(folder_ / "bad", "");
  round = cluster.next_round(1);
  ASSERT_GT(round, 0) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(round), ElementsAre(std::pair(0, 0)));
  ASSERT_TRUE(cluster[0].reaches([&] {
    return cluster[0].err().find("is left out: the health check '") != std::string::npos;
  })) << cluster.told();
  cluster.let_finish();
  EXPECT_THAT(cluster.wait(), ElementsAre(std::pair(0, exited(0)), std::pair(1, exited(0))))
      << cluster.told();
}

// ---- ddprun's own checks

class HealthCheckAuto : public HealthCheck {
 protected:
  JobSetup on_tree(std::map<std::string, std::string> environment = {}) const {
    environment["DDPRUN_TEST_HEALTH_ROOT"] = tree_.path();
    environment["DDPRUN_TEST_MINUTE_MS"] = "20";
    return setup(std::move(environment));
  }
  const TemporaryTree tree_;
};

TEST_F(HealthCheckAuto, OnThisMachineAJobRuns) {
  Job job(ddprun(options("auto"), worker({"exit", "0"})), setup());
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(events("unfit_node"), IsEmpty());
}

TEST_F(HealthCheckAuto, AnXidAfterTheStartMakesTheNodeUnfit) {
  const std::string old = "3,1,5,-;NVRM: Xid (PCI:0000:c1:00): 79, it was before\n";
  tree_.write("dev/kmsg", old);
  Job job(ddprun(options("auto"), worker({"until", folder_ / "finish"})), on_tree());
  ASSERT_TRUE(job.reaches([&] { return events("round_started").size() == 1; })) << job.err();
  EXPECT_THAT(events("unfit_node"), IsEmpty());
  tree_.write("dev/kmsg", old + "3,2,6,-;NVRM: Xid (PCI:0000:c2:00): 79, pid=1, fallen\n");
  ASSERT_TRUE(job.reaches([&] { return events("unfit_node").size() == 1; })) << job.err();
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("this node is not fit for the job any more: the NVIDIA driver "
                                   "has reported Xid 79 of the GPU at 0000:c2:00: the GPU has "
                                   "fallen off the bus"));
}

TEST_F(HealthCheckAuto, AWarningIsSaidOnceAndIsInTheReportOfAFailure) {
  const std::string counter = "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed";
  tree_.write(counter, "1\n");
  Job job(ddprun(options("auto"), worker({"until", folder_ / "finish", "exit", "7"})), on_tree());
  ASSERT_TRUE(job.reaches([&] { return events("round_started").size() == 1; })) << job.err();
  int value = 1;
  ASSERT_TRUE(job.reaches([&] {
    tree_.write(counter, std::to_string(++value) + "\n");
    return events("health").size() == 1;
  })) << job.err();
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(7)) << job.err();
  const std::string sentence = "InfiniBand mlx5_0 port 1: link_downed grows";
  EXPECT_EQ(count_of("the health check says: " + sentence, job.err()), 1U) << job.err();
  EXPECT_THAT(job.err(), HasSubstr(" said: " + sentence + "\n"));
  EXPECT_EQ(events("health")[0].at("severity"), "warning");
  EXPECT_THAT(events("unfit_node"), IsEmpty());
}

// The open of a FIFO waits as a dead device does.
TEST_F(HealthCheckAuto, OneThatHangsNamesWhatItLookedAt) {
  tree_.write("sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "1\n");
  const std::string fifo = tree_ / "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  Job job(ddprun(options("auto"), worker({"exit", "0"})),
          on_tree({{"DDPRUN_TEST_HEALTH_LIMIT_MS", "1500"}}));
  expect_refused(job,
                 "the health check 'auto' did not end within 1.5 s: the last that it looked "
                 "at is InfiniBand");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they have to come first
TEST_F(HealthCheckAuto, AMountThatHangsIsNamedAndHoldsNothingUp) {
  const std::string work = folder_ / "the_work";
  std::filesystem::create_directory(work);
  JobSetup hanging = on_tree({{"DDPRUN_TEST_HEALTH_LIMIT_MS", "1500"},
                              {"LD_PRELOAD", DDPRUN_HANGING_FILES},
                              {"DDPRUN_TEST_HANGS", work},
                              {"DDPRUN_TEST_HANGS_WHILE", folder_ / "hangs"}});
  hanging.directory = work;
  Job job(ddprun(options("auto"), worker({"until", folder_ / "finish"})), hanging);
  ASSERT_TRUE(job.reaches([&] { return events("round_started").size() == 1; })) << job.err();
  write_file(folder_ / "hangs", "");
  ASSERT_TRUE(job.reaches([&] { return events("unfit_node").size() == 1; })) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(kAtOnce), exited(130)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("the health check 'auto' did not end within 1.5 s: the last "
                                   "that it looked at is the file system of " +
                                   work));
  EXPECT_THAT(job.left_over(), IsEmpty());
}
#endif

TEST_F(HealthCheckAuto, TheRoleIsForDdprunItself) {
  const Told told = run_to_its_end({ddprun({})[0], "--health-check-run"}, {.stdin_text = "x"});
  EXPECT_EQ(told.code, 2);
  EXPECT_THAT(told.out, HasSubstr("this is for ddprun itself"));
}

}  // namespace
}  // namespace ddprun::test
