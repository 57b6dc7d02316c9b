// --standby: workers in Python that have imported before they are needed. The PyTorch of these tests
// is a folder of modules that know in which process they were loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <random>
#include <string>

#include "tests/support/cluster.h"
#include "tests/support/ddpctl.h"

namespace ddprun::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kTorch = "import os\nloaded_by = int(os.readlink('/proc/self'))\n";

// Rank 1 fails in every round but the last, as soon as a file named after the round exists.
constexpr const char* kScript = R"(import os, sys, time
folder, last = sys.argv[1], int(sys.argv[2])
round = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
import torch
how = "imported" if torch.loaded_by == os.getpid() else "waited"
sys.stdout.write(f"round {round} rank {os.environ['RANK']} pid {os.getpid()} {how}\n")
if round >= last:  # a standby that was killed may have been given a place: one round more
    sys.exit(0)
while not os.path.exists(os.path.join(folder, f"go-{round}")):
    time.sleep(0.01)
if os.environ["RANK"] == "1":
    sys.exit(3)
time.sleep(1000)
)";

constexpr const char* kHiddenImport = "torch = __import__('torch')";

std::string script_with(const std::string& import) {
  std::string script = kScript;
  return script.replace(script.find("import torch"), std::string("import torch").size(), import);
}

class Standby : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(DDPRUN_PYTHON)) GTEST_SKIP() << DDPRUN_PYTHON << " is not there";
    for (const char* const name : {"__init__", "_dynamo", "distributed"}) module(name, "");
    module("__init__", kTorch);
    for (const char* const name : {"nn", "utils"}) module(std::string(name) + "/__init__", "");
    module("nn/parallel", "");
    module("utils/data", "");
  }
  void module(const std::string& name, const std::string& text) const {
    folder_.write("lib/torch/" + name + ".py", text);
  }
  void module_with_optimizer() const {
    module("optim/__init__", "");
    module("optim/optimizer",
           "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n"
           "class Optimizer:\n"
           "    state = {}\n"
           "    def step(self):\n"
           "        for hook in hooks: hook(self, (), {})\n");
  }
  JobSetup setup() const {
    return {.environment = {{"PYTHON_EXEC", python_.value_or(DDPRUN_PYTHON)},
                            {"PYTHONPATH", folder_ / "lib"},
                            {"DDPRUN_LOG_LEVEL", "info"}}};
  }
  Command command(std::vector<std::string> options, int last = 1,
                  const std::string& preload = "--preload=torch") const {
    options.insert(options.begin(),
                   {"--nproc-per-node=2", "--max-restarts=1000", "--shutdown-timeout=1"});
    if (!preload.empty()) options.push_back(preload);
    return ddprun(options, {script_, folder_.path(), std::to_string(last)});
  }
  void go(int round) const { folder_.write("go-" + std::to_string(round), ""); }
  static bool says(Job& job, const std::string& text) {
    return job.reaches([&] { return job.err().find(text) != std::string::npos; });
  }
  static bool wait_for_standbys(Job& job) { return says(job, "2 wait for a restart"); }
  static bool both_run(Job& job, int round) {
    const std::string begin = "round " + std::to_string(round) + " rank ";
    return job.reaches([&] {
      const std::string out = job.out();
      return out.find(begin + "0") != std::string::npos &&
             out.find(begin + "1") != std::string::npos;
    });
  }

  const TemporaryTree folder_;
  const std::string script_ = folder_.write("train.py", kScript);
  std::optional<std::string> python_;
};

