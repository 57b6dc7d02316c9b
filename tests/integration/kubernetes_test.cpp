// An Indexed Job without a cluster: each pod has a network and a host name of its own and ddprun as
// its process 1, with the variables that Kubernetes sets; the names of pods become known late, and
// a recreated pod has a new address under the old name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/network.h"

namespace ddprun::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

Command as_process_1(const Command& command) {
  Command whole{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"};
  whole.insert(whole.end(), command.begin(), command.end());
  return whole;
}

// The pods of the Job "train", below the service "train".
class Pods {
 public:
  explicit Pods(int machines) : network_(machines, /*with_names=*/false) {}

  // Pod `index`, on a machine where none is yet.
  Job& start(int index, std::map<std::string, std::string> more = {}) {
    const int machine = next_machine_++;
    const std::string host = "train-" + std::to_string(index);
    network_.rename(machine, host);
    machines_[index] = machine;
    more.insert({{"JOB_COMPLETION_INDEX", std::to_string(index)},
                 {"HOSTNAME", host},
                 {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                 {"PET_NNODES", "2"},
                 {"DDPRUN_TERMINATION_LOG", termination_log(index)},
                 {"DDPRUN_LOG_LEVEL", "info"}});
    write_file(termination_log(index), "");
    Command program{DDPRUN_MEETING_WORKER};
    const Command rest = worker({"environment", folder_ / "environment.{round}.{rank}", "stamp",
                                 stamps_->path(), "until", folder_ / "finish"});
    program.insert(program.end(), rest.begin(), rest.end());
    pods_[index] = std::make_unique<Job>(as_process_1(ddprun({}, program)),
                                         network_.on(machine, {.environment = more}));
    return *pods_[index];
  }

  // What the cluster's name server says from now on.
  void publish(const std::vector<int>& indices) {
    network_.forget_names();
    for (const int index : indices) {
      network_.add_name(machines_.at(index), "train-" + std::to_string(index) + ".train");
    }
  }

  // The workers of this round run, in the present set of pods; with a new one, rounds are numbered
  // from 0 again.
  bool runs(int round, std::size_t workers = 2) {
    return eventually([&] { return test::stamps(stamps_->path(), round).size() == workers; });
  }
  void begin_anew() { stamps_ = std::make_unique<TemporaryTree>(); }
  std::map<std::string, std::string> environment(int round, int rank) const {
    return environment_in(folder_ /
                          ("environment." + std::to_string(round) + "." + std::to_string(rank)));
  }

  Job& operator[](int index) { return *pods_.at(index); }
  // ddprun, which is process 1 there, as seen from here.
  pid_t agent(int index) {
    const auto children = children_of(pods_.at(index)->pid());
    return children.size() == 1 ? children.front().pid : -1;
  }
  std::string address(int index) const { return Network::address(machines_.at(index)); }
  std::string termination_log(int index) const {
    return folder_ / ("termination-log." + std::to_string(index));
  }
  void let_finish() { write_file(folder_ / "finish", ""); }
  std::vector<std::string> left_over() const { return network_.left_over(); }
  std::string told() const {
    std::string all;
    for (const auto& [index, pod] : pods_) {
      all += "--- pod " + std::to_string(index) + "\n" + pod->err();
    }
    return all;
  }

 private:
  Network network_;
  TemporaryTree folder_;
  std::unique_ptr<TemporaryTree> stamps_ = std::make_unique<TemporaryTree>();
  int next_machine_ = 0;
  std::map<int, int> machines_;
  std::map<int, std::unique_ptr<Job>> pods_;
};

class Kubernetes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto& why = Network::obstacle()) GTEST_SKIP() << *why;
    Job namespaces(as_process_1({"true"}));
    if (namespaces.wait() != exited(0)) GTEST_SKIP() << "no PID namespaces: " << namespaces.err();
  }

  void expect_good_end(Pods& pods) {
    pods.let_finish();
    for (const int index : {0, 1}) EXPECT_EQ(pods[index].wait(), exited(0)) << pods.told();
    EXPECT_THAT(pods.left_over(), IsEmpty());
  }
};

TEST_F(Kubernetes, PodsMeetAtPod0HoweverLateItsNameIsKnown) {
  Pods pods(2);
  Job& second = pods.start(1);
  ASSERT_TRUE(second.reaches([&] {
    return second.err().find("train-0.train") != std::string::npos;
  })) << pods.told();
  pods.start(0);
  pods.publish({0, 1});
  ASSERT_TRUE(pods.runs(0)) << pods.told();
  for (const int rank : {0, 1}) {
    auto environment = pods.environment(0, rank);
    EXPECT_EQ(environment["GROUP_RANK"], std::to_string(rank));  // the pod's index
    EXPECT_EQ(environment["WORLD_SIZE"], "2");
  }
  expect_good_end(pods);
}

TEST_F(Kubernetes, APodThatIsMadeAnewTakesThePlaceOfTheLostOne) {
  Pods pods(3);
  pods.start(0);
  pods.start(1);
  pods.publish({0, 1});
  ASSERT_TRUE(pods.runs(0)) << pods.told();
  kill(pods.agent(1), SIGKILL);  // and with process 1 the kernel ends all of the pod
  ASSERT_NE(pods[1].wait(), Ended{}) << pods.told();
  pods.start(1);
  pods.publish({0, 1});
  ASSERT_TRUE(pods.runs(1)) << pods.told();
  EXPECT_EQ(pods.environment(1, 1)["GROUP_RANK"], "1");
  EXPECT_THAT(pods[0].err(), HasSubstr("train-1"));
  expect_good_end(pods);
}

