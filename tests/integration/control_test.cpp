// ddpctl status, logs, events, stop and restart of running jobs, from a shell on one of their
// nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/job.h"
#include "tests/support/terminal.h"

namespace ddprun::test {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kNoJob = 3;
constexpr int kSeveral = 4;
constexpr int kSilent = 5;
constexpr int kNotYours = 6;

// A folder for sockets that only the jobs of this test use.
class Control : public ::testing::Test {
 protected:
  JobSetup here() const { return {.environment = {{"DDPRUN_CONTROL_DIR", runtime_ / "ddprun"}}}; }
  std::map<std::string, std::string> environment() const { return here().environment; }

  // Two workers that have begun.
  std::unique_ptr<Job> start(const std::string& id, const std::vector<std::string>& more = {}) {
    const TemporaryTree* stamps_of = folders_.emplace_back(std::make_unique<TemporaryTree>()).get();
    std::vector<std::string> options{"--nproc-per-node=2", "--rdzv-id=" + id};
    options.insert(options.end(), more.begin(), more.end());
    auto job = std::make_unique<Job>(ddprun(options, worker({"stamp", stamps_of->path(), "wait"})),
                                     here());
    EXPECT_TRUE(job->reaches([&] { return stamps(stamps_of->path(), 0).size() == 2; }))
        << job->err();
    return job;
  }

  // What a job says may be written after its workers have begun: that is another thread's.
  static void expect_said(Job& job, const std::string& text) {
    EXPECT_TRUE(job.reaches([&] { return job.err().find(text) != std::string::npos; }))
        << "not said: " << text << "\n"
        << job.err();
  }

  Told ask(const std::vector<std::string>& arguments) const {
    return run_to_its_end(ddpctl(arguments), here());
  }
  json::object status_of(const std::string& job) const {
    const Told told = ask({"status", "--json", job});
    EXPECT_EQ(told.code, 0) << told.err;
    return told.code == 0 ? json::parse(told.out).as_object() : json::object();
  }

  TemporaryTree runtime_;
  std::vector<std::unique_ptr<TemporaryTree>> folders_;  // that workers write to, in every round
};

// ---- finding a job

TEST_F(Control, SaysThatNoJobRuns) {
  const Told told = ask({"status"});
  EXPECT_EQ(told.code, kNoJob);
  EXPECT_THAT(told.err, HasSubstr("no job of yours runs on this node"));
}

TEST_F(Control, ListsTheJobsThatThereAreWhereAnotherIsNamed) {
  const auto job = start("train-7");
  const Told told = ask({"status", "train-8"});
  EXPECT_EQ(told.code, kNoJob);
  EXPECT_THAT(told.err, AllOf(HasSubstr("no job 'train-8'"), HasSubstr("job 'train-7'"),
                              HasSubstr(std::to_string(job->pid()))));
}

TEST_F(Control, TwoJobsWithOneIdAreToldApartByTheirAgents) {
  const auto one = start("same");
  const auto two = start("same");
  const Told told = ask({"status", "same"});
  EXPECT_EQ(told.code, kSeveral);
  EXPECT_THAT(told.err, AllOf(HasSubstr("2 jobs are called 'same'"),
                              HasSubstr("\n  " + std::to_string(one->pid()) + "  job 'same'"),
                              HasSubstr("\n  " + std::to_string(two->pid()) + "  job 'same'")));
  for (const auto* each : {&one, &two}) {
    const json::object status = status_of(std::to_string((*each)->pid()));
    EXPECT_EQ(status.at("nodes").at(0).at("agent_pid"), (*each)->pid());
  }
  two->signal(SIGTERM);
  EXPECT_EQ(two->wait(), exited(143));
  EXPECT_EQ(status_of("same").at("nodes").at(0).at("agent_pid"), one->pid());
}

TEST_F(Control, WithoutANameSeveralJobsHaveToBeToldApart) {
  const auto one = start("one");
  EXPECT_EQ(ask({"status"}).code, 0);
  const auto two = start("two");
  const Told told = ask({"status"});
  EXPECT_EQ(told.code, kSeveral);
  EXPECT_THAT(told.err,
              AllOf(HasSubstr("several jobs run"), HasSubstr("'one'"), HasSubstr("'two'")));
}

TEST_F(Control, ASocketThatAKilledJobLeftIsKnownForWhatItIsAndReplaced) {
  {
    const auto job = start("killed");
    job->signal(SIGKILL);
    EXPECT_EQ(job->wait(), killed_by(SIGKILL));
  }
  const std::string socket = runtime_ / "ddprun/killed.sock";
  ASSERT_TRUE(std::filesystem::is_socket(socket));
  const Told told = ask({"status", "killed"});
  EXPECT_EQ(told.code, kNoJob);
  EXPECT_THAT(told.err, HasSubstr(socket + " was left over by a job that was killed"));

  const auto job = start("killed");
  EXPECT_EQ(status_of("killed").at("nodes").at(0).at("agent_pid"), job->pid());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(runtime_ / "ddprun"), {}), 1);
}

TEST_F(Control, NothingIsLeftOfTheSocketWhenAJobHasEnded) {
  const auto job = start("ends");
  const std::string socket = runtime_ / "ddprun/ends.sock";
  struct stat found {};
  ASSERT_EQ(::stat(socket.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat((runtime_ / "ddprun").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700U);
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), exited(143));
  EXPECT_FALSE(std::filesystem::exists(socket));
}

