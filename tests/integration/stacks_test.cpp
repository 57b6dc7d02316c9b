// ddpctl stacks of running jobs. The debuggers are scripts of this test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "agent/query/stack_query.h"
#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using agent::WorkerStacks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// What a debugger says of a process whose main thread works and whose second one waits.
constexpr const char* kWorks =
    "echo \"TID $2:\"; echo '#0  0x01 work(int)'; echo '#1  0x02 main'; "
    "echo 'TID 1:'; echo '#0  0x03 wait'";

class StacksOfAJob : public ::testing::Test {
 protected:
  // The only debugger that the job finds; empty: none.
  JobSetup setup(const std::string& eu_stack) const {
    JobSetup setup{.environment = {{"DDPRUN_CONTROL_DIR", folder_ / "control"}}};
    std::filesystem::create_directory(folder_ / "bin");
    setup.environment["PATH"] = folder_ / "bin";
    if (!eu_stack.empty()) {
      write_file(folder_ / "bin/eu-stack", "#!/bin/sh\n" + eu_stack + "\n", 0755);
    }
    return setup;
  }
  // Three workers that have begun.
  std::unique_ptr<Job> start(const std::string& eu_stack) const {
    auto job = std::make_unique<Job>(
        ddprun({"--nproc-per-node=3"}, worker({"stamp", folder_.path(), "wait"})), setup(eu_stack));
    EXPECT_TRUE(job->reaches([&] { return stamps(folder_.path(), 0).size() == 3; })) << job->err();
    return job;
  }
  pid_t pid_of(int rank) const { return stamps(folder_.path(), 0).at(rank).pid; }
  Told ask(const std::vector<std::string>& options = {}) const {
    std::vector<std::string> arguments{"stacks"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return run_to_its_end(ddpctl(arguments), setup(""));
  }

  TemporaryTree folder_;
};

TEST_F(StacksOfAJob, AreOneForAllWorkersThatDoTheSame) {
  const auto job = start(kWorks);
  const Told told = ask();
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.out, StartsWith("ranks 0-2 on "));
  EXPECT_THAT(told.out, HasSubstr(" (3 workers)\n"
                                  "  work(int)\n"
                                  "  main\n"
                                  "  and 1 other thread: see --all\n"));
  const Told all = ask({"--all"});
  EXPECT_THAT(all.out, HasSubstr("  thread ddprun_test_wor (the main one)\n"
                                 "    work(int)\n"
                                 "    main\n"
                                 "  thread\n"
                                 "    wait\n"));
  EXPECT_THAT(job->err(), IsEmpty());
}

TEST_F(StacksOfAJob, ShowWhoIsStopped) {
  const auto job = start(kWorks);
  const pid_t stopped = pid_of(1);
  ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
  ASSERT_TRUE(eventually([&] { return process(stopped)->state == 'T'; }));
  const Told told = ask();
  EXPECT_THAT(told.out, StartsWith("ranks 0, 2 on "));
  EXPECT_THAT(told.out, HasSubstr("\nrank 1 on "));
  EXPECT_THAT(told.out, HasSubstr(", pid " + std::to_string(stopped) + ": T (stopped)"));
  ::kill(stopped, SIGCONT);
}

// One gdb for all, whose names are the program's.
TEST_F(StacksOfAJob, OfGdbHaveTheFunctionsOfEveryWorker) {
  if (!std::filesystem::exists("/usr/bin/gdb")) GTEST_SKIP() << "gdb is not installed";
  setup("");
  std::filesystem::create_symlink("/usr/bin/gdb", folder_ / "bin/gdb");
  const auto job = start("");
  const pid_t stopped = pid_of(1);
  ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
  const Told told = ask({"--json"});
  const auto stacks = agent::worker_stacks_from(told.out);
  ASSERT_TRUE(stacks) << told.out << told.err;
  ASSERT_EQ(stacks->size(), 3U);
  for (const WorkerStacks& worker : *stacks) {
    EXPECT_EQ(worker.source, "gdb") << worker.trouble;
    ASSERT_EQ(worker.threads.size(), 1U);
    // Without debug information "(anonymous namespace)::do_wait(char const*)".
    EXPECT_THAT(worker.threads.front().stack, AllOf(HasSubstr("do_wait"), HasSubstr("\nmain")));
  }
  EXPECT_EQ(process(stopped)->state, 'T');  // as before
  ::kill(stopped, SIGCONT);
}

