// ddprun under a real Slurm of two nodes: what srun and sbatch start and end, and what is left. The
// cases share the cluster, and each leaves it empty.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "rendezvous/common/slurm.h"
#include "tests/support/slurm_cluster.h"
#include "tests/support/training.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Matcher;
using ::testing::Matches;
using ::testing::Not;

constexpr int kPreempted = 113;

class Slurm : public ::testing::Test {
 public:
  static SlurmCluster& slurm() { return *cluster_; }

 protected:
  static void SetUpTestSuite() {
    if (SlurmCluster::obstacle()) return;
    cluster_ = new SlurmCluster;
    ASSERT_TRUE(cluster_->is_ready()) << cluster_->told();
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }
  void SetUp() override {
    if (const auto& obstacle = SlurmCluster::obstacle()) GTEST_SKIP() << *obstacle;
  }
  void TearDown() override {
    if (cluster_ == nullptr) return;
    EXPECT_THAT(cluster_->clear(), IsEmpty());
    if (HasFailure()) std::fputs(cluster_->told().c_str(), stderr);
  }

  // Two nodes with two workers each, which is what Slurm gives them CPUs for.
  static Command on_two_nodes(const Command& launcher, const std::vector<std::string>& more = {}) {
    std::vector<std::string> options{"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"};
    options.insert(options.end(), more.begin(), more.end());
    return SlurmCluster::srun(options, launcher);
  }
  // What is on stderr beside the line of a node whose leader was slower than it, on a busy machine.
  static std::string complaints(const Job& job) {
    std::istringstream lines(job.err());
    std::string others;
    for (std::string line; std::getline(lines, line);) {
      const bool waits = line.find("waiting for the leader at") != std::string::npos ||
                         line.find("; waiting for nodes: ") != std::string::npos;
      if (!waits) others += line + "\n";
    }
    return others;
  }
  static bool run(const TemporaryTree& folder, std::size_t workers, int round = 0) {
    return stamps(folder.path(), round).size() == workers;
  }
  // As a line of a script.
  static std::string words_of(const Command& command) {
    std::string line;
    for (const std::string& word : command) line += "'" + word + "' ";
    return line;
  }
  std::vector<std::string> left_over() const {
    eventually([] { return slurm().job_processes().empty(); }, seconds(10));
    return slurm().job_processes();
  }
  // The processes of that name on both nodes.
  static std::vector<pid_t> ddpruns(const Job& job) {
    std::vector<pid_t> found;
    for (const pid_t pid : job.processes()) {
      const auto info = process(pid);
      const auto parent = info ? process(info->parent) : std::nullopt;
      if (parent && info->name == "ddprun" && parent->name != "ddprun") found.push_back(pid);
    }
    return found;
  }

  static SlurmCluster* cluster_;
};
SlurmCluster* Slurm::cluster_ = nullptr;

// --- what Slurm's texts mean

// A list as a site may have it, and some that none has.
std::string random_list(std::mt19937& random) {
  const auto number = [&](int below) {
    return std::uniform_int_distribution(0, below - 1)(random);
  };
  std::string list;
  for (int names = 1 + number(4); names > 0; --names) {
    int brackets = number(4);
    do {
      for (const char* const part : {"gpu", "n", "rack-", "x9y"}) {
        if (number(3) == 0) list += part;
      }
      list += static_cast<char>('a' + number(26));
      if (brackets == 0) break;
      list += '[';
      for (int ranges = 1 + number(3); ranges > 0; --ranges) {
        const int first = number(number(2) == 0 ? 12 : 1200);
        list += std::string(static_cast<std::size_t>(number(3)), '0') + std::to_string(first);
        if (number(2) == 0) list += "-" + std::to_string(first + number(4));
        list += ranges > 1 ? "," : "]";
      }
    } while (--brackets > 0);
    list += names > 1 ? "," : "";
  }
  return list;
}