TEST_F(Control, AnIdThatIsNoFileNameIsFoundAllTheSame) {
  const auto job = start("../a b/ü");
  EXPECT_EQ(status_of("../a b/ü").at("job"), "../a b/ü");
  const auto other = start("../a b:ü");  // the same as a file's name
  EXPECT_EQ(status_of("../a b:ü").at("nodes").at(0).at("agent_pid"), other->pid());
}

TEST_F(Control, AFolderThatIsNotThisUsersAloneIsNotUsedAndTheJobRuns) {
  const std::string folder = runtime_ / "ddprun";
  ASSERT_EQ(::mkdir(folder.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  const auto job = start("open");
  expect_said(*job, "ddpctl cannot reach this job: " + folder + " can be entered by others");
  const Told told = ask({"status"});
  EXPECT_EQ(told.code, kNotYours);
  EXPECT_THAT(told.err, HasSubstr("chmod 700"));
}

TEST_F(Control, ALinkInThePlaceOfTheFolderIsNotFollowed) {
  const TemporaryTree elsewhere;
  ASSERT_EQ(::symlink(elsewhere.path().c_str(), (runtime_ / "ddprun").c_str()), 0);
  const auto job = start("linked");
  expect_said(*job, "a link is not followed");
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere.path()));
  EXPECT_EQ(ask({"status"}).code, kNotYours);
}

TEST_F(Control, WhatBelongsToAnotherUserIsNeitherUsedNorAsked) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  const std::string folder = runtime_ / "ddprun";
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(::chown(folder.c_str(), 4242, 4242), 0);
  {
    const auto job = start("theirs");
    expect_said(*job, "belongs to user 4242");
    const Told told = ask({"status"});
    EXPECT_EQ(told.code, kNotYours);
    EXPECT_THAT(told.err, HasSubstr(folder + " belongs to user 4242"));
  }
  ASSERT_EQ(::chown(folder.c_str(), 0, 0), 0);
  const auto job = start("socket");
  ASSERT_EQ(::chown((folder + "/socket.sock").c_str(), 4242, 4242), 0);
  const Told told = ask({"status", "socket"});
  EXPECT_EQ(told.code, kNotYours);
  EXPECT_THAT(told.err, HasSubstr("belongs to user 4242"));
}

TEST_F(Control, AJobThatHangsIsNamedWithWhatToDo) {
  const auto job = start("hangs");
  job->signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return process(job->pid())->state == 'T'; }));
  const Told told = ask({"status", "hangs"});
  job->signal(SIGCONT);
  EXPECT_EQ(told.code, kSilent);
  EXPECT_THAT(told.err,
              AllOf(HasSubstr("pid " + std::to_string(job->pid())), HasSubstr("does not answer")));
}

// It is listed without its name then, and what it says of itself comes before the answer.
TEST_F(Control, AJobThatIsSlowToSayWhoItIsAnswersWhatItWasAsked) {
  const auto job = start("slow");
  job->signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return process(job->pid())->state == 'T'; }));
  Job status(ddpctl({"status", "--json", "slow"}), here());
  std::this_thread::sleep_for(std::chrono::seconds(1));  // ddpctl waits half a second for it
  job->signal(SIGCONT);
  ASSERT_EQ(status.wait(), exited(0)) << status.err();
  EXPECT_EQ(json::parse(status.out()).at("nodes").as_array().size(), 1U) << status.out();
}

// ---- status

TEST_F(Control, StatusShowsRoundsNodesAndWorkers) {
  const auto job = start("shown");
  const json::object status = status_of("shown");
  EXPECT_EQ(status.at("job"), "shown");
  EXPECT_EQ(status.at("leader").at("state"), "running");
  EXPECT_EQ(status.at("leader").at("members").as_array().size(), 1U);
  EXPECT_TRUE(status.at("late").as_array().empty());
  const json::value& node = status.at("nodes").at(0);
  EXPECT_EQ(node.at("agent_pid"), job->pid());
  EXPECT_EQ(node.at("state"), "running");
  EXPECT_EQ(node.at("round"), 0);
  EXPECT_EQ(node.at("leads"), true);
  EXPECT_EQ(node.at("store").at("connections"), 0);
  ASSERT_EQ(node.at("workers").as_array().size(), 2U);
  std::vector<pid_t> pids;
  for (const auto& each : node.at("workers").as_array()) {
    EXPECT_EQ(each.at("state"), "running");
    EXPECT_TRUE(process(each.at("pid").to_number<pid_t>()));
  }
  EXPECT_EQ(node.at("events").as_array().size(), 2U) << "job_started, round_started";

  const Told told = ask({"status"});
  EXPECT_EQ(told.code, 0);
  EXPECT_THAT(told.out, ContainsRegex("job shown: round 0 runs for .*, 2 workers on 1 node\n"));
  EXPECT_THAT(told.out, HasSubstr("NODES  1 joined of 1; the leader is running\n"));
  EXPECT_THAT(told.out, ContainsRegex("WORKERS  2 running\n"));
  EXPECT_THAT(told.out, Not(HasSubstr("RESTARTS")));
}