TEST_F(StacksOfAJob, AreOfTheRanksThatAreNamed) {
  const auto job = start(kWorks);
  const Told told = ask({"--rank=2", "--json"});
  const auto stacks = agent::worker_stacks_from(told.out);
  ASSERT_TRUE(stacks) << told.out << told.err;
  ASSERT_EQ(stacks->size(), 1U);
  const WorkerStacks& worker = stacks->front();
  EXPECT_EQ(worker.rank, 2);
  EXPECT_EQ(worker.pid, pid_of(2));
  EXPECT_EQ(worker.source, "eu-stack");
  EXPECT_THAT(worker.trouble, IsEmpty());
  const Told wrong = ask({"--rank=3"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("there is no rank 3; the job has 3 workers"));
  EXPECT_EQ(ask({"--rank=x"}).code, 2);
}

TEST_F(StacksOfAJob, ComeFromTheKernelWhereNoDebuggerIsInstalled) {
  const auto job = start("");
  const Told told = ask({"--json"});
  const auto stacks = agent::worker_stacks_from(told.out);
  ASSERT_TRUE(stacks) << told.out << told.err;
  ASSERT_EQ(stacks->size(), 3U);
  EXPECT_EQ(stacks->front().source, "/proc");
  EXPECT_THAT(stacks->front().trouble, HasSubstr("install elfutils (for eu-stack) or gdb"));
  ASSERT_EQ(stacks->front().threads.size(), 1U);
  EXPECT_THAT(stacks->front().threads.front().stack, HasSubstr("sleeping"));
}

TEST_F(StacksOfAJob, SayWhatADebuggerThatMayNotTraceSays) {
  const auto job =
      start("echo 'eu-stack: dwfl_linux_proc_attach: Operation not permitted' >&2; exit 1");
  const Told told = ask();
  EXPECT_EQ(told.code, 0);
  EXPECT_THAT(told.out, HasSubstr("note: eu-stack found no stacks: eu-stack: "
                                  "dwfl_linux_proc_attach: Operation not permitted\n"));
}

TEST_F(StacksOfAJob, DoNotWaitForADebuggerThatHangs) {
  const auto job = start(": > " + (folder_ / "hangs") + "; exec /bin/sleep 1000");
  Job first(ddpctl({"stacks"}), setup(""));
  ASSERT_TRUE(first.reaches([&] { return std::filesystem::exists(folder_ / "hangs"); }));
  const Told other = ask({"--rank=1"});
  EXPECT_THAT(other.out, HasSubstr("note: somebody else asks for stacks right now"));
  const Told same = ask();
  EXPECT_EQ(first.wait(15s), exited(0)) << first.err();
  EXPECT_EQ(same.out, first.out()) << "one answer for both";
  EXPECT_THAT(first.out(), HasSubstr("note: eu-stack did not end within 6 s\n"));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), exited(143));
  EXPECT_THAT(job->left_over(), IsEmpty());
}

TEST_F(StacksOfAJob, AreTakenBackWhenTheJobEnds) {
  const auto job = start(": > " + (folder_ / "hangs") + "; exec /bin/sleep 1000");
  Job asking(ddpctl({"stacks"}), setup(""));
  ASSERT_TRUE(asking.reaches([&] { return std::filesystem::exists(folder_ / "hangs"); }));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(5s), exited(143)) << "nobody waits for the debugger";
  EXPECT_THAT(job->left_over(), IsEmpty());
}

TEST_F(StacksOfAJob, AreThoseOfAllNodes) {
  ClusterSetup cluster_setup;
  cluster_setup.environment = setup(kWorks).environment;
  Cluster cluster(cluster_setup);
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  const std::string agent = std::to_string(cluster[0].pid());
  const Told told = ask({agent});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.out,
              AllOf(StartsWith("ranks 0-1 on "), HasSubstr("(2 workers)\n  work(int)\n")));

  cluster[1].signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return process(cluster[1].pid())->state == 'T'; }));
  const Told of_one = ask({agent});
  EXPECT_EQ(of_one.code, 1);
  EXPECT_THAT(of_one.out, StartsWith("rank 0 on "));
  EXPECT_THAT(of_one.err, HasSubstr(": it does not answer"));
  cluster[1].signal(SIGCONT);
}

}  // namespace
}  // namespace ddprun::test