TEST_F(Slurm, ListsOfNodesMeanWhatScontrolSays) {
  const int count = full_tests() ? 2000 : 150;
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int i = 0; i < count; ++i) {
    const std::string list = random_list(random);
    const auto ours = expand_host_list(list);
    ASSERT_TRUE(ours) << list << ": " << ours.error().message << " (seed " << seed << ")";
    std::string joined;
    for (const std::string& host : *ours) joined += (joined.empty() ? "" : "\n") + host;
    ASSERT_EQ(joined, slurm().ask({"scontrol", "show", "hostnames", list}))
        << list << " (seed " << seed << ")";
  }
  for (const std::string list : {"a[5-3]", "a[x]", "a[]", "a[1,]", "a[1]]"}) {
    EXPECT_FALSE(expand_host_list(list)) << list;
    EXPECT_EQ(slurm().ask({"scontrol", "show", "hostnames", list}), "") << list;
  }
}

// --- what srun starts

TEST_F(Slurm, SrunOfTwoNodesNeedsNoOption) {
  const TemporaryTree folder;
  Job job(on_two_nodes(ddprun({}, meeting_worker({"environment", folder / "{rank}"}))),
          slurm().setup());
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(complaints(job), IsEmpty());
  for (int rank = 0; rank < 4; ++rank) {
    auto variables = environment_in(folder / std::to_string(rank));
    EXPECT_EQ(variables["WORLD_SIZE"], "4");
    EXPECT_EQ(variables["SLURMD_NODENAME"], SlurmCluster::host(rank / 2));
    EXPECT_EQ(variables["GROUP_RANK"], std::to_string(rank / 2));
    EXPECT_EQ(variables["LOCAL_RANK"], std::to_string(rank % 2));
    EXPECT_EQ(variables["MASTER_ADDR"], SlurmCluster::host(0));
    const std::string job_id = variables["SLURM_JOB_ID"];
    EXPECT_EQ(variables["MASTER_PORT"], std::to_string(slurm_port(std::stoull(job_id), 0)));
    EXPECT_EQ(variables["TORCHELASTIC_RUN_ID"], job_id + ".0");
  }
  EXPECT_THAT(left_over(), IsEmpty());
}

// --- by munge, nodes and leader know that they are the same user's

class SlurmStranger : public Slurm {
 protected:
  // What a node of somebody else said that tried to join, from the second node, and ended with 2.
  std::string refused_by(Job& leader, const std::string& id, std::uint16_t port,
                         const Command& as_whom) {
    Command command = as_whom;
    const Command node = ddprun({"--nnodes=2", "--node-rank=1", "--master-addr=node0",
                                 "--master-port=" + std::to_string(port), "--rdzv-id=" + id},
                                meeting_worker({}));
    command.insert(command.end(), node.begin(), node.end());
    JobSetup setup = slurm().on(1);
    setup.environment["SLURM_JOB_ID"] = "1";
    setup.environment["SLURM_STEP_ID"] = "0";
    Job stranger(command, setup);
    EXPECT_EQ(stranger.wait(), exited(2)) << stranger.err() << leader.err();
    return stranger.err();
  }
};