TEST_F(Control, StatusShowsHowFarWorkersAreAndWhyThereWereRestarts) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--rdzv-id=steps", "--max-restarts=3"},
                 worker({"on-round", "0", "exit", "3", "link", "progress", "41/100", "stamp",
                         folder.path(), "wait"})),
          here());
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 1).size() == 2; })) << job.err();
  const json::object status = status_of("steps");
  const json::value& node = status.at("nodes").at(0);
  EXPECT_EQ(node.at("round"), 1);
  EXPECT_EQ(node.at("restarts"), 1);
  EXPECT_EQ(node.at("restart_totals").at(0).at("reason"), "worker_failed");
  EXPECT_EQ(node.at("restart_totals").at(0).at("downtime_us"), node.at("downtime_us"));
  EXPECT_EQ(node.at("workers").at(0).at("progress").at("step"), 41);
  const Told told = ask({"status"});
  EXPECT_THAT(told.out,
              ContainsRegex("restarts 1 of 3; start .* down after restarts: 1 worker failed "));
  EXPECT_THAT(told.out, HasSubstr("41 of 100"));
  EXPECT_THAT(told.out, ContainsRegex("RESTARTS  the latest\n.* round 1 .*ended with exit code 3"));
}

TEST_F(Control, StatusWatchesUntilTheJobHasEnded) {
  const auto job = start("watched");
  Job watch(ddpctl({"status", "--watch", "--json", "--interval=0.1"}), here());
  const auto lines = [&] {
    const std::string out = watch.out();
    return std::count(out.begin(), out.end(), '\n');
  };
  ASSERT_TRUE(watch.reaches([&] { return lines() >= 3; })) << watch.err();
  job->signal(SIGTERM);
  EXPECT_EQ(watch.wait(), exited(0)) << watch.err();
  EXPECT_THAT(watch.err(), HasSubstr("the job has ended"));
}

// ---- several nodes

class ControlOfNodes : public Control, public ::testing::WithParamInterface<Meeting> {
 protected:
  ClusterSetup setup(const std::string& nnodes = "2") const {
    ClusterSetup setup;
    setup.meeting = GetParam();
    setup.nnodes = nnodes;
    setup.environment = environment();
    return setup;
  }
};

TEST_P(ControlOfNodes, StatusFromAnyNodeShowsAll) {
  Cluster cluster(setup());
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  for (const int node : {0, 1}) {
    const json::object status = status_of(std::to_string(cluster[node].pid()));
    EXPECT_EQ(status.at("leader").at("members").as_array().size(), 2U);
    EXPECT_TRUE(status.at("late").as_array().empty()) << json::serialize(status);
    ASSERT_EQ(status.at("nodes").as_array().size(), 2U);
    EXPECT_GT(status.at("nodes").at(0).at("store").at("requests").to_number<int>(), 0)
        << "workers have met there";
    EXPECT_TRUE(status.at("nodes").at(1).at("store").is_null());
    for (const int rank : {0, 1}) {
      EXPECT_EQ(
          status.at("nodes").at(static_cast<std::size_t>(rank)).at("workers").at(0).at("rank"),
          rank);
    }
  }
  EXPECT_EQ(ask({"status"}).code, 0) << "two agents, one job";
}

TEST_P(ControlOfNodes, ANodeThatDoesNotAnswerIsLateAndNobodyWaitsForIt) {
  Cluster cluster(setup());
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  cluster[1].signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return process(cluster[1].pid())->state == 'T'; }));
  const json::object status = status_of(std::to_string(cluster[0].pid()));
  EXPECT_EQ(status.at("nodes").as_array().size(), 1U);
  ASSERT_EQ(status.at("late").as_array().size(), 1U);
  EXPECT_THAT(std::string(status.at("late").at(0).at("why").as_string()),
              HasSubstr("no answer within"));
  const Told told = ask({"status", std::to_string(cluster[0].pid())});
  EXPECT_THAT(told.out, HasSubstr("1 late"));
  cluster[1].signal(SIGCONT);
  const auto all_answer = [&] {
    return status_of(std::to_string(cluster[0].pid())).at("nodes").as_array().size() == 2;
  };
  EXPECT_TRUE(eventually(all_answer));
}

TEST_P(ControlOfNodes, StopEndsTheJobOnAllNodes) {
  Cluster cluster(setup());
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  const Told told = ask({"stop", std::to_string(cluster[1].pid())});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_EQ(told.out, "the job has ended with exit code 143\n");
  for (const auto& [node, ended] : cluster.wait()) EXPECT_EQ(ended, exited(143)) << cluster.told();
  for (const int node : {0, 1}) {
    EXPECT_THAT(cluster[node].err(),
                ContainsRegex("STOPPED by ddpctl stop \\(.+, pid [0-9]+ on .+\\)\n"));
  }
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

// Its workers have their own time, which the leader could not end: it has gone on without the node, or
// is dead.
TEST_F(Control, StopEndsAPreemptedNodeThatTheLeaderDoesNotHear) {
  for (const bool is_leader_dead : {false, true}) {
    SCOPED_TRACE(is_leader_dead ? "the leader is dead" : "the leader has gone on");
    Cluster cluster({.nnodes = "1:2",
                     .options = {"--preempt-signal=USR1", "--max-restarts=1"},
                     .environment = environment(),
                     .actions = {"catch", "10", "touch", "{folder}/deaf.{rank}", "until",
                                 "{folder}/finish", "exit", "0"}});
    cluster.start_all(2);
    ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(cluster.folder() / "deaf.1"); }));
    cluster[1].signal(SIGUSR1);
    ASSERT_TRUE(cluster[1].reaches([&] {
      return cluster[1].err().find("the job is preempted") != std::string::npos;
    })) << cluster.told();
    if (is_leader_dead) {
      cluster[0].signal(SIGKILL);
      ASSERT_EQ(cluster[0].wait(), killed_by(SIGKILL));
    } else {
      ::kill(cluster.workers(0).at(0).pid, SIGKILL);
      ASSERT_EQ(cluster.next_round(1), 1) << cluster.told();
    }
    const Told told = ask({"stop", std::to_string(cluster[1].pid())});
    if (!is_leader_dead) {
      EXPECT_EQ(told.code, kFailed);
      EXPECT_THAT(told.err, HasSubstr("this node is leaving the job"));
    }
    EXPECT_EQ(cluster[1].wait(), exited(113)) << cluster.told();
  }
}

