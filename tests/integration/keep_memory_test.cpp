// --keep-memory: what workers have in the node's memory outlives their ddprun, whichever way it ends, for the next
// one of the same job; and nothing of it is left behind. The workers are shells, which need no snapshots to write
// there; that a training continues from it is in snapshot_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr const char* kMemory = "/proc/self/fd/$DDPRUN_SNAPSHOT_FD";

class KeepMemory : public ::testing::Test {
 protected:
  JobSetup here(std::map<std::string, std::string> more = {}) const {
    more["DDPRUN_CONTROL_DIR"] = runtime_ / "ddprun";
    return {.environment = std::move(more),
            .removed_variables = {"KUBERNETES_SERVICE_HOST", "NOTIFY_SOCKET"}};
  }
  // A shell that appends `text` to what is in the memory, and then does this.
  static Command shell(const std::string& text, const std::string& then,
                       const std::string& program = "/bin/sh") {
    return {program, "-c", "printf %s '" + text + "' >>" + kMemory + "; " + then};
  }
  static Command ddprun_of(const std::string& id, const Command& program,
                           const std::string& time = "600") {
    return ddprun({"--rdzv-id=" + id, "--keep-memory=" + time, "--no-python"}, program);
  }
  // Writes into the memory, says so in this file, and waits.
  std::string ready() const { return runtime_ / "ready"; }
  Command writes(const std::string& text) const {
    return shell(text, "echo >" + ready() + "; exec sleep 1000");
  }
  // Started, has written, and was killed.
  std::unique_ptr<Job> killed(const std::string& id, const std::string& text,
                              const std::string& time = "600") {
    std::filesystem::remove(ready());
    auto job = std::make_unique<Job>(ddprun_of(id, writes(text), time), here());
    EXPECT_TRUE(job->reaches([&] { return std::filesystem::exists(ready()); })) << job->err();
    job->signal(SIGKILL);
    EXPECT_EQ(job->wait(), killed_by(SIGKILL));
    return job;
  }
  // What the next ddprun of that job finds.
  Told found_by_next(const std::string& id, const std::string& program = "/bin/sh") {
    return run_to_its_end(ddprun_of(id, {program, "-c", std::string("cat ") + kMemory}), here());
  }
  std::vector<std::string> sockets() const {
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(runtime_ / "ddprun", none)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  Told ctl(const std::vector<std::string>& words) const {
    return run_to_its_end(ddpctl(words), here());
  }

  const TemporaryTree runtime_;
};

TEST_F(KeepMemory, OutlivesAKilledDdprunAndNothingIsLeftAfterASuccess) {
  const auto first = killed("j", "one ");
  const auto second = killed("j", "two ");
  EXPECT_THAT(first->left_over(), IsEmpty()) << "the second one has it";
  const Told third = found_by_next("j");
  EXPECT_EQ(third.code, 0);
  EXPECT_EQ(third.out, "one two ");
  EXPECT_EQ(third.err, "");
  EXPECT_THAT(second->left_over(), IsEmpty());
  EXPECT_THAT(sockets(), IsEmpty());
  EXPECT_EQ(found_by_next("j").out, "");
}

TEST_F(KeepMemory, OutlivesAFailureAndAStopAndTheReportSaysHowToFreeIt) {
  const std::string sentence =
      "ddprun: 1 MiB of snapshots in memory are kept for the next ddprun of job 'j', for 600 s; "
      "'ddpctl forget j' frees them\n";
  Job failed(ddprun_of("j", shell("one ", "exit 7")), here());
  EXPECT_EQ(failed.wait(), exited(7));
  EXPECT_THAT(failed.err(), HasSubstr(sentence));
  Job stopped(ddprun_of("j", writes("two ")), here());
  ASSERT_TRUE(stopped.reaches([&] { return std::filesystem::exists(ready()); })) << stopped.err();
  stopped.signal(SIGTERM);
  EXPECT_EQ(stopped.wait(), exited(128 + SIGTERM));
  EXPECT_THAT(stopped.err(), HasSubstr(sentence));
  EXPECT_EQ(found_by_next("j").out, "one two ");
  EXPECT_THAT(failed.left_over(), IsEmpty());
  EXPECT_THAT(stopped.left_over(), IsEmpty());
}

TEST_F(KeepMemory, IsNotKeptIfNothingWasWrittenOrItWasNotAskedFor) {
  Job empty(ddprun_of("j", {"/bin/sh", "-c", "exit 7"}), here());
  EXPECT_EQ(empty.wait(), exited(7));
  EXPECT_THAT(empty.err(), Not(HasSubstr("kept")));
  EXPECT_THAT(empty.left_over(), IsEmpty());
  Job unasked(ddprun({"--rdzv-id=j", "--max-restarts=1", "--final-exit-codes=7", "--no-python"},
                     shell("one ", "exit 7")),
              here());
  EXPECT_EQ(unasked.wait(), exited(7)) << unasked.err();
  EXPECT_THAT(unasked.left_over(), IsEmpty());
  EXPECT_THAT(sockets(), IsEmpty());
}

TEST_F(KeepMemory, IsNotTakenByADdprunWithoutTheOption) {
  const auto first = killed("j", "one ");
  const Told without = run_to_its_end(ddprun({"--rdzv-id=j", "--max-restarts=1", "--no-python"},
                                             {"/bin/sh", "-c", std::string("cat ") + kMemory}),
                                      here());
  EXPECT_EQ(without.out + without.err, "");
  EXPECT_EQ(found_by_next("j").out, "one ");
}

TEST_F(KeepMemory, OfAnotherProgramIsNamedAndLeftAlone) {
  const auto first = killed("j", "one ");
  const Told other = found_by_next("j", "/bin/bash");
  EXPECT_EQ(other.code, 0);
  EXPECT_EQ(other.out, "");
  EXPECT_THAT(
      other.err,
      EndsWith("ddprun: the memory kept of job 'j' is of another program, /bin/sh; it is not "
               "used; 'ddpctl forget j' frees it\n"));
  EXPECT_EQ(count_of("\n", other.err), 1U) << other.err;
  EXPECT_EQ(found_by_next("j").out, "one ");
}

TEST_F(KeepMemory, LeavesNothingWhenItsTimeIsOver) {
  const auto job = killed("j", "one ", "0.3");
  EXPECT_THAT(job->left_over(), IsEmpty());
  EXPECT_THAT(sockets(), SizeIs(1)) << "of the ddprun that was killed; the next one takes the name";
  EXPECT_EQ(found_by_next("j").out, "");
  EXPECT_THAT(sockets(), IsEmpty());
}

TEST_F(KeepMemory, GoesBackToEachOfTwoNodesOnOneMachine) {
  ClusterSetup setup{.meeting = Meeting::kStatic, .nnodes = "2"};
  setup.options = {"--keep-memory=600", "--rdzv-id=j", "--no-python"};
  setup.environment = here().environment;
  setup.program = {"/bin/sh", "-c",
                   std::string("to={folder}/saw.$GROUP_RANK; printf %s $GROUP_RANK >>") + kMemory +
                       "; cat " + kMemory + " >$to.tmp; mv $to.tmp $to; exec sleep 1000"};
  Cluster cluster(setup);
  const auto saw = [&](int node) {
    return read_file(cluster.folder() / ("saw." + std::to_string(node)));
  };
  for (const bool is_first : {true, false}) {
    // The second time in the other order, so that whoever comes first could take the wrong one.
    for (const int node : is_first ? std::vector{0, 1} : std::vector{1, 0}) cluster.start(node);
    const std::string zeroes = is_first ? "0" : "00";
    const std::string ones = is_first ? "1" : "11";
    EXPECT_TRUE(eventually([&] { return saw(0) == zeroes && saw(1) == ones; }))
        << saw(0) << " and " << saw(1) << "\n"
        << cluster.told();
    for (const int node : {1, 0}) {
      cluster[node].signal(SIGKILL);
      cluster[node].wait();
    }
  }
  EXPECT_EQ(ctl({"forget", "j"}).code, 0);
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

TEST_F(KeepMemory, IsShownAndForgottenByDdpctl) {
  EXPECT_EQ(ctl({"forget"}).code, 3);
  EXPECT_EQ(ctl({"forget", "j"}).code, 3);
  const auto first = killed("j", "one ");
  const Told status = ctl({"status", "j"});
  EXPECT_EQ(status.code, 3);
  EXPECT_THAT(status.err,
              AllOf(HasSubstr("no job 'j' runs on this node"),
                    ContainsRegex("job 'j': its ddprun has ended; 1 MiB are kept for another "
                                  "[0-9]+ s \\('ddpctl forget j' frees them\\)")));
  EXPECT_THAT(ctl({"status", "other"}).err, Not(HasSubstr("kept")));
  const auto second = killed("k", "two ");
  const Told several = ctl({"forget"});
  EXPECT_EQ(several.code, 4);
  EXPECT_THAT(several.err, AllOf(HasSubstr("job 'j'"), HasSubstr("job 'k'")));
  EXPECT_THAT(ctl({"doctor", "--timeout=5", "--worker=/bin/true"}).out,
              ContainsRegex("kept memory .*0 MiB of job 'j' for another [0-9]+ s.*job 'k'"));
  EXPECT_EQ(ctl({"forget", std::to_string(first->pid())}).code, 0) << "by its agent";
  const Told last = ctl({"forget"});
  EXPECT_EQ(last.code, 0) << last.err;
  EXPECT_EQ(last.out, "the memory of job 'k' is free\n");
  EXPECT_THAT(first->left_over(), IsEmpty());
  EXPECT_THAT(second->left_over(), IsEmpty());
  EXPECT_EQ(found_by_next("j").out, "");
}

TEST_F(KeepMemory, OfAJobThatRunsIsNotForgotten) {
  Job job(ddprun_of("j", writes("one ")), here());
  ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(ready()); })) << job.err();
  const Told told = ctl({"forget", "j"});
  EXPECT_EQ(told.code, 3);
  EXPECT_THAT(told.err, HasSubstr("it is in use, because the job runs"));
  const Told second = found_by_next("j");
  EXPECT_EQ(second.out, "") << "what another ddprun of that name uses";
  job.signal(SIGKILL);
  job.wait();
  EXPECT_EQ(found_by_next("j").out, "one ");
}