// In a user namespace anybody is root, and says so in the job; the kernel of munged knows better.
TEST_F(SlurmStranger, WhoIsNotTheUserIsRefusedByMunge) {
  const TemporaryTree folder;
  const std::uint16_t port = 12345;
  const Command launcher =
      ddprun({"--nnodes=2", "--rdzv-id=job", "--master-port=" + std::to_string(port)},
             meeting_worker({"stamp", folder.path()}));
  // The second node comes when the file is there.
  const std::string second =
      words_of({"sh", "-c", "until [ -e " + (folder / "go") + " ]; do sleep 0.05; done"});
  Job job(on_two_nodes(
              {"sh", "-c", "[ $SLURM_NODEID = 0 ] || " + second + "; exec " + words_of(launcher)}),
          slurm().setup());
  const Command stranger{"setpriv", "--reuid=65534",   "--clear-groups", "--",
                         "unshare", "--map-root-user", "--user",         "--"};
  EXPECT_THAT(refused_by(job, "job", port, stranger), HasSubstr("does not accept this node's"));
  // What the leader says comes through srun, in its own time.
  const Matcher<std::string> says_why =
      ContainsRegex("turned away node rank 1 on node1 \\(.+\\): munge: ");
  EXPECT_TRUE(job.reaches([&] { return Matches(says_why)(job.err()); })) << job.err();
  // One that lies about Slurm, too.
  Command without = stranger;
  without.insert(without.end(), {"env", "--unset=SLURM_JOB_ID"});
  EXPECT_THAT(refused_by(job, "job", port, without), HasSubstr("prove by munge"));
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(stamps(folder.path(), 0).size(), 4u);
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, ANodeWithoutMungeIsRefusedByName) {
  const TemporaryTree folder;
  write_file(folder / "node", "[ $SLURM_NODEID = 0 ] || umount /run/munge; exec " +
                                  words_of(ddprun({}, meeting_worker({}))));
  Job job(on_two_nodes({"unshare", "--mount", "sh", folder / "node"}, {"--kill-on-bad-exit=1"}),
          slurm().setup());
  EXPECT_NE(job.wait(), exited(0));
  EXPECT_THAT(job.err(),
              ContainsRegex("turned away node rank 1 on node1 \\(.+\\): it has no munge"));
  EXPECT_THAT(job.err(), HasSubstr("start munged here"));
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, ATokenGoesBeforeMunge) {
  const TemporaryTree folder;
  write_file(folder / "token", "secret\n", 0600);
  const Command launcher =
      ddprun({"--dry-run", "--token-file=" + (folder / "token")}, {"/bin/true"});
  EXPECT_THAT(slurm().ask(on_two_nodes(launcher)),
              HasSubstr("by the token in " + (folder / "token")));
}

milliseconds duration_of(const Command& command, const JobSetup& setup) {
  const auto begin = std::chrono::steady_clock::now();
  Job job(command, setup);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
}

template <typename T>
T median(std::vector<T> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

TEST_F(Slurm, AllRanksRunSoonAfterTheStepHasStarted) {
  constexpr int kRuns = 11;
  constexpr int kStepStart = 1000;  // stands for a round, in the names of stamps
  std::vector<double> ms;
  std::vector<milliseconds> with;
  std::vector<milliseconds> without;
  for (int run = 0; run < kRuns; ++run) {
    const TemporaryTree folder;
    // What the step starts notes the time, and becomes ddprun.
    Command timed{"sh", "-c",
                  "RANK=$SLURM_NODEID TORCHELASTIC_RESTART_COUNT=" + std::to_string(kStepStart) +
                      " " + words_of(worker({"stamp", folder.path()})) + "; exec " +
                      words_of(ddprun({}, worker({"stamp", folder.path()})))};
    with.push_back(duration_of(on_two_nodes(timed), slurm().setup()));
    without.push_back(duration_of(on_two_nodes({"true"}), slurm().setup()));
    const auto starts = stamps(folder.path(), kStepStart);
    const auto ranks = stamps(folder.path(), 0);
    ASSERT_EQ(starts.size(), 2);
    ASSERT_EQ(ranks.size(), 4);
    const auto by_time = [](const auto& a, const auto& b) {
      return a.second.at_ns < b.second.at_ns;
    };
    const auto first = std::ranges::min_element(starts, by_time)->second.at_ns;
    const auto last = std::ranges::max_element(ranks, by_time)->second.at_ns;
    ms.push_back(static_cast<double>(last - first) / 1e6);
  }
  std::printf(
      "srun of two nodes, from the step's start to all ranks running: median %.1f ms, slowest %.1f "
      "ms (%d runs)\nthe whole srun: %d ms, srun true: %d ms\n",
      median(ms), *std::ranges::max_element(ms), kRuns, static_cast<int>(median(with).count()),
      static_cast<int>(median(without).count()));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // On a machine that does nothing else; beside other tests srun itself takes longer than that.
  EXPECT_LE(median(ms), std::max(200.0, static_cast<double>(median(without).count())));
#endif
}

TEST_F(Slurm, TheDryRunNamesSlurmAndItsVariables) {
  Job job(on_two_nodes(ddprun({"--dry-run"}, worker({"exit", "0"})), {"--label"}), slurm().setup());
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), ContainsRegex("1:   site +Slurm\n"));
  EXPECT_THAT(job.out(),
              ContainsRegex("1:   nodes prove themselves +by munge, as the same user's\n"));
  EXPECT_THAT(job.out(), ContainsRegex("1:   nnodes +2 +SLURM_STEP_NUM_NODES\n"));
  EXPECT_THAT(job.out(), ContainsRegex("1:   node-rank +1 +SLURM_NODEID\n"));
  EXPECT_THAT(job.out(),
              ContainsRegex("1:   master-addr +node0 +the first of SLURM_STEP_NODELIST\n"));
}