TEST_P(ControlOfNodes, RestartBeginsANewRoundThatCostsNothing) {
  Cluster cluster(setup());  // without any budget
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  const Told told = ask({"restart", std::to_string(cluster[1].pid())});
  EXPECT_EQ(told.code, 0) << told.err << cluster.told();
  EXPECT_EQ(told.out, "round 1 runs\n");
  EXPECT_EQ(cluster.next_round(2), 1) << cluster.told();
  const json::object status = status_of(std::to_string(cluster[0].pid()));
  EXPECT_EQ(status.at("leader").at("restarts"), 0);
  EXPECT_EQ(status.at("nodes").at(0).at("restart_totals").at(0).at("reason"), "requested");
  EXPECT_THAT(cluster[0].err(), ContainsRegex("a restart was asked for: ddpctl restart \\(.+, pid "
                                              "[0-9]+ on .+\\)"));
  cluster.let_finish();
  for (const auto& [node, ended] : cluster.wait()) EXPECT_EQ(ended, exited(0)) << cluster.told();
}

// ---- nodes that take part in no round

// With an address of its own for each node, so that each is a host of its own.
class Drain : public ControlOfNodes {
 protected:
  void start(Cluster& cluster, int node) const {
    cluster.start(node, {"--local-addr=127.0.0." + std::to_string(node + 1)});
  }
  Told drain(Cluster& cluster, int node, std::vector<std::string> more = {}) const {
    more.insert(more.begin(),
                {"drain", "127.0.0." + std::to_string(node + 1), std::to_string(cluster[0].pid())});
    return ask(more);
  }
  std::string state_of(Cluster& cluster, int node) const {
    const std::string address = "127.0.0." + std::to_string(node + 1);
    const json::object status = status_of(std::to_string(cluster[0].pid()));
    for (const json::value& each : status.at("leader").at("members").as_array()) {
      if (each.at("address").as_string() == address)
        return std::string(each.at("state").as_string());
    }
    return "none";
  }
  void expect_good_end(Cluster& cluster) const {
    cluster.let_finish();
    for (const auto& [node, ended] : cluster.wait()) EXPECT_EQ(ended, exited(0)) << cluster.told();
  }
};

TEST_P(Drain, ASpareTakesTheNodesPlace) {
  Cluster cluster(setup("2"));
  for (const int node : {0, 1}) start(cluster, node);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  start(cluster, 2);
  expect_said(cluster[2], "this node waits");
  const Told told = drain(cluster, 1);
  EXPECT_EQ(told.code, 0) << told.err << cluster.told();
  EXPECT_THAT(told.out, HasSubstr("is left out\n"));
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  EXPECT_FALSE(cluster.first_ranks(1).contains(1)) << cluster.told();
  EXPECT_EQ(state_of(cluster, 1), "left_out");
  expect_said(cluster[1],
              "this node waits: it is left out while enough other nodes are there: "
              "ddpctl drain (");
  expect_said(cluster[0], "is left out: ddpctl drain (");
  expect_good_end(cluster);
}

TEST_P(Drain, AnElasticJobGoesOnWithFewerUntilTheNodeMayTakePartAgain) {
  Cluster cluster(setup("1:2"));
  start(cluster, 0);
  start(cluster, 1);
  ASSERT_GE(cluster.next_round(2), 0) << cluster.told();
  EXPECT_EQ(drain(cluster, 1, {"--now"}).code, 0);
  const int alone = cluster.next_round(1);
  ASSERT_GT(alone, 0) << cluster.told();
  const Told told = ask({"undrain", "127.0.0.2", std::to_string(cluster[1].pid())});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("(127.0.0.2) may take part again: ddpctl drain ("));
  EXPECT_EQ(cluster.next_round(2), alone + 1) << cluster.told();
  expect_good_end(cluster);
}

TEST_P(Drain, ANodeThatIsNeededStaysUntilAnotherIsThere) {
  Cluster cluster(setup("2"));
  for (const int node : {0, 1}) start(cluster, node);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  const Told told = drain(cluster, 1);
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.out,
              HasSubstr(" takes part until another node is there, and is left out then\n"));
  EXPECT_EQ(state_of(cluster, 1), "in_round");
  start(cluster, 2);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(1), ::testing::Contains(::testing::Key(2)));
  const Told unknown = ask({"drain", "nowhere", std::to_string(cluster[0].pid())});
  EXPECT_EQ(unknown.code, kFailed);
  EXPECT_THAT(unknown.err, HasSubstr("no node of the job is called 'nowhere'; there are "));
  expect_good_end(cluster);
}

TEST_P(Drain, TheThirdFailureOfANodeGivesItsPlaceToASpare) {
  ClusterSetup failing = setup("2");
  failing.options = {"--max-restarts=9"};
  Cluster cluster(failing);
  for (const int node : {0, 1}) start(cluster, node);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  start(cluster, 2);
  expect_said(cluster[2], "this node waits");
  for (int round = 0; round < 3; ++round) {
    const auto workers = cluster.workers(round);
    const int rank = cluster.first_ranks(round).at(1);
    ::kill(workers.at(rank).pid, SIGSEGV);
    ASSERT_EQ(cluster.next_round(2), round + 1) << cluster.told();
  }
  EXPECT_FALSE(cluster.first_ranks(3).contains(1)) << cluster.told();
  expect_said(cluster[0], "is left out: 3 failures within an hour led to it");
  expect_good_end(cluster);
}