// Then all are made anew, as the manifest's failure policy has it.
TEST_F(Kubernetes, WithoutPod0TheOthersEndAndAllBeginAnew) {
  Pods pods(4);
  pods.start(0);
  pods.start(1);
  pods.publish({0, 1});
  ASSERT_TRUE(pods.runs(0)) << pods.told();
  kill(pods.agent(0), SIGKILL);
  EXPECT_EQ(pods[1].wait(), exited(kLeaderLost)) << pods.told();
  EXPECT_THAT(read_file(pods.termination_log(1)), HasSubstr("leader"));
  EXPECT_THAT(pods.left_over(), IsEmpty());
  pods.begin_anew();
  pods.start(1);  // for a while the name is that of the pod which is gone
  pods.start(0);
  pods.publish({0, 1});
  ASSERT_TRUE(pods.runs(0)) << pods.told();
  expect_good_end(pods);
}

TEST_F(Kubernetes, APodThatIsDeletedSaysSoInItsTerminationMessage) {
  Pods pods(2);
  pods.start(0);
  pods.start(1);
  pods.publish({0, 1});
  ASSERT_TRUE(pods.runs(0)) << pods.told();
  kill(pods.agent(1), SIGTERM);
  EXPECT_EQ(pods[1].wait(), exited(128 + SIGTERM)) << pods.told();
  EXPECT_THAT(read_file(pods.termination_log(1)), HasSubstr("STOPPED by SIGTERM"));
  EXPECT_EQ(read_file(pods.termination_log(0)), "");
  kill(pods.agent(0), SIGTERM);
  EXPECT_EQ(pods[0].wait(), exited(128 + SIGTERM)) << pods.told();
  EXPECT_THAT(pods.left_over(), IsEmpty());
}

// With c10d the others go on without it.
TEST_F(Kubernetes, AnElasticJobGoesOnWithoutThePodThatIsLostAndTakesTheNewOneIn) {
  const std::map<std::string, std::string> elastic{{"PET_NNODES", "1:2"},
                                                   {"PET_RDZV_BACKEND", "c10d"}};
  Pods pods(3);
  pods.start(1, elastic);
  pods.start(0, elastic);
  pods.publish({0, 1});
  ASSERT_TRUE(pods.runs(0)) << pods.told();
  EXPECT_EQ(pods.environment(0, 0)["MASTER_ADDR"], "train-0.train");
  kill(pods.agent(1), SIGKILL);
  ASSERT_TRUE(pods.runs(1, 1)) << pods.told();
  pods.start(1, elastic);
  pods.publish({0, 1});
  ASSERT_TRUE(pods.runs(2)) << pods.told();
  expect_good_end(pods);
}

// 30 s is what a pod has unless its manifest says otherwise.
TEST_F(Kubernetes, APodWhoseWorkersDoNotWantToEndEndsInTime) {
  if (!full_tests()) GTEST_SKIP() << "takes 20 s: DDPRUN_TEST_FULL=1";
  const TemporaryTree folder;
  Job job(as_process_1(
              ddprun({"--nnodes=1"}, worker({"ignore", "15", "stamp", folder.path(), "wait"}))),
          {.environment = {{"JOB_COMPLETION_INDEX", "0"}, {"HOSTNAME", "train-0"}}});
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 1; })) << job.err();
  kill(children_of(job.pid()).front().pid, SIGTERM);
  EXPECT_EQ(job.wait(seconds(30)), exited(128 + SIGTERM)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("get SIGKILL"));
}

// What is wrong with a pod's variables is its termination message too.
TEST_F(Kubernetes, APodWhoseVariablesCannotBeIsRefusedInOneSentence) {
  Pods pods(2);
  EXPECT_EQ(pods.start(1, {{"JOB_COMPLETION_INDEX", "one"}}).wait(), exited(2));
  EXPECT_THAT(read_file(pods.termination_log(1)),
              StartsWith("ddprun: JOB_COMPLETION_INDEX=one: it should be the number of this pod"));
  EXPECT_EQ(pods[1].err(), read_file(pods.termination_log(1)));
  EXPECT_EQ(pods.start(2).wait(), exited(2));
  EXPECT_THAT(read_file(pods.termination_log(2)),
              AllOf(HasSubstr("JOB_COMPLETION_INDEX"), HasSubstr("from 0 to 1")));
}

// Where Kubernetes puts it, without a variable: made here in a /dev of the test's own.
TEST_F(Kubernetes, TheTerminationMessageIsWhereKubernetesLooks) {
  const TemporaryTree folder;
  const std::string script =
      "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && : > /dev/termination-log && "
      "\"$@\"; code=$?; cp /dev/termination-log " +
      (folder / "message") + "; exit $code";
  Command command{"unshare", "--mount", "sh", "-c", script, "sh"};
  const Command words =
      ddprun({"-r", "3"}, worker({"complain", "the data is not there", "exit", "7"}));
  command.insert(command.end(), words.begin(), words.end());
  Job job(command, {.environment = {{"TMPDIR", folder.path()}}});
  EXPECT_EQ(job.wait(), exited(7)) << job.err();
  EXPECT_THAT(read_file(folder / "message"),
              AllOf(HasSubstr("ended with exit code 7"), HasSubstr("the data is not there")));
}

}  // namespace
}  // namespace ddprun::test