TEST_F(Slurm, NodesOfAHeterogeneousJobBringTheWorkersThatEachHasCpusFor) {
  const TemporaryTree folder;
  Command command{"salloc",    "--quiet",           "--nodes=1", "--cpus-per-task=2", ":",
                  "--nodes=1", "--cpus-per-task=1", "srun",      "--het-group=0,1"};
  const Command launcher = ddprun({}, meeting_worker({"environment", folder / "{rank}"}));
  command.insert(command.end(), launcher.begin(), launcher.end());
  Job job(command, slurm().setup());
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  auto last = environment_in(folder / "2");
  EXPECT_EQ(last["WORLD_SIZE"], "3") << job.err();
  EXPECT_EQ(last["GROUP_RANK"], "1");
  EXPECT_EQ(last["LOCAL_WORLD_SIZE"], "1");
}

TEST_F(Slurm, AnElasticJobMeetsOnTheFirstNodeToo) {
  const TemporaryTree folder;
  const Command launcher = ddprun({"--rdzv-backend=c10d", "--nnodes=1:2"},
                                  meeting_worker({"environment", folder / "{rank}"}));
  Job job(on_two_nodes(launcher), slurm().setup());
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(complaints(job), IsEmpty());
  auto last = environment_in(folder / "3");
  EXPECT_EQ(last["WORLD_SIZE"], "4");
  EXPECT_EQ(last["SLURMD_NODENAME"], SlurmCluster::host(1)) << "ranks in Slurm's order";
}

TEST_F(Slurm, AWorkerIsStartedForEachGpuOfTheAllocation) {
  const TemporaryTree folder;
  Job job(
      on_two_nodes(ddprun({}, worker({"environment", folder / "{rank}"})), {"--gpus-per-node=3"}),
      slurm().setup());
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(environment_in(folder / "5")["WORLD_SIZE"], "6") << job.err();
}

TEST_F(Slurm, AJobsStepsAndShellsAreToldApart) {
  const TemporaryTree folder;
  // The script's shell is on one node of two; a step of one node is a job of its own.
  const std::string job = slurm().sbatch(
      {"--nodes=2", "--cpus-per-task=2", "--output=" + (folder / "out")},
      words_of(ddprun({"--dry-run"}, {"true"})) + "\necho exit code $?\n" +
          "srun --nodes=1 --ntasks=1 --cpus-per-task=2 " +
          words_of(ddprun({}, worker({"environment", folder / "step"}))) + "\n" +  //
          words_of(ddprun({"--nnodes=1"}, worker({"environment", folder / "shell"}))));
  ASSERT_TRUE(slurm().completes(job)) << read_file(folder / "out");
  const std::string out = read_file(folder / "out");
  EXPECT_THAT(out, HasSubstr("this job has 2 nodes (SLURM_JOB_NUM_NODES), and ddprun was started "
                             "on the first of them only; write srun"));
  EXPECT_THAT(out, HasSubstr("exit code 2\n"));
  for (const std::string where : {"step", "shell"}) {
    EXPECT_EQ(environment_in(folder / where)["WORLD_SIZE"], "2") << where << "\n" << out;
    EXPECT_EQ(environment_in(folder / where)["MASTER_ADDR"], "127.0.0.1") << where;
  }
  EXPECT_EQ(environment_in(folder / "step")["TORCHELASTIC_RUN_ID"], job + ".0");
  EXPECT_EQ(environment_in(folder / "shell")["TORCHELASTIC_RUN_ID"], job);
}