INSTANTIATE_TEST_SUITE_P(Nodes, Drain, ::testing::Values(Meeting::kC10d, Meeting::kLeader),
                         ::testing::PrintToStringParamName());

INSTANTIATE_TEST_SUITE_P(Nodes, ControlOfNodes,
                         ::testing::Values(Meeting::kStatic, Meeting::kC10d, Meeting::kLeader),
                         ::testing::PrintToStringParamName());

TEST_F(Control, StatusSaysWhichNodesAreMissing) {
  ClusterSetup setup;
  setup.meeting = Meeting::kStatic;
  setup.nnodes = "3";
  setup.environment = environment();
  Cluster cluster(setup);
  cluster.start(0);
  cluster.start(2);
  const auto both_are_there = [&] {
    Job asked(ddpctl({"status", "--json", std::to_string(cluster[0].pid())}), here());
    if (asked.wait() != exited(0)) return false;
    const json::value leader = json::parse(asked.out()).at("leader");
    return leader.is_object() && leader.at("members").as_array().size() == 2;
  };
  ASSERT_TRUE(cluster[0].reaches(both_are_there)) << cluster.told();
  const json::object status = status_of(std::to_string(cluster[0].pid()));
  EXPECT_EQ(status.at("leader").at("state"), "gathering");
  EXPECT_EQ(status.at("leader").at("missing"), 1);
  EXPECT_EQ(status.at("leader").at("missing_ranks"), json::array({1}));
  const Told told = ask({"status", std::to_string(cluster[2].pid())});
  EXPECT_THAT(told.out, AllOf(HasSubstr("no round has begun yet"),
                              HasSubstr("2 joined of 3, 1 missing (rank 1)")));
  const Told restart = ask({"restart", std::to_string(cluster[2].pid())});
  EXPECT_EQ(restart.code, kFailed);
  EXPECT_THAT(restart.err, HasSubstr("no round runs"));
  EXPECT_EQ(ask({"stop", std::to_string(cluster[2].pid())}).code, 0);
  for (const auto& [node, ended] : cluster.wait()) EXPECT_EQ(ended, exited(143)) << cluster.told();
}

// ---- stop, restart, events of one node

TEST_F(Control, StopWithoutWaitingReturnsWhileWorkersAreInTheirGrace) {
  const TemporaryTree folder;
  Job job(
      ddprun({"--shutdown-timeout=60"}, worker({"ignore", "15", "stamp", folder.path(), "wait"})),
      here());
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 1; })) << job.err();
  EXPECT_EQ(ask({"stop", "--no-wait"}).code, 0);
  ASSERT_TRUE(
      job.reaches([&] { return status_of("none").at("nodes").at(0).at("state") == "stopping"; }));
  const Told restart = ask({"restart"});
  EXPECT_EQ(restart.code, kFailed);
  EXPECT_THAT(restart.err, HasSubstr("stopping"));
  job.signal(SIGTERM);
  job.signal(SIGINT);  // the second one means now
  EXPECT_EQ(job.wait(), exited(143)) << job.err();
}

TEST_F(Control, TheReportSaysWhichUserAndProcessHaveAskedForWhat) {
  JobSetup setup = here();
  setup.environment["USER"] = "ann";
  Job job(ddprun({}, worker({"wait"})), setup);
  ASSERT_TRUE(job.reaches([&] { return !job.workers().empty(); })) << job.err();
  Job restart(ddpctl({"restart"}), here());
  ASSERT_EQ(restart.wait(), exited(0)) << restart.err();
  Job stop(ddpctl({"stop"}), here());
  ASSERT_EQ(stop.wait(), exited(0)) << stop.err();
  EXPECT_EQ(job.wait(), exited(143));
  const std::string user = ::geteuid() == 0 ? "root" : "ann";
  const auto by = [&user](const std::string& what, const Job& asker) {
    return "ddpctl " + what + " (" + user + ", pid " + std::to_string(asker.pid()) + ")\n";
  };
  EXPECT_THAT(job.err(), AllOf(HasSubstr("a restart was asked for: " + by("restart", restart)),
                               HasSubstr("STOPPED by " + by("stop", stop)),
                               HasSubstr("  asked for   " + by("restart", restart)),
                               HasSubstr("  restarts    1 by request, this was round 1\n")));
  EXPECT_THAT(stop.err(), ContainsRegex("the job is 'none', .*worker, running, pid " +
                                        std::to_string(job.pid()) + ", in /.*, started 20"));
}

TEST_F(Control, RestartWaitsForTheFirstStepOfTheNewRound) {
  const TemporaryTree folder;
  Job job(ddprun({}, worker({"link", "on-round", "1", "until", folder / "go", "progress", "5/100",
                             "touch", folder / "stepped.{round}", "wait"})),
          here());
  ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(folder / "stepped.0"); }))
      << job.err();
  Job restart(ddpctl({"restart"}), here());
  ASSERT_TRUE(restart.reaches([&] {
    return restart.err().find("waiting for its first step") != std::string::npos;
  })) << restart.err();
  EXPECT_THAT(restart.err(), HasSubstr("waiting until the workers of round 0 have ended"));
  EXPECT_EQ(restart.out(), "round 1 runs\n");
  write_file(folder / "go", "");
  EXPECT_EQ(restart.wait(), exited(0)) << restart.err();
  EXPECT_THAT(restart.out(), HasSubstr("its first step was done "));
}