TEST_F(Standby, WorkersOfTheNextRoundHaveWaited) {
  Job job(command({"--standby=2"}, /*last=*/2), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  go(0);
  ASSERT_TRUE(both_run(job, 1)) << job.err();
  // Those for the round after it are made without any loading.
  const std::string status = "status --json " + std::to_string(job.pid());
  ASSERT_TRUE(job.reaches([&] {
    return ddpctl(status).output.find("\"waiting\":2") != std::string::npos;
  })) << ddpctl(status).output;
  go(1);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  for (const int rank : {0, 1}) {
    const std::string of_rank = " rank " + std::to_string(rank) + " pid ";
    for (const int round : {0, 1, 2}) {
      const std::string out = job.out();
      const auto at = out.find("round " + std::to_string(round) + of_rank);
      ASSERT_NE(at, std::string::npos) << out;
      EXPECT_THAT(out.substr(at, out.find('\n', at) - at), HasSubstr("waited"));
    }
  }
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(Standby, WhatAStandbyPrintsGoesWhereItsRanksGoes) {
  Job job(command({"--standby=auto", "--log-dir=" + (folder_ / "log"), "--redirects=3"}), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  go(0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  int found = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder_ / "log")) {
    const std::string text = file.is_regular_file() ? read_file(file.path()) : "";
    if (text.find("round 1 rank ") != std::string::npos) ++found;
  }
  EXPECT_EQ(found, 2);
  EXPECT_EQ(job.out(), "");
}

TEST_F(Standby, WithoutControlGroups) {
  Job job(without_control_groups(command({"--standby=2"})), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  go(0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("waited"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(Standby, NothingIsLeftWhenTheAgentIsKilledOrStopped) {
  for (const int signal : {SIGKILL, SIGTERM, SIGINT}) {
    Job job(command({"--standby=2"}), setup());
    ASSERT_TRUE(wait_for_standbys(job)) << job.err();
    EXPECT_EQ(job.processes().size(), 6u);  // the keeper, two workers, the zygote, two standbys
    job.signal(signal);
    EXPECT_EQ(job.wait(), signal == SIGKILL ? killed_by(SIGKILL) : exited(128 + signal));
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

TEST_F(Standby, WithoutAnyTheRestartIsAsBefore) {
  Job job(command({"--standby=2"}), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  const std::string out = job.out();
  const auto keeper = job.keeper();
  for (const pid_t pid : job.processes()) {
    const bool is_worker = out.find("pid " + std::to_string(pid) + " ") != std::string::npos;
    if (!is_worker && pid != keeper) ::kill(pid, SIGKILL);
  }
  go(0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// Whatever dies, and when: every restart succeeds.
TEST_F(Standby, KilledAtRandom) {
  std::mt19937 random(7);
  const int kills = full_tests() ? 300 : 25;
  Job job(command({"--standby=2"}, /*last=*/100'000), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  for (int i = 0; i < kills; ++i) {
    auto pids = job.processes();
    std::erase(pids, job.keeper().value_or(0));
    if (pids.empty()) continue;
    ::kill(pids[random() % pids.size()], SIGKILL);
    ::usleep(random() % 300'000);
  }
  const auto rounds = [&] {
    const std::string out = job.out();
    return static_cast<int>(std::ranges::count(out, '\n'));
  };
  // The round that runs now, or follows, starts both of its workers.
  const int before = rounds();
  const auto pids = job.processes();
  for (const pid_t pid : pids) {
    if (pid != job.keeper()) ::kill(pid, SIGKILL);
  }
  EXPECT_TRUE(job.reaches([&] { return rounds() >= before + 2; })) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// With an optimizer that is nothing but its hooks.
TEST_F(Standby, SaysWhichImportsARestartRepeats) {
  module_with_optimizer();
  folder_.write("lib/slow/__init__.py", "");
  folder_.write("lib/slow/part.py", "import time\ntime.sleep(0.2)\n");
  folder_.write("lib/reader.py",
                "import os, time\ntime.sleep(0.1)\nrank = os.environ.get('RANK')\n");
  folder_.write("train.py", std::string("import os, sys, reader, slow.part\n"
                                        "import torch.optim.optimizer\n"
                                        "torch.optim.optimizer.Optimizer().step()\n"
                                        "assert reader.rank == os.environ['RANK']\n") +
                                kScript);
  for (const std::string preload : {"--preload=reader", "--preload=reader,slow.part"}) {
    Job job(command({"--standby=2"}, /*last=*/1, preload), setup());
    ASSERT_TRUE(wait_for_standbys(job)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("reader reads RANK while it is imported"));
    const std::string status = ddpctl("status " + std::to_string(job.pid())).output;
    const bool is_slow_loaded = preload != "--preload=reader";
    EXPECT_THAT(
        status,
        ContainsRegex(is_slow_loaded ? "each restart imports reader [0-9.]+ m?s\n"
                                     : "each restart imports reader [0-9.]+ m?s, slow.part [0-9.]+ "
                                       "m?s; --preload=slow.part saves [0-9.]+ m?s\n"));
    go(0);
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
    EXPECT_THAT(job.out(), HasSubstr("waited"));
    std::filesystem::remove(folder_ / "go-0");
  }
}

// A worker that was a standby knows what was not loaded for it. The text of the script does not name the module.
TEST_F(Standby, SaysWhichModulesOfALoadedPackageARestartImports) {
  module_with_optimizer();
  module("late", "import time\ntime.sleep(0.2)\n");
  folder_.write("train.py", std::string("__import__('torch.late')\n"
                                        "import torch.optim.optimizer\n"
                                        "torch.optim.optimizer.Optimizer().step()\n") +
                                kScript);
  Job job(command({"--standby=2"}), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  std::string status;
  const auto says_it = [&] {  // the worker imports it while the standbys are made
    status = ddpctl("status " + std::to_string(job.pid())).output;
    return status.find("each restart imports") != std::string::npos;
  };
  ASSERT_TRUE(job.reaches(says_it)) << status;
  EXPECT_THAT(status, ContainsRegex("each restart imports torch.late [0-9.]+ m?s; "
                                    "--preload=torch.late saves [0-9.]+ m?s\n"));
  go(0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST_F(Standby, AModuleThatReadsARankIsLeftOut) {
  folder_.write("lib/reader.py", "import os\nos.environ.get('LOCAL_RANK')\n");
  Job job(command({"--standby=2"}, /*last=*/1, "--preload=reader"), setup());
  EXPECT_TRUE(says(job, "reader reads LOCAL_RANK while it is imported")) << job.err();
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  go(0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("waited"));
}

TEST_F(Standby, AModuleThatMustNotBeForkedIsNot) {
  folder_.write("lib/busy.py",
                "import threading, time\n"
                "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n");
  Job job(command({"--standby=2"}, /*last=*/1, "--preload=busy"), setup());
  EXPECT_TRUE(says(job, "busy no longer: busy: it starts a thread")) << job.err();
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  go(0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST_F(Standby, AModuleThatEndsItsProcess) {
  module("__init__", std::string("import os\nif 'RANK' not in os.environ: os._exit(5)\n") + kTorch);
  Job job(command({"--standby=2"}), setup());
  EXPECT_TRUE(says(job, "no standbys: the process that loads modules ended with exit code 5"))
      << job.err();
  go(0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), Not(HasSubstr("waited")));
}

// This Python does not look at PYTHONPATH, so a zygote would run the program.
TEST_F(Standby, APythonThatCannotBeHeldNeverRunsTheProgramForIt) {
  module("__init__", kTorch + ("open('" + folder_ / "runs" + "', 'a').write('1')\n"));
  python_ = folder_.write(
      "python",
      "#!/bin/sh\nexport PYTHONPATH='" + folder_ / "lib" + "'\nexec " + DDPRUN_PYTHON + " \"$@\"\n",
      0755);
  Job job(command({"--standby=2"}), setup());
  EXPECT_TRUE(says(job, "its Python does not import a sitecustomize module")) << job.err();
  ASSERT_TRUE(both_run(job, 0)) << job.err();
  go(0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(read_file(folder_ / "runs"), "1111");
}

TEST_F(Standby, AProgramThatSetsWhatTorchHasReadStartsAnew) {
  folder_.write("train.py",
                std::string("import os\nos.environ['OMP_NUM_THREADS'] = '2'\n") + kScript);
  Job job(command({"--standby=2"}), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  go(0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("no standbys: the program sets OMP_NUM_THREADS"));
  EXPECT_THAT(job.out(), Not(HasSubstr("waited")));
}

// Its text says whether the first round's workers gain by the zygote.
TEST_F(Standby, WorkersOfTheFirstRoundHaveWaitedIfTheScriptImportsPyTorchAndSetsNothing) {
  const std::pair<std::string, const char*> imports[] = {
      {"import torch", "waited"},
      {kHiddenImport, "imported"},
      {"print(os.environ['PATH'] == os.environ.get('PATH'))\nfrom torch import nn\nimport torch",
       "waited"},
      {"os.environ['SET'] = '1'\nimport torch", "imported"},
      {"os.environ.setdefault('SET', '1')\nimport torch", "imported"}};
  for (const auto& [import, how] : imports) {
    folder_.write("train.py", script_with(import));
    Job job(command({"--standby=2"}, /*last=*/0, /*preload=*/""), setup());
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
    EXPECT_THAT(job.out(), HasSubstr(how)) << import;
  }
  folder_.write("train.py", kScript);
  folder_.write("part/settings.py", "import os\nos.environ['SET'] = '1'\n");
  Job job(command({"--standby=2"}, /*last=*/0, /*preload=*/""), setup());
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("imported")) << "the script may import it";
}

TEST_F(Standby, LeavesNothingWhenTheFirstStartIsStoppedInTheMiddle) {
  const std::string loading = folder_ / "loading";
  module("__init__", "import time\nopen('" + loading + "', 'w').close()\ntime.sleep(1000)\n");
  for (const int signal : {SIGKILL, SIGTERM}) {
    std::filesystem::remove(loading);
    Job job(command({"--standby=2"}), setup());
    ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(loading); })) << job.err();
    job.signal(signal);
    EXPECT_EQ(job.wait(), signal == SIGKILL ? killed_by(SIGKILL) : exited(128 + signal));
    EXPECT_EQ(job.out(), "");
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

TEST_F(Standby, RefusesWhatMakesNoSense) {
  const auto told = [&](const std::vector<std::string>& options) {
    return run_to_its_end(command(options, /*last=*/0), setup());
  };
  EXPECT_THAT(told({"--standby=some"}).err, HasSubstr("give off, auto, or how many"));
  EXPECT_EQ(told({"--standby=-1"}).code, 2);
  EXPECT_EQ(run_to_its_end(command({}, /*last=*/0, "--preload=a-b"), setup()).code, 2);
  EXPECT_THAT(told({"--standby=0"}).err,
              HasSubstr("--preload has no effect: no --standby is given"));
  const Told of_each =
      run_to_its_end(ddprun({"--standby=1", "--no-python"}, {"true", "${local_rank}"}), JobSetup{});
  EXPECT_EQ(of_each.code, 0);
  EXPECT_THAT(of_each.err, HasSubstr("has no effect: the arguments differ between workers"));
}

}  // namespace
}  // namespace ddprun::test