TEST_F(Slurm, ABatchScriptOfOneNodeNeedsNoSrun) {
  const TemporaryTree folder;
  const std::string job =
      slurm().sbatch({"--nodes=1", "--cpus-per-task=2", "--output=" + (folder / "out")},
                     words_of(ddprun({}, worker({"environment", folder / "{rank}"}))));
  ASSERT_TRUE(slurm().completes(job)) << read_file(folder / "out");
  auto variables = environment_in(folder / "1");
  EXPECT_EQ(variables["WORLD_SIZE"], "2") << read_file(folder / "out");
  EXPECT_EQ(variables["TORCHELASTIC_RUN_ID"], job);
  EXPECT_EQ(read_file(folder / "out"), "");
}

TEST_F(Slurm, AShellOfSallocIsSentToSrun) {
  Job one(
      {"salloc", "--nodes=1", "--quiet", "sh", "-c", words_of(ddprun({}, worker({"exit", "0"})))},
      slurm().setup());
  EXPECT_EQ(one.wait(), exited(0)) << one.err();
  EXPECT_THAT(one.err(),
              ContainsRegex("warning: this shell is on no node of Slurm's job [0-9]+, so "
                            "the workers will run on this machine; write srun"));
  Job two(
      {"salloc", "--nodes=2", "--quiet", "sh", "-c", words_of(ddprun({}, worker({"exit", "0"})))},
      slurm().setup());
  EXPECT_EQ(two.wait(), exited(2)) << two.err();
  EXPECT_THAT(two.err(), HasSubstr("in a shell on none of them; write srun"));
}

TEST_F(Slurm, ALauncherPerTaskIsRefusedWithOneSentence) {
  Job job(SlurmCluster::srun({"--nodes=2", "--ntasks-per-node=2"}, ddprun({}, worker({"wait"}))),
          slurm().setup());
  EXPECT_EQ(job.wait(), exited(2));
  EXPECT_THAT(job.err(), HasSubstr("ddprun: srun started ddprun 4 times on 2 nodes "
                                   "(SLURM_STEP_NUM_TASKS=4), but it is needed once on each, "
                                   "because it starts the workers itself; write srun "
                                   "--ntasks-per-node=1 ddprun ...\n"));
}

TEST_F(Slurm, VariablesThatMakeNoSenseAreRefusedWithOneSentence) {
  for (const auto& [changed, sentence] : std::vector<std::pair<std::string, std::string>>{
           {"SLURM_STEP_NODELIST=node[0-",
            "ddprun: SLURM_STEP_NODELIST=node[0-: it cannot be read "
            "as a list of nodes, a '[' has no ']'; say "
            "--master-addr"},
           {"SLURM_STEP_NODELIST=node[0-2]",
            "ddprun: SLURM_STEP_NODELIST=node[0-2] contradicts "
            "SLURM_STEP_NUM_NODES=2: it names 3 nodes; "},
           {"SLURM_NODEID=2", "ddprun: SLURM_NODEID=2 contradicts SLURM_STEP_NUM_NODES=2: "},
           {"SLURM_STEP_NUM_NODES=two",
            "ddprun: SLURM_STEP_NUM_NODES=two: it should be a whole "}}) {
    Command program{"env", changed};
    const Command launcher = ddprun({}, worker({"wait"}));
    program.insert(program.end(), launcher.begin(), launcher.end());
    Job job(on_two_nodes(program), slurm().setup());
    EXPECT_EQ(job.wait(), exited(2)) << changed;
    EXPECT_THAT(job.err(), HasSubstr(sentence));
  }
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, AVariableThatContradictsAnOptionLosesAndTheLogSaysSo) {
  Job job(on_two_nodes(ddprun({"--nnodes=1"}, worker({"exit", "0"}))), slurm().setup());
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.err(),
              HasSubstr("ddprun: warning: --nnodes=1 goes before SLURM_STEP_NUM_NODES=2: nothing "
                        "about nodes is taken from Slurm\n"));
}

// --- what ends it