TEST_F(Control, ReplaceSaysWhyNoStandbyCanTakeThePlace) {
  const auto none = start("none");
  EXPECT_THAT(ask({"replace", "--rank=0", "none"}).err,
              HasSubstr("cannot be replaced in place: --max-restarts is 0, so there can be no"));
  const auto some = start("some", {"--max-restarts=1"});
  EXPECT_THAT(ask({"replace", "--rank=0", "some"}).err,
              HasSubstr("cannot be replaced in place: --standby is off"));
}

TEST_F(Control, AJobIsFoundByItsProgramToo) {
  const auto job = start("one");
  EXPECT_EQ(status_of("ddprun_test_worker").at("nodes").at(0).at("agent_pid"), job->pid());
  EXPECT_EQ(ask({"status", "trainer"}).code, kNoJob);
  const auto two = start("two");
  const Told told = ask({"status", "ddprun_test_worker"});
  EXPECT_EQ(told.code, kSeveral);
  EXPECT_THAT(told.err,
              AllOf(HasSubstr("2 jobs run ddprun_test_worker"), HasSubstr("job 'one', "),
                    HasSubstr("job 'two', "), HasSubstr(", in /"), HasSubstr(", started 20")));
}

TEST_F(Control, EventsAreThoseOfTheFileAndGoOnUntilTheEnd) {
  const auto job = start("told");
  Job follow(ddpctl({"events", "-f"}), here());
  ASSERT_TRUE(
      follow.reaches([&] { return follow.out().find("round_started") != std::string::npos; }));
  EXPECT_EQ(ask({"restart"}).code, 0);
  EXPECT_EQ(ask({"stop"}).code, 0);
  EXPECT_EQ(job->wait(), exited(143));
  EXPECT_EQ(follow.wait(), exited(0)) << follow.err();
  std::vector<std::string> names;
  std::istringstream lines(follow.out());
  for (std::string line; std::getline(lines, line);) {
    names.emplace_back(json::parse(line).at("event").as_string());
  }
  EXPECT_THAT(
      names, ::testing::ElementsAre("job_started", "round_started", "requested", "round_stopping",
                                    "worker_exited", "worker_exited", "round_started", "restarted",
                                    "requested", "round_stopping", "worker_exited", "worker_exited",
                                    "finished"));
}

// ---- logs

TEST_F(Control, LogsAreReadFromTheFilesOfAllNodesAndFollowedIntoTheNextRound) {
  const TemporaryTree logs;
  ClusterSetup setup;
  setup.environment = environment();
  setup.options = {"--redirects=3", "--log-dir=" + logs.path()};
  setup.actions = {"print", "out of {rank} in {round}", "complain", "err of {rank} in {round}",
                   "until", "{folder}/finish",          "print",    "last of {rank}"};
  Cluster cluster(setup);
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  const std::string agent = std::to_string(cluster[0].pid());
  const auto all_is_there = [&] {
    const std::string out = ask({"logs", agent}).out;
    return out.find("[0] out of 0 in 0\n") != std::string::npos &&
           out.find("[0] err of 0 in 0\n") != std::string::npos &&
           out.find("[1] out of 1 in 0\n") != std::string::npos &&
           out.find("[1] err of 1 in 0\n") != std::string::npos;
  };
  EXPECT_TRUE(eventually(all_is_there)) << ask({"logs", agent}).out;
  EXPECT_THAT(ask({"logs", "--rank=1", agent}).out,
              AnyOf("out of 1 in 0\nerr of 1 in 0\n", "err of 1 in 0\nout of 1 in 0\n"));

  Job follow(ddpctl({"logs", "-f", "--rank=1", agent}), here());
  const auto has_told = [&](const std::string& line) {
    return follow.reaches([&] { return follow.out().find(line) != std::string::npos; });
  };
  ASSERT_TRUE(has_told("err of 1 in 0\n")) << follow.err();
  EXPECT_EQ(ask({"restart", agent}).code, 0);
  ASSERT_TRUE(has_told("err of 1 in 1\n")) << follow.out() << follow.err();
  ASSERT_TRUE(has_told("out of 1 in 1\n")) << follow.out() << follow.err();
  Job follow_own(ddpctl({"logs", "-f", "--rank=0", agent}), here());
  ASSERT_TRUE(follow_own.reaches(
      [&] { return follow_own.out().find("err of 0 in 1\n") != std::string::npos; }));
  cluster.let_finish();
  for (const auto& [node, ended] : cluster.wait()) EXPECT_EQ(ended, exited(0)) << cluster.told();
  EXPECT_EQ(follow_own.wait(), exited(0)) << follow_own.err();
  EXPECT_THAT(follow_own.out(), HasSubstr("last of 0\n")) << "the node's own logs are told whole";
  EXPECT_EQ(follow.wait(), exited(0)) << follow.err();
  EXPECT_THAT(follow.out(), Not(HasSubstr("of 0")));
}

TEST_F(Control, WithoutFilesThereAreTheLatestLinesOfStderr) {
  const TemporaryTree folder;
  Job job(ddprun({"--rdzv-id=bare"},
                 worker({"print", "to the terminal", "complain", "kept", "stamp", folder.path(),
                         "until", folder / "go", "complain", "later", "wait"})),
          here());
  ASSERT_TRUE(job.reaches([&] { return job.err().find("kept") != std::string::npos; }));
  const Told told = ask({"logs"});
  EXPECT_EQ(told.code, 0);
  EXPECT_EQ(told.out, "[0] kept\n");
  EXPECT_THAT(told.err,
              HasSubstr("stdout of rank 0 is not kept, because it does not pass through"));
  Job follow(ddpctl({"logs", "-f"}), here());
  ASSERT_TRUE(follow.reaches([&] { return follow.out() == "[0] kept\n"; }));
  write_file(folder / "go", "");
  EXPECT_TRUE(follow.reaches([&] { return follow.out() == "[0] kept\n[0] later\n"; }))
      << follow.out() << follow.err();
}