TEST_F(KeepMemory, AKeeperThatHangsDelaysTheNextDdprunAFewSeconds) {
  const auto first = killed("j", "one ");
  const auto holder = [&]() -> pid_t {
    for (const pid_t pid : first->processes()) {
      const auto info = process(pid);
      if (info && info->name == "ddprun-memory") return pid;
    }
    return 0;
  };
  ASSERT_TRUE(eventually([&] { return holder() != 0; }));
  kill(holder(), SIGSTOP);
  const Told next = found_by_next("j");
  EXPECT_EQ(next.code, 0);
  EXPECT_EQ(next.out, "");
  EXPECT_THAT(next.err, HasSubstr("its keeper does not answer"));
  EXPECT_EQ(ctl({"forget", "j"}).code, 5);
  kill(holder(), SIGCONT);
  EXPECT_EQ(found_by_next("j").out, "one ");
}

TEST_F(KeepMemory, IsRefusedInAPodInOneSentence) {
  JobSetup pod = here();
  pod.removed_variables.clear();
  pod.environment["KUBERNETES_SERVICE_HOST"] = "10.0.0.1";
  const Told told = run_to_its_end(ddprun_of("j", {"/bin/sh", "-c", "exit 0"}), pod);
  EXPECT_EQ(told.code, 0);
  EXPECT_EQ(told.err,
            "ddprun: warning: --keep-memory has no effect: Kubernetes ends all processes of a pod "
            "with its ddprun, so no memory can outlive it\n");
}

}  // namespace
}  // namespace ddprun::test