TEST_F(Slurm, ACancelledStepLeavesNothing) {
  const TemporaryTree folder;
  Job job(on_two_nodes(ddprun({}, worker({"child", "deaf-child", "stamp", folder.path(), "wait"}))),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  slurm().ask({"scancel", "--user=root"});
  EXPECT_NE(job.wait(), exited(0));
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, AKilledStepLeavesNothing) {
  const TemporaryTree folder;
  Job job(on_two_nodes(ddprun({}, worker({"child", "deaf-child", "stamp", folder.path(), "wait"}))),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  slurm().ask({"scancel", "--signal=KILL", slurm().ask({"squeue", "-h", "-o", "%i"}) + ".0"});
  EXPECT_EQ(job.wait(), exited(128 + SIGKILL)) << job.err();
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, AKilledDdprunOfANodeTakesTheStepAlongWithSrunsWait) {
  const TemporaryTree folder;
  Job job(on_two_nodes(ddprun({}, worker({"child", "stamp", folder.path(), "wait"})), {"--wait=1"}),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  const auto both = ddpruns(job);
  ASSERT_EQ(both.size(), 2);
  kill(both.back(), SIGKILL);
  EXPECT_NE(job.wait(), exited(0));
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, AFailedWorkerIsTheStepsExitCode) {
  Job job(on_two_nodes(ddprun({}, worker({"on-rank", "3", "exit", "7", "wait"}))), slurm().setup());
  EXPECT_EQ(job.wait(), exited(7)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("FAILED: rank 3"));
  EXPECT_THAT(left_over(), IsEmpty());
}

// --- preemption

// Gives the job's number; its output is in folder/out.
std::string submit_script(const TemporaryTree& folder, const Command& program,
                          const std::vector<std::string>& options) {
  Command command{"sbatch", "--parsable", "--nodes=2", "--output=" + (folder / "out")};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back(DDPRUN_SOURCE_DIR "/scripts/slurm/train.sbatch");
  command.insert(command.end(), program.begin(), program.end());
  return Slurm::slurm().ask(
      command, {.environment = {{"DDPRUN", ddprun({}).front()}, {"OMP_NUM_THREADS", "1"}}});
}

// Waits for the notice, and then, as ranks do that end their last step together, for each other. In
// another life it has nothing to wait for.
Command until_preempted(const TemporaryTree& folder) {
  return worker({"environment", folder / "{rank}", "link", "take-leave", "stamp", folder.path(),
                 "unless", folder / "told{rank}", "until-told", "touch", folder / "told{rank}",
                 "until", folder / "told0", "until", folder / "told1", "until", folder / "told2",
                 "until", folder / "told3"});
}

TEST_F(Slurm, APreemptedStepAsksForARequeue) {
  const TemporaryTree folder;
  Job job(on_two_nodes(ddprun({}, until_preempted(folder))), slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  slurm().ask({"scancel", "--signal=USR1", "--user=root"});
  EXPECT_EQ(job.wait(), exited(kPreempted)) << job.err();
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, APreemptedElasticStepAsksForARequeueToo) {
  const TemporaryTree folder;
  Job job(on_two_nodes(ddprun({"--rdzv-backend=c10d", "--nnodes=1:2"}, until_preempted(folder))),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  slurm().ask({"scancel", "--signal=USR1", "--user=root"});
  EXPECT_EQ(job.wait(), exited(kPreempted)) << job.err();
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, ABatchScriptThatBecomesDdprunGetsTheSignal) {
  for (const std::string signal : {"USR1", "TERM"}) {
    const TemporaryTree folder;
    const Command program = worker(
        {"link", "take-leave", "stamp", folder.path(), "until-told", "touch", folder / "told"});
    const std::string job =
        slurm().sbatch({"--nodes=1", "--cpus-per-task=1", "--output=" + (folder / "out")},
                       "exec " + words_of(ddprun({"--preempt-signal=" + signal}, program)));
    ASSERT_TRUE(eventually([&] { return run(folder, 1); })) << read_file(folder / "out");
    slurm().ask({"scancel", "--batch", "--signal=" + signal, job});
    EXPECT_TRUE(eventually([&] {
      return slurm().field_of(job, "ExitCode") == std::to_string(kPreempted) + ":0";
    })) << signal
        << ": " << read_file(folder / "out");
    EXPECT_TRUE(fs::exists(folder / "told")) << signal;
  }
}

// proctrack/cgroup spares the workers: it signals a step's tasks alone, which are the ddpruns.
TEST_F(Slurm, APreemptionByTermGivesNoticeToo) {
  const TemporaryTree folder;
  Job job(on_two_nodes(ddprun({"--preempt-signal=TERM"}, until_preempted(folder))),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  for (const pid_t pid : ddpruns(job)) kill(pid, SIGTERM);
  EXPECT_EQ(job.wait(), exited(kPreempted)) << job.err();
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, APreemptionThatReachesOneNodeFirstEndsOnBothWithItsCode) {
  const TemporaryTree folder;
  // These leave at once, so that the round has ended when the other node gets its notice.
  Job job(on_two_nodes(
              ddprun({}, worker({"link", "take-leave", "stamp", folder.path(), "until-told"}))),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  const auto both = ddpruns(job);
  ASSERT_EQ(both.size(), 2);
  for (const pid_t pid : {both.back(), both.front()}) kill(pid, SIGUSR1);
  EXPECT_EQ(job.wait(), exited(kPreempted)) << job.err();
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, WorkersThatSlurmSignalsTooAreNoFailure) {
  const TemporaryTree folder;
  // They know nothing of notices, and run on, whether ddprun gets its own signal sooner or later than they.
  Job job(on_two_nodes(ddprun({}, worker({"stamp", folder.path(), "until", folder / "finish"}))),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  for (const auto& [rank, stamp] : stamps(folder.path(), 0)) kill(stamp.pid, SIGUSR1);
  for (const pid_t pid : ddpruns(job)) kill(pid, SIGUSR1);
  ASSERT_TRUE(job.reaches([&] {
    return job.err().find("ranks 0 and 1 do not react") != std::string::npos &&
           job.err().find("ranks 2 and 3 do not react") != std::string::npos;
  })) << job.err();
  write_file(folder / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST_F(Slurm, TheScriptOfOursRequeuesAPreemptedJobWhichThenRunsToItsEnd) {
  const TemporaryTree folder;
  const std::string out = folder / "out";
  const std::string job = submit_script(folder, until_preempted(folder), {"--cpus-per-task=2"});
  ASSERT_TRUE(eventually([&] { return run(folder, 4); })) << read_file(out);
  EXPECT_EQ(environment_in(folder / "3")["TORCHELASTIC_RUN_ID"], job + ".0");
  slurm().ask({"scancel", "--batch", "--signal=USR1", job});
  ASSERT_TRUE(eventually([&] { return slurm().state_of(job) == "PENDING"; })) << read_file(out);
  EXPECT_THAT(left_over(), IsEmpty());
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(fs::exists(folder / ("told" + std::to_string(rank)))) << rank;
  }
  ASSERT_TRUE(slurm().start_soon(job)) << read_file(out);
  ASSERT_TRUE(slurm().completes(job)) << read_file(out);
  EXPECT_EQ(environment_in(folder / "3")["TORCHELASTIC_RUN_ID"], job + ".0-r1");
}

// The ranks do not wait for each other, and still leave after the same step.
constexpr const char* kPythonProgram = R"(
import os, pathlib, sys, time
import ddprun
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
saved = folder / f"saved-{rank}"
first = int(saved.read_text()) if saved.exists() else 0
for step in range(first + 1, 301):
    if step == first + 5:
        (folder / f"runs-{rank}").touch()
    time.sleep(0.01 if rank == "0" else 0.015)
    if ddprun.should_leave():
        saved.write_text(str(step))
        sys.exit()
(folder / f"end-{rank}").write_text(f"{first} {os.environ['SLURM_RESTART_COUNT']}")
)";

TEST_F(Slurm, APreemptedPythonProgramIsRequeuedAndGoesOnWhereItLeft) {
  const TemporaryTree folder;
  folder.write("train.py", kPythonProgram);
  const std::string job =
      submit_script(folder, {folder / "train.py", folder.path()}, {"--cpus-per-task=2"});
  const auto all_have = [&](const std::string& what) {
    for (int rank = 0; rank < 4; ++rank) {
      if (!std::filesystem::exists(folder / (what + std::to_string(rank)))) return false;
    }
    return true;
  };
  ASSERT_TRUE(eventually([&] { return all_have("runs-"); }, seconds(60)))
      << read_file(folder / "out");
  slurm().ask({"scancel", "--batch", "--signal=USR1", job});
  ASSERT_TRUE(eventually([&] { return slurm().state_of(job) == "PENDING"; }))
      << read_file(folder / "out");
  EXPECT_THAT(left_over(), IsEmpty());
  const std::string left_after = read_file(folder / "saved-0");
  EXPECT_GT(std::stoi(left_after), 0);
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(read_file(folder / ("saved-" + std::to_string(rank))), left_after);
  }
  ASSERT_TRUE(slurm().start_soon(job)) << read_file(folder / "out");
  ASSERT_TRUE(slurm().completes(job, seconds(60))) << read_file(folder / "out");
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(read_file(folder / ("end-" + std::to_string(rank))), left_after + " 1");
  }
}

TEST_F(Slurm, TheScriptsSignalComesTwoMinutesBeforeTheTimeIsUp) {
  if (!full_tests()) GTEST_SKIP() << "Slurm looks at times every 30 s: with DDPRUN_TEST_FULL=1";
  const TemporaryTree folder;
  const std::string job =
      submit_script(folder, until_preempted(folder), {"--cpus-per-task=2", "--time=2"});
  ASSERT_TRUE(eventually([&] { return fs::exists(folder / "told3"); }, seconds(100)))
      << read_file(folder / "out");
  EXPECT_TRUE(eventually([&] { return slurm().state_of(job) == "PENDING"; }))
      << read_file(folder / "out");
}

// --- training

#ifdef DDPRUN_TRAIN

TEST_F(Slurm, SrunAloneStartsATrainingWithoutDdprun) {
  const TemporaryTree folder;
  Command program = training(folder.path(), /*epochs=*/1);
  program.front() = DDPRUN_TRAIN;
  Job job(SlurmCluster::srun({"--nodes=2", "--ntasks-per-node=2"}, program),
          slurm().setup({.environment = {{"OMP_NUM_THREADS", "1"}}}));
  EXPECT_EQ(job.wait(seconds(60)), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("test accuracy: "));
  EXPECT_EQ(last_step_in(folder.path()), 32) << "an epoch of 500 samples, 4 ranks of 4 each";
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, APreemptedTrainingIsRequeuedAndGoesOnWhereItLeft) {
  const TemporaryTree folder;
  const TemporaryTree checkpoints;
  // Long enough to be preempted in the middle.
  constexpr int kEpochs = 3;
  constexpr int kSteps = kEpochs * 63;
  const std::string job =
      submit_script(folder, training(checkpoints.path(), kEpochs), {"--cpus-per-task=1"});
  const std::string out = folder / "out";
  ASSERT_TRUE(eventually([&] { return last_step_in(checkpoints.path()) >= 20; }, seconds(60)))
      << read_file(out);
  slurm().ask({"scancel", "--batch", "--signal=USR1", job});
  ASSERT_TRUE(eventually([&] { return slurm().state_of(job) == "PENDING"; })) << read_file(out);
  EXPECT_THAT(left_over(), IsEmpty());
  const int left_after = last_step_in(checkpoints.path());
  EXPECT_LT(left_after, kSteps);
  ASSERT_TRUE(slurm().start_soon(job)) << read_file(out);
  ASSERT_TRUE(slurm().completes(job, seconds(60))) << read_file(out);
  EXPECT_THAT(read_file(out), HasSubstr("after step " + std::to_string(left_after)));
  EXPECT_THAT(read_file(out), Not(HasSubstr("FAILED")));
  EXPECT_EQ(last_step_in(checkpoints.path()), kSteps);
}

#endif

}  // namespace
}  // namespace ddprun::test