// A terminal obeys escape sequences; it gets colours, the end of a progress bar, and the rest as text.
TEST_F(Control, OfWhatWorkersPrintATerminalGetsTheColoursAndWithRawAllOfIt) {
  const TemporaryTree folder;
  const std::string line = "\x1b[31mred\x1b]0;title\x07 \x1b[2J";
  Job job(ddprun({}, worker({"complain", " 1 %\r99 %", "complain", line, "stamp", folder.path(),
                             "wait"})),
          here());
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 1; })) << job.err();
  ASSERT_TRUE(job.reaches([&] { return job.err().find("title") != std::string::npos; }));
  const auto seen_with = [&](const std::vector<std::string>& options, const std::string& no_color) {
    Terminal terminal;
    JobSetup setup = here();
    setup.environment["TERM"] = "xterm";
    setup.environment["NO_COLOR"] = no_color;
    setup.stdout_fd = terminal.fd();
    Command command = ddpctl({"logs", "--rank=0"});
    command.insert(command.end(), options.begin(), options.end());
    Job logs(command, setup);
    EXPECT_EQ(logs.wait(), exited(0)) << logs.err();
    return terminal.seen();
  };
  EXPECT_EQ(seen_with({}, ""), "99 %\n\x1b[31mred\\x1b]0;title\\x07 \\x1b[2J\x1b[0m\n");
  EXPECT_EQ(seen_with({}, "1"), "99 %\nred\\x1b]0;title\\x07 \\x1b[2J\n");
  EXPECT_EQ(seen_with({"--raw"}, ""), " 1 %\r99 %\n" + line + "\n");
  EXPECT_EQ(ask({"logs", "--rank=0"}).out, "99 %\n" + line + "\n") << "no terminal";
  EXPECT_EQ(ask({"logs", "--rank=0", "--raw"}).out, " 1 %\r99 %\n" + line + "\n");
  EXPECT_EQ(ask({"logs", "--rank=0", "--tail", "1"}).out, line + "\n");
}

TEST_F(Control, StreamsThatAreNotKeptAreToldInOneLineForAllRanks) {
  const auto job = start("many");
  const std::string line =
      "ddpctl: stdout of ranks 0 and 1 is not kept, because it does not pass through ddprun; start "
      "the job with --redirects=3 or --tee=3 to keep it\n";
  EXPECT_EQ(ask({"logs"}).err, line);
  Job follow(ddpctl({"logs", "-f"}), here());
  EXPECT_TRUE(follow.reaches([&] { return follow.err() == line; })) << follow.err();
}

TEST_F(Control, RanksThatAreNotThereAreRefused) {
  const auto job = start("few");
  const Told told = ask({"logs", "--rank=2"});
  EXPECT_EQ(told.code, kFailed);
  EXPECT_THAT(told.err, HasSubstr("there is no rank 2; the job has 2 workers"));
  EXPECT_EQ(ask({"logs", "--rank=x"}).code, kUsage);
  EXPECT_EQ(ask({"logs", "--lines=-1"}).code, kUsage);
}

// ---- clients that are up to no good

class Stranger {
 public:
  explicit Stranger(const std::string& path)
      : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    is_connected_ =
        ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    const timeval deadline{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof deadline);
  }
  ~Stranger() { ::close(fd_); }
  bool is_connected() const { return is_connected_; }
  // False: it is no longer listened to.
  bool say(const std::string& text) const {
    return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
  }
  // The error by which that ends.
  int say_until_dropped(const std::string& text) const {
    while (::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) >= 0) {
    }
    return errno;
  }
  std::string hear() const {
    std::string all;
    char buffer[4096];
    for (ssize_t count; (count = ::recv(fd_, buffer, sizeof buffer, 0)) > 0;) {
      all.append(buffer, static_cast<std::size_t>(count));
      if (all.back() == '\n') break;
    }
    return all;
  }

 private:
  int fd_;
  bool is_connected_ = false;
};

TEST_F(Control, WhatIsNoRequestIsAnsweredSo) {
  const auto job = start("asked");
  const Stranger stranger(runtime_ / "ddprun/asked.sock");
  ASSERT_TRUE(stranger.is_connected());
  for (const std::string request :
       {"hello\n", "[]\n", "{}\n", "{\"ask\":7}\n", "\n", "{\"ask\":\n"}) {
    ASSERT_TRUE(stranger.say(request));
    EXPECT_THAT(stranger.hear(), StartsWith("{\"error\":\"a request is a line of JSON")) << request;
  }
  ASSERT_TRUE(stranger.say("{\"ask\":\"dance\"}\n"));
  EXPECT_THAT(stranger.hear(), HasSubstr("does not know the request 'dance'"));
  ASSERT_TRUE(stranger.say("{\"ask\":\"logs\"}\n"));
  EXPECT_THAT(stranger.hear(), HasSubstr("the question for logs cannot be read"));
  ASSERT_TRUE(stranger.say(std::string(20'000, 'x')));
  EXPECT_THAT(stranger.hear(), HasSubstr("at most 8 KiB"));
  EXPECT_EQ(stranger.hear(), "") << "that is the end";
  EXPECT_EQ(ask({"status"}).code, 0);
}

TEST_F(Control, WhoDoesNotReadIsDroppedAndNobodyElseNotices) {
  const auto job = start("deaf");
  const Stranger stranger(runtime_ / "ddprun/deaf.sock");
  ASSERT_TRUE(stranger.is_connected());
  EXPECT_EQ(stranger.say_until_dropped("{\"ask\":\"" + std::string(4000, 'x') + "\"}\n"), EPIPE);
  EXPECT_EQ(ask({"status"}).code, 0);
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), exited(143));
}

TEST_F(Control, EachClientHasOneQuestionOfAKindUnderWay) {
  const auto job = start("asked");
  const Stranger stranger(runtime_ / "ddprun/asked.sock");
  ASSERT_TRUE(stranger.is_connected());
  ASSERT_TRUE(stranger.say("{\"ask\":\"status\"}\n{\"ask\":\"status\"}\n"));
  std::string heard = stranger.hear();
  while (!heard.empty() && std::ranges::count(heard, '\n') < 2) heard += stranger.hear();
  EXPECT_THAT(heard, HasSubstr("has asked for 'status' already"));
  EXPECT_THAT(heard, HasSubstr("\"nodes\":"));
  const std::string logs = R"({"ask":"logs","ranks":[],"lines":1,"is_final":false,"places":[],)"
                           R"("follow":true})"
                           "\n";
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(stranger.say(logs));
  while (heard.find("reads logs already") == std::string::npos) {
    const std::string more = stranger.hear();
    ASSERT_NE(more, "") << heard;
    heard += more;
  }
  EXPECT_EQ(ask({"status"}).code, 0);
}

// So that a crowd of them is no more work for all nodes than one.
TEST_F(Control, ThoseThatFollowLogsShareTheQuestionsOfOne) {
  constexpr int kFollowers = 4;
  constexpr int kAnswers = 3;
  Job job(ddprun({"--rdzv-id=followed", "--no-python"},
                 {"sh", "-c", "while :; do echo a line >&2; sleep 0.01; done"}),
          here());
  expect_said(job, "a line");
  std::vector<std::unique_ptr<Stranger>> followers;
  for (int i = 0; i < kFollowers; ++i) {
    followers.push_back(std::make_unique<Stranger>(runtime_ / "ddprun/followed.sock"));
    ASSERT_TRUE(followers.back()->say(
        R"({"ask":"logs","ranks":[],"lines":1,"is_final":false,"places":[],"follow":true})"
        "\n"));
    ASSERT_THAT(followers.back()->hear(), HasSubstr("a line"));
  }
  const Stranger& first = *followers.front();
  first.hear();  // what was asked before the last one came
  first.hear();
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < kAnswers; ++i) ASSERT_THAT(first.hear(), HasSubstr("a line"));
  // One alone gets an answer each 200 ms.
  EXPECT_GE(std::chrono::steady_clock::now() - begun, kAnswers * (kFollowers - 1) * 200ms);
}

// Each of these rounds has 9 KiB of events.
TEST_F(Control, WhoFollowsEventsAndDoesNotReadIsToldHowManyItMissed) {
  const TemporaryTree folder;
  const std::string program = "trap '' USR2; [ -e " + (folder / "go") + " ] || { touch " +
                              (folder / "begun") + "; while [ ! -e " + (folder / "go") +
                              " ]; do sleep 0.01; done; }; "
                              "[ $TORCHELASTIC_RESTART_COUNT -lt 60 ] || { touch " +
                              (folder / "done") +
                              "; exec sleep 1000; }; printf '%05000d' 7 "
                              "> $TORCHELASTIC_ERROR_FILE; exit 1";
  Job job(ddprun({"--max-restarts=60", "--rdzv-id=chatty", "--no-python"}, {"sh", "-c", program}),
          here());
  ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(folder / "begun"); })) << job.err();
  const Stranger stranger(runtime_ / "ddprun/chatty.sock");
  ASSERT_TRUE(stranger.say("{\"ask\":\"events\",\"follow\":true}\n{\"ask\":\"who\"}\n"));
  ASSERT_THAT(stranger.hear(), HasSubstr("\"job\":\"chatty\""));
  write_file(folder / "go", "");
  ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(folder / "done"); })) << job.err();
  std::string heard;
  ASSERT_TRUE(eventually([&] {
    ::kill(job.pid(), SIGUSR2);  // an event
    heard += stranger.hear();
    return heard.find("\"event\":\"signal\"") != std::string::npos;
  }));
  const std::size_t at = heard.find("\"event\":\"events_lost\"");
  ASSERT_NE(at, std::string::npos);
  EXPECT_LT(at, heard.find("\"event\":\"signal\""));
}

TEST_F(Control, ThereIsABoundOnClients) {
  const auto job = start("loved");
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 32; ++i) {
    crowd.push_back(std::make_unique<Stranger>(runtime_ / "ddprun/loved.sock"));
    ASSERT_TRUE(crowd.back()->say("{\"ask\":\"who\"}\n"));
    ASSERT_THAT(crowd.back()->hear(), HasSubstr("\"job\":\"loved\""));
  }
  const Stranger one_too_many(runtime_ / "ddprun/loved.sock");
  EXPECT_THAT(one_too_many.hear(), HasSubstr("too many clients"));
  crowd.pop_back();
  EXPECT_TRUE(eventually([&] { return ask({"status"}).code == 0; }));
}

}  // namespace
}  // namespace ddprun::test
