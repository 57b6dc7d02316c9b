#include "launcher/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <csignal>

#include "agent/core/worker_environment.h"
#include "rendezvous/common/file_text.h"
#include "tests/support/accelerator_tree.h"
#include "tests/unit/launcher/plan/planning.h"

namespace ddprun::cli {
namespace {

using namespace std::chrono_literals;
using agent::StreamSet;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(Planning, DefaultsAreTorchruns) {
  const agent::Job made = job({}, {{"HOME", "/root"}});
  EXPECT_EQ(made.local_world_size, 1);
  EXPECT_EQ(made.restarts.max_restarts, 0);
  EXPECT_EQ(made.run_id, "none");
  EXPECT_EQ(made.role, "default");
  EXPECT_EQ(made.output, agent::OutputSpec{});
  EXPECT_EQ(made.environment,
            (Environment{{"HOME", "/root"},
                         {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"}}));
  EXPECT_EQ(made.program.path, tree_ / "cwd/prog");
}

TEST_F(Planning, CountsWorkersAsAsked) {
  EXPECT_EQ(job({"--nproc-per-node=3"}).local_world_size, 3);
  EXPECT_EQ(job({"--nproc-per-node=4096"}).local_world_size, 4096);
  EXPECT_EQ(job({"--nproc-per-node=cpu"}).local_world_size, 6);
  EXPECT_EQ(job({"--nproc-per-node=auto"}).local_world_size, 6);
  add_gpus(4);
  EXPECT_EQ(job({"--nproc-per-node=gpu"}).local_world_size, 4);
  EXPECT_EQ(job({"--nproc-per-node=auto"}).local_world_size, 4);
  EXPECT_EQ(job({"--nproc-per-node=cpu"}).local_world_size, 6);
  EXPECT_EQ(job({"--nproc-per-node=gpu"}, {{"CUDA_VISIBLE_DEVICES", "2,3"}}).local_world_size, 2);
  EXPECT_EQ(job({"--nproc-per-node=auto"}, {{"CUDA_VISIBLE_DEVICES", ""}}).local_world_size, 6);
}

TEST_F(Planning, CountsAmdsGpusForAProgramThatPythonDoesNotRun) {
  add_amd_node(tree_, 0, {.simds = 0});
  for (int node = 1; node <= 4; ++node) add_amd_node(tree_, node, {.minor = 127 + node});
  EXPECT_EQ(job({"--nproc-per-node=gpu"}).local_world_size, 4);
  EXPECT_EQ(job({"--nproc-per-node=auto"}).local_world_size, 4);
  EXPECT_EQ(job({"--nproc-per-node=auto"}, {{"HIP_VISIBLE_DEVICES", "2,3"}}).local_world_size, 2);
  EXPECT_THAT(refusal({"--nproc-per-node=gpu"}, {{"ROCR_VISIBLE_DEVICES", "-1"}}),
              HasSubstr("no GPU is visible; ROCR_VISIBLE_DEVICES is set to '-1'"));
  EXPECT_THAT(refusal({"--nproc-per-node=xpu"}), HasSubstr("no GPU of Intel's was found"));
}

TEST_F(Planning, OnlyPyTorchCountsOtherAccelerators) {
  add_intel_gpu(tree_, {.driver = "xe"});
  EXPECT_THAT(refusal({"--nproc-per-node=xpu"}),
              HasSubstr("an Intel GPU (xe, /dev/dri/renderD128) is there, and only PyTorch can "
                        "count such devices; give the number"));
  const auto made = plan({"--nproc-per-node=auto"});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->job.local_world_size, 6);
  EXPECT_THAT(made->warnings, Contains(HasSubstr("each CPU gets a worker; give the number")));
}

TEST_F(Planning, LocalRankArgIsBehindTheScript) {
  const auto words = [this](std::vector<std::string> options, std::vector<std::string> command) {
    options.insert(options.end(), command.begin(), command.end());
    const auto line = parse_command_line(options);
    const auto made = make_plan(resolve(*line, {{"PYTHON_EXEC", "/bin/sh"}}, {}), line->command,
                                {{"PYTHON_EXEC", "/bin/sh"}}, surroundings_);
    return made ? agent::worker_arguments(made->job.program, 1) : std::vector<std::string>{};
  };
  tree_.write("cwd/train.py", "");
  EXPECT_THAT(words({"--local-rank-arg"}, {"train.py", "--lr=1"}),
              ElementsAre("/bin/sh", "-u", "train.py", "--local-rank=1", "--lr=1"));
  EXPECT_THAT(words({"--local-rank-arg", "-m"}, {"pkg.train", "--lr=1"}),
              ElementsAre("/bin/sh", "-u", "-m", "pkg.train", "--local-rank=1", "--lr=1"));
  EXPECT_THAT(words({"--local-rank-arg", "--run-path"}, {"train.py"}),
              ElementsAre("/bin/sh", "-u", "-c", testing::_, "train.py", "--local-rank=1"));
  EXPECT_THAT(words({"--local-rank-arg"}, {"prog", "--lr=1"}),
              ElementsAre(tree_ / "cwd/prog", "--local-rank=1", "--lr=1"));
  EXPECT_THAT(words({"--local-rank-arg", "--use-env"}, {"train.py"}),
              ElementsAre("/bin/sh", "-u", "train.py"));
  EXPECT_THAT(words({}, {"train.py"}), ElementsAre("/bin/sh", "-u", "train.py"));
}

TEST_F(Planning, WarnsOfTorchrunsServersThatDdprunHasNot) {
  const auto made = plan(
      {}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}, {"TORCHELASTIC_HEALTH_CHECK_PORT", "8080"}});
  ASSERT_TRUE(made);
  EXPECT_THAT(made->warnings,
              ElementsAre(HasSubstr("TORCHELASTIC_ENABLE_FILE_TIMER has no effect"),
                          HasSubstr("TORCHELASTIC_HEALTH_CHECK_PORT has no effect: give "
                                    "--metrics-port, which serves /healthz and /livez")));
  const auto off = plan({}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "0"}});
  ASSERT_TRUE(off);
  EXPECT_THAT(off->warnings, IsEmpty());
}

TEST_F(Planning, AWorkersOwnDdprunDoesNotGetWhatIsForThisOne) {
  const agent::Job made = job({}, {{"DDPRUN_CALLERS_PYTHON", "/bin/sh"},
                                   {"DDPRUN_RECORD", "record"},
                                   {"DDPRUN_METRICS_PORT", "9400"},
                                   {"DDPRUN_METRICS_ADDRESS", "::1"},
                                   {"DDPRUN_MAX_RESTARTS", "1"}});
  EXPECT_EQ(made.record, "record");
  EXPECT_EQ(made.metrics, (rdzv::Endpoint{"::1", 9400}));
  for (const char* const name : {"DDPRUN_CALLERS_PYTHON", "DDPRUN_RECORD", "DDPRUN_METRICS_PORT",
                                 "DDPRUN_METRICS_ADDRESS"}) {
    EXPECT_FALSE(made.environment.contains(name)) << name;
  }
  EXPECT_TRUE(made.environment.contains("DDPRUN_MAX_RESTARTS"));
}

// A Python that says what is in a file, and notes what it was asked.
class PlanningForPython : public Planning {
 protected:
  PlanningForPython() {
    tree_.write("cwd/prog", "import torch\n");
    tree_.write("bin/python",
                "#!/bin/sh\nfor each; do last=$each; done\necho \"$last\" >>" + tree_ / "asked" +
                    "\necho some warning >&2\n. " + tree_ / "says" + "\n",
                0755);
    add_amd_node(tree_, 1, {});
  }
  void says(const std::string& commands) { tree_.write("says", commands + "\n"); }
  std::string asked() const { return file_text(tree_ / "asked"); }

  const Environment environment_{{"PYTHON_EXEC", tree_ / "bin/python"}};
};

TEST_F(PlanningForPython, ItsPyTorchIsAskedForWhatIsNotNvidias) {
  says("printf 'ddprun-devices 8\\n'");
  EXPECT_EQ(job({"--nproc-per-node=gpu"}, environment_).local_world_size, 8);
  EXPECT_EQ(job({"--nproc-per-node=auto"}, environment_).local_world_size, 8);
  EXPECT_EQ(job({"--nproc-per-node=xpu"}, environment_).local_world_size, 8);
  EXPECT_EQ(asked(), "gpu\nauto\nxpu\n");
}

TEST_F(PlanningForPython, ALaptopsGpuThatItsPyTorchCannotUseIsNone) {
  says("printf 'ddprun-devices 0\\n'");
  EXPECT_EQ(job({"--nproc-per-node=auto"}, environment_).local_world_size, 6);
  EXPECT_THAT(refusal({"--nproc-per-node=gpu"}, environment_), HasSubstr("PyTorch can use no GPU"));
}

TEST_F(PlanningForPython, AnswersThatAreNoneAreSaid) {
  says("echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1");
  EXPECT_THAT(refusal({"--nproc-per-node=gpu"}, environment_),
              HasSubstr("bin/python cannot say how many devices it has: ModuleNotFoundError: No "
                        "module named 'torch'; give the number"));
  const auto made = plan({"--nproc-per-node=auto"}, environment_);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->job.local_world_size, 6);
  EXPECT_THAT(made->warnings,
              Contains(HasSubstr("No module named 'torch': each CPU gets a worker")));
}

TEST_F(PlanningForPython, IsNotAskedWhereThereIsNothingOrNvidiasGpusAre) {
  add_gpus(2);
  EXPECT_EQ(job({"--nproc-per-node=gpu"}, environment_).local_world_size, 2);
  EXPECT_EQ(job({"--nproc-per-node=3"}, environment_).local_world_size, 3);
  EXPECT_EQ(asked(), "");
}

TEST_F(Planning, RefusesWorkerCountsThatMakeNoSense) {
  for (const std::string text : {"0", "-1", "4097", "99999999999999999999"}) {
    EXPECT_THAT(refusal({"--nproc-per-node=" + text}),
                HasSubstr("--nproc-per-node=" + text + ": "));
  }
  for (const std::string text : {"two", "", "2x", " 2", "1.5"}) {
    EXPECT_THAT(refusal({"--nproc-per-node=" + text}),
                HasSubstr("or auto, cpu, usable-cpus, gpu or xpu"))
        << text;
  }
  EXPECT_THAT(refusal({"--nproc-per-node=gpu"}), HasSubstr("no GPU was found"));
  EXPECT_THAT(refusal({"--nproc-per-node=gpu"}, {{"CUDA_VISIBLE_DEVICES", "-1"}}),
              HasSubstr("CUDA_VISIBLE_DEVICES is set to '-1'"));
}

TEST_F(Planning, AWrongValueNamesTheVariableItCameFrom) {
  EXPECT_THAT(refusal({}, {{"PET_NPROC_PER_NODE", "two"}}), HasSubstr("PET_NPROC_PER_NODE=two: "));
  EXPECT_THAT(refusal({}, {{"DDPRUN_MAX_RESTARTS", "-1"}}), HasSubstr("DDPRUN_MAX_RESTARTS=-1: "));
  EXPECT_THAT(refusal({}, {{"PET_STANDALONE", ""}}), HasSubstr("PET_STANDALONE=: give 1 (on)"));
}

TEST_F(Planning, ReadsRestarts) {
  EXPECT_EQ(job({"--max-restarts=7"}).restarts.max_restarts, 7);
  for (const std::string text : {"-1", "x", "", "1.0", "99999999999"}) {
    EXPECT_THAT(refusal({"--max-restarts=" + text}), HasSubstr("give a whole number of 0 or more"));
  }
}

TEST_F(Planning, RestartsAreNotHeldBackUnlessAsked) {
  rdzv::RestartRules rules;
  rules.max_restarts = 7;
  EXPECT_EQ(job({"--max-restarts=7"}).restarts, rules);
  rules.window = 1h;
  rules.no_progress_restarts = 2;
  EXPECT_EQ(job({"--max-restarts=7/1h", "--no-progress-restarts=2"}).restarts, rules);
  rules.window = 0s;
  rules.no_progress_restarts = 0;
  rules.min_uptime = 2500ms;
  rules.pause_after_failure = {1s, 60s};
  rules.final_exit_codes = {2, 139, 137};
  EXPECT_EQ(job({"--max-restarts=7", "--min-uptime=2.5", "--restart-pause=1:60",
                 "--final-exit-codes=2, SIGSEGV,KILL"})
                .restarts,
            rules);
  const auto pause = [this](const std::string& text) {
    return job({"--restart-pause=" + text}).restarts.pause_after_failure;
  };
  EXPECT_EQ(pause("0.5"), (rdzv::Backoff{500ms, 500ms})) << "always the same";
  EXPECT_EQ(pause("0"), (rdzv::Backoff{}));
  EXPECT_EQ(job({}, {{"DDPRUN_MIN_UPTIME", "9"}}).restarts.min_uptime, 9s);
}

TEST_F(Planning, RestartRulesThatMakeNoSenseAreRefused) {
  for (const std::string text : {"-1", "x", "", "nan"}) {
    EXPECT_THAT(refusal({"--min-uptime=" + text}), HasSubstr("give a time in seconds"));
  }
  for (const std::string text : {"x", "", "1:", "1:2:3", "-1"}) {
    EXPECT_THAT(refusal({"--restart-pause=" + text}), HasSubstr("or FIRST:MAX as in 1:60")) << text;
  }
  for (const std::string text : {"2:1", "0:60"}) {
    EXPECT_THAT(refusal({"--restart-pause=" + text}), HasSubstr("MAX at least FIRST")) << text;
  }
  for (const std::string text : {"0", "256", "x", "1,", "-1", "SIGFOO"}) {
    EXPECT_THAT(refusal({"--final-exit-codes=" + text}), HasSubstr("exit codes from 1 to 255"))
        << text;
  }
}

TEST_F(Planning, StandaloneHasARunIdOfItsOwn) {
  EXPECT_EQ(job({"--standalone"}).run_id, "random-id");
  EXPECT_EQ(job({}, {{"PET_STANDALONE", "1"}}).run_id, "random-id");
  EXPECT_EQ(job({}, {{"PET_STANDALONE", "0"}}).run_id, "none");
}

TEST_F(Planning, ReadsStreamMaps) {
  const agent::OutputSpec all = job({"-r", "3", "-t1"}).output;
  EXPECT_EQ(all.redirects, StreamSet::kBoth);
  EXPECT_EQ(all.tee, StreamSet::kStdout);
  const agent::OutputSpec some = job({"--redirects=0:2,12:3"}).output;
  EXPECT_EQ(some.redirects, StreamSet::kNone);
  EXPECT_EQ(some.redirects_of,
            (std::map<int, StreamSet>{{0, StreamSet::kStderr}, {12, StreamSet::kBoth}}));
  for (const std::string text :
       {"4", "-1", "", "x", "0:", ":1", "0:4", "0:1,", "1,2", "0:1 ,1:2"}) {
    EXPECT_THAT(refusal({"--tee=" + text}), HasSubstr("--tee=" + text + ": give 0 (none)"));
  }
}

TEST_F(Planning, WithoutAProgramSaysHowToGiveOne) {
  const auto made = make_plan(resolve({}, {}, {}), {}, {}, surroundings_);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(made.error().message, HasSubstr("no program was given"));
}

TEST_F(Planning, SaysThatItSetsTheNumberOfThreads) {
  const Environment chosen{{"OMP_NUM_THREADS", "4"}};
  EXPECT_THAT(plan({"--nproc-per-node=2"})->warnings,
              ElementsAre(HasSubstr("each of the 2 workers gets OMP_NUM_THREADS=1, as under")));
  EXPECT_THAT(plan({"--nproc-per-node=2"}, chosen)->warnings, IsEmpty());
  EXPECT_THAT(plan({"--nproc-per-node=1"})->warnings, IsEmpty());
}

TEST_F(Planning, UsableCpusAreCountedByANameOfTheirOwn) {
  const Environment threads{{"OMP_NUM_THREADS", "1"}};
  surroundings_.machine.affinity = std::vector<int>{1, 3};
  EXPECT_EQ(job({"--nproc-per-node=usable-cpus"}).local_world_size, 2);
  const auto all = plan({"--nproc-per-node=cpu"}, threads);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->job.local_world_size, 2) << "as torchrun since 2.12: the mask counts";
  EXPECT_THAT(all->warnings, IsEmpty());
  tree_.write("proc/self/cgroup", "0::/\n");
  tree_.write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(job({"--nproc-per-node=usable-cpus"}).local_world_size, 1);
  const auto with_quota = plan({"--nproc-per-node=cpu"}, threads);
  EXPECT_EQ(with_quota->job.local_world_size, 2);
  EXPECT_THAT(with_quota->warnings, ElementsAre(HasSubstr("leaves only 1")));
  EXPECT_THAT(plan({"--nproc-per-node=6"}, threads)->warnings, IsEmpty());
}

TEST_F(Planning, ReadsOutputOptions) {
  const agent::OutputSpec output =
      job({"--tee=3", "--local-ranks-filter=0, 2", "--duplicate-stdout-filters=app,,le,ora",
           "--duplicate-stderr-filters=", "--log-line-prefix-template=[${rank}] ",
           "--logs-specs=default"})
          .output;
  EXPECT_EQ(output.local_ranks_filter, (std::vector<int>{0, 2}));
  EXPECT_THAT(output.duplicate_stdout_filters, ElementsAre("app,le", "ora"));
  EXPECT_THAT(output.duplicate_stderr_filters, ElementsAre(""))
      << "given as empty it is one filter, which every line contains";
  EXPECT_EQ(output.line_prefix_template, "[${rank}] ");
  // torchrun's variable says how teed lines look; by itself it does not ask for any.
  const Environment torchruns = {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "x"}};
  EXPECT_EQ(job({}, torchruns).output.line_prefix_template, std::nullopt);
  EXPECT_EQ(job({"--tee=3"}, torchruns).output.line_prefix_template, "x");
  EXPECT_EQ(job({"--tee=1:2"}, torchruns).output.line_prefix_template, "x");
  EXPECT_EQ(job({"--log-line-prefix-template=y"}, torchruns).output.line_prefix_template, "y");
  EXPECT_EQ(job({}, {{"PET_LOG_LINE_PREFIX_TEMPLATE", "z"}}).output.line_prefix_template, "z");
  EXPECT_EQ(job({"--tee=3", "--log-line-prefix-template="}).output.line_prefix_template,
            std::nullopt);
  for (const std::string text : {"x", "0,", "-1", "0;1"}) {
    EXPECT_THAT(refusal({"--local-ranks-filter=" + text}), HasSubstr("give ranks"));
  }
  EXPECT_THAT(refusal({"--logs-specs=mine"}), HasSubstr("--logs-specs=mine: "));
}

TEST_F(Planning, WarnsOfOutputOptionsWithoutEffect) {
  const Environment threads{{"OMP_NUM_THREADS", "1"}};
  EXPECT_THAT(plan({"--log-dir=/dev/null", "--tee=3"})->warnings,
              ElementsAre(HasSubstr("--tee has no effect")));
  EXPECT_THAT(plan({"--duplicate-stdout-filters=x"})->warnings,
              ElementsAre(HasSubstr("give --tee")));
  EXPECT_THAT(plan({"--redirects=0:3,2:1", "--nproc-per-node=2"}, threads)->warnings,
              ElementsAre(HasSubstr("there is no local rank 2 among 2 workers")));
  EXPECT_THAT(plan({"--redirects=0:3,1:1", "--nproc-per-node=2"}, threads)->warnings, IsEmpty());
}

TEST_F(Planning, ReadsEventTargets) {
  EXPECT_FALSE(job({}).metrics);
  EXPECT_EQ(job({"--metrics-port=0"}).metrics, (rdzv::Endpoint{"127.0.0.1", 0}));
  EXPECT_EQ(job({"--metrics-port=65535"}).metrics, (rdzv::Endpoint{"127.0.0.1", 65535}));
  EXPECT_EQ(job({"--metrics-port=9400", "--metrics-address=::"}).metrics,
            (rdzv::Endpoint{"::", 9400}));
  EXPECT_THAT(refusal({"--metrics-port=1", "--metrics-address=b11"}),
              HasSubstr("give a numeric address of this machine"));
  EXPECT_THAT(refusal({"--metrics-address=0.0.0.0"}), HasSubstr("give --metrics-port, too"));
  EXPECT_THAT(refusal({"--metrics-port="}), HasSubstr("--metrics-port"));
  EXPECT_EQ(job({}).events, agent::EventSpec{});
  EXPECT_EQ(job({"--events=e.jsonl"}).events.file, "e.jsonl");
  EXPECT_EQ(job({"--events=fd:7"}).events.descriptor, 7);
  EXPECT_EQ(job({"--events", "-"}).events.descriptor, 1);
  EXPECT_EQ(job({"--on-event=cat >>e"}).events.command, "cat >>e");
  EXPECT_THAT(refusal({"--on-event="}), HasSubstr("give a command"));
  EXPECT_TRUE(job({"--event-log-handler=console"}).events.as_torchrun);
  EXPECT_FALSE(job({"--event-log-handler=dynamic_rendezvous"}).events.as_torchrun);
  for (const std::string text : {"", "fd:", "fd:x", "fd:-1"}) {
    EXPECT_THAT(refusal({"--events=" + text}), HasSubstr("--events=" + text + ": "));
  }
}

TEST_F(Planning, ReadsSignals) {
  EXPECT_THAT(job({}).stop_signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_THAT(job({"--signals-to-handle=SIGTERM, usr1,TERM"}).stop_signals,
              ElementsAre(SIGTERM, SIGUSR1));
  const auto with_unknown = plan({"--signals-to-handle=SIGTERM,SIGFOO"});
  ASSERT_TRUE(with_unknown) << "torchrun skips names it does not know";
  EXPECT_THAT(with_unknown->job.stop_signals, ElementsAre(SIGTERM));
  EXPECT_THAT(with_unknown->warnings, ElementsAre(HasSubstr("'SIGFOO' is no signal")));
  EXPECT_THAT(refusal({"--signals-to-handle=SIGKILL"}), HasSubstr("no process can catch SIGKILL"));
  EXPECT_THAT(refusal({"--signals-to-handle=TERM,SIGSTOP"}), HasSubstr("SIGSTOP"));
  EXPECT_THAT(refusal({"--signals-to-handle="}), HasSubstr("name at least one signal"));
  EXPECT_THAT(refusal({"--signals-to-handle=FOO"}), HasSubstr("name at least one signal"));
}

TEST_F(Planning, PreemptNoticeIsOfAProviderOrACommand) {
  using From = agent::NoticeSpec::From;
  const auto notice = [this](const std::string& text) {
    return job({"--preempt-notice=" + text}).preempt_notice;
  };
  EXPECT_EQ(job({}).preempt_notice, agent::NoticeSpec{});
  EXPECT_EQ(notice(""), agent::NoticeSpec{});
  EXPECT_EQ(notice("aws"), agent::NoticeSpec{From::kAws});
  EXPECT_EQ(notice("gcp"), agent::NoticeSpec{From::kGcp});
  EXPECT_EQ(notice(" azure "), agent::NoticeSpec{From::kAzure});
  for (const std::string command : {"/bin/sh", "cat /run/notice", "nothing || true", "[ -e x ]"}) {
    EXPECT_EQ(notice(command), (agent::NoticeSpec{From::kCommand, command}));
  }
  for (const std::string wrong : {"AWS", "aw", "amazon"}) {
    EXPECT_THAT(
        refusal({"--preempt-notice=" + wrong}),
        AllOf(HasSubstr("--preempt-notice=" + wrong + ": give aws, gcp, azure, or a command"),
              HasSubstr(wrong + " is no program on PATH")));
  }
  for (const std::string wrong : {"/nowhere/at/all", "./prog-that-is-not", "/etc/passwd"}) {
    EXPECT_THAT(refusal({"--preempt-notice=" + wrong}), HasSubstr(wrong + " is no program"));
  }
}

TEST_F(Planning, HealthCheckIsAutoOrACommand) {
  EXPECT_EQ(job({}).health_check, "");
  for (const std::string check : {"auto", "/bin/sh", "dcgmi diag -r 1", "[ -e /ok ]"}) {
    EXPECT_EQ(job({"--health-check=" + check}).health_check, check);
  }
  EXPECT_EQ(job({}, {{"DDPRUN_HEALTH_CHECK", " auto "}}).health_check, "auto");
  EXPECT_THAT(refusal({"--health-check="}), HasSubstr("--health-check=: give auto, or a command"));
  EXPECT_THAT(refusal({"--health-check= "}), HasSubstr("give auto, or a command"));
  EXPECT_THAT(refusal({"--health-check=Auto"}),
              HasSubstr("give auto, or a command; Auto is no program on PATH"));
  EXPECT_THAT(refusal({"--health-check=/etc/passwd"}), HasSubstr("/etc/passwd is no program"));
}

TEST_F(Planning, PreemptSignalMeansOneThingOnly) {
  EXPECT_EQ(job({"--preempt-signal=SIGUSR1"}).preempt_signal, SIGUSR1);
  const agent::Job on_term = job({"--preempt-signal=TERM"});
  EXPECT_EQ(on_term.preempt_signal, SIGTERM);
  EXPECT_THAT(on_term.stop_signals, ElementsAre(SIGINT, SIGHUP, SIGQUIT));
  EXPECT_THAT(refusal({"--preempt-signal=TERM", "--signals-to-handle=TERM"}),
              HasSubstr("can mean one thing only"));
  for (const std::string text : {"KILL", "x"}) {
    EXPECT_THAT(refusal({"--preempt-signal=" + text}), HasSubstr("that can be caught"));
  }
}

TEST_F(Planning, ReadsWhenAWaitIsAHangAndWhatFollows) {
  using std::chrono::milliseconds;
  EXPECT_EQ(job({}).hangs, agent::HangSpec{}) << "nothing, and a report";
  EXPECT_EQ(job({"--hang-timeout=90.5"}).hangs.timeout.fixed, milliseconds(90'500));
  EXPECT_TRUE(job({"--hang-timeout=auto"}).hangs.timeout.is_automatic);
  EXPECT_TRUE(job({}, {{"DDPRUN_ON_HANG", "restart"}}).hangs.restarts);
  EXPECT_FALSE(job({"--on-hang=report"}, {{"DDPRUN_ON_HANG", "restart"}}).hangs.restarts);
  for (const std::string text : {"0", "0.5", "-1", "x", "", "on", "AUTO", "inf"}) {
    EXPECT_THAT(refusal({"--hang-timeout=" + text}),
                HasSubstr("at least 1, such as 600 or 10m, or auto"))
        << text;
  }
  EXPECT_THAT(refusal({"--on-hang=kill"}), HasSubstr("restart"));
}

TEST_F(Planning, ReadsWhetherSlowRanksAreLookedFor) {
  EXPECT_FALSE(job({"--on-nan=report"}).stops_for_nan);
  EXPECT_TRUE(job({"--on-nan=stop"}).stops_for_nan);
  EXPECT_THAT(refusal({"--on-nan=restart"}), HasSubstr("stop"));
  EXPECT_TRUE(job({}).finds_slow_ranks);
  EXPECT_FALSE(job({"--slow-ranks=off"}).finds_slow_ranks);
  EXPECT_FALSE(job({}, {{"DDPRUN_SLOW_RANKS", "off"}}).finds_slow_ranks);
  EXPECT_THAT(refusal({"--slow-ranks=kill"}), HasSubstr("report"));
}

TEST_F(Planning, KeepsMemoryForTheNextDdprunOfTheSameName) {
  using std::chrono::milliseconds;
  const std::vector<std::string> words{"--keep-memory=600", "--rdzv-id=j"};
  EXPECT_EQ(job({"--rdzv-id=j"}).keep_memory, agent::KeepMemorySpec{});
  EXPECT_EQ(job({"--keep-memory=0"}).keep_memory, agent::KeepMemorySpec{});
  const auto kept = job(words).keep_memory;
  EXPECT_EQ(kept.time, milliseconds(600'000));
  EXPECT_EQ(kept.program, tree_ / "cwd/prog");
  EXPECT_EQ(job({"--rdzv-id=j"}, {{"DDPRUN_KEEP_MEMORY", "0.5"}}).keep_memory.time,
            milliseconds(500));
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--keep-memory=600"},
        {"--keep-memory=600", "--rdzv-id="},
        {"--keep-memory=600", "--rdzv-id=j", "--standalone"}}) {
    EXPECT_THAT(refusal(wrong), HasSubstr("--keep-memory=600: the next ddprun finds the memory by "
                                          "the job's name; give an --rdzv-id"));
  }
  EXPECT_THAT(refusal({"--keep-memory=long", "--rdzv-id=j"}), HasSubstr("a time in seconds"));
}

TEST_F(Planning, KeepsNoMemoryWhereAllProcessesEndTogether) {
  const std::vector<std::string> words{"--keep-memory=600", "--rdzv-id=j", "--nnodes=1"};
  const auto why = [&](const Environment& environment) {
    const auto made = plan(words, environment);
    EXPECT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(made->job.keep_memory, agent::KeepMemorySpec{});
    EXPECT_EQ(made->warnings.size(), 1U) << testing::PrintToString(made->warnings);
    return made->warnings.empty() ? "" : made->warnings.back();
  };
  EXPECT_EQ(
      why({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}),
      "--keep-memory has no effect: Kubernetes ends all processes of a pod with its ddprun, so "
      "no memory can outlive it");
  EXPECT_EQ(
      why({{"SLURM_JOB_ID", "7"},
           {"SLURM_STEP_ID", "0"},
           {"SLURM_PROCID", "0"},
           {"SLURM_NODEID", "0"},
           {"SLURM_NNODES", "1"},
           {"SLURM_NTASKS", "1"}}),
      "--keep-memory has no effect: Slurm ends all processes of a step with its ddprun, so no "
      "memory can outlive it");
  surroundings_.is_first_process = true;
  EXPECT_EQ(
      why({}),
      "--keep-memory has no effect: ddprun is process 1 here, and all other processes end with "
      "it, so no memory can outlive it");
}

TEST_F(Planning, KillsOrphansAfterSuccessWhereThatIsAskedFor) {
  EXPECT_FALSE(job({}).kills_orphans);
  EXPECT_TRUE(job({"--kill-orphans"}).kills_orphans);
  EXPECT_TRUE(job({}, {{"DDPRUN_KILL_ORPHANS", "1"}}).kills_orphans);
}

TEST_F(Planning, ReadsTimes) {
  using std::chrono::milliseconds;
  EXPECT_EQ(job({}).shutdown_timeout, milliseconds(30'000));
  EXPECT_EQ(job({"--shutdown-timeout=0.25"}).shutdown_timeout, milliseconds(250));
  EXPECT_EQ(job({"--shutdown-timeout=0"}).shutdown_timeout, milliseconds(0));
  EXPECT_EQ(job({}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120"}}).shutdown_timeout,
            milliseconds(120'000));
  EXPECT_EQ(job({}, {{"PET_SHUTDOWN_TIMEOUT", "60"}, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120"}})
                .shutdown_timeout,
            milliseconds(60'000));
  EXPECT_EQ(job({"--shutdown-timeout=90s"}).shutdown_timeout, milliseconds(90'000));
  EXPECT_EQ(job({}, {{"PET_SHUTDOWN_TIMEOUT", "1h30m"}}).shutdown_timeout, milliseconds(5'400'000));
  EXPECT_EQ(job({"--shutdown-timeout=0.5m250ms"}).shutdown_timeout, milliseconds(30'250));
  EXPECT_EQ(job({"--hang-timeout=2h"}).hangs.timeout.fixed, milliseconds(7'200'000));
  EXPECT_EQ(job({"--restart-pause=1s:2m"}).restarts.pause_after_failure.max, milliseconds(120'000));
  EXPECT_EQ(job({}).failure_shutdown_timeout, std::nullopt) << "the agent decides";
  EXPECT_EQ(job({"--failure-shutdown-timeout=30"}).failure_shutdown_timeout, milliseconds(30'000));
  EXPECT_EQ(
      job({"--shutdown-timeout=0.25", "--failure-shutdown-timeout=1"}).failure_shutdown_timeout,
      milliseconds(250))
      << "never more than the other";
  for (const std::string text :
       {"-1", "x", "", "nan", "inf", "1e10", "1x", "s", "1 s", "2h1", "1e1s", "9999999h", "0x10"}) {
    EXPECT_THAT(refusal({"--shutdown-timeout=" + text}), HasSubstr("give a time in seconds"))
        << text;
    EXPECT_THAT(refusal({"--exit-barrier-timeout=" + text}), HasSubstr("give a time in seconds"));
    EXPECT_THAT(refusal({"--monitor-interval=" + text}), HasSubstr("give a time in seconds"));
  }
  EXPECT_THAT(refusal({"--monitor-interval=0"}), HasSubstr("more than 0"));
  EXPECT_TRUE(plan({"--exit-barrier-timeout=0", "--monitor-interval=5"}));
}

TEST_F(Planning, ChoicesAreCheckedWhereverTheyComeFrom) {
  EXPECT_TRUE(job({"--exit-code=torchrun"}).exit_code_as_torchrun);
  EXPECT_FALSE(job({}).exit_code_as_torchrun);
  EXPECT_TRUE(plan({"--start-method=fork"}));
  EXPECT_THAT(refusal({"--start-method=frok"}),
              HasSubstr("give spawn, fork or forkserver; did you mean fork?"));
  EXPECT_THAT(refusal({}, {{"PET_START_METHOD", "foo"}}), HasSubstr("PET_START_METHOD=foo: "));
  EXPECT_THAT(refusal({"--event-log-handler=x"}), HasSubstr("give null, console or"));
  EXPECT_THAT(refusal({"--numa-binding=x"}), HasSubstr("give node, socket, exclusive or"));
}

TEST_F(Planning, VirtualLocalRankGivesEachWorkerItsOwnDevice) {
  EXPECT_TRUE(job({"--nproc-per-node=2"}).visible_devices_of.empty());
  EXPECT_THAT(job({"--virtual-local-rank", "--nproc-per-node=2"}).visible_devices_of,
              ElementsAre("0", "1"));
  EXPECT_THAT(
      job({"--virtual-local-rank", "--nproc-per-node=2"}, {{"CUDA_VISIBLE_DEVICES", "4, GPU-x,6"}})
          .visible_devices_of,
      ElementsAre("4", "GPU-x"));
  EXPECT_THAT(
      refusal({"--virtual-local-rank", "--nproc-per-node=2"}, {{"CUDA_VISIBLE_DEVICES", "4"}}),
      HasSubstr("--virtual-local-rank: each of the 2 workers"));
  EXPECT_THAT(job({"--virtual-local-rank", "--nproc-per-node=2"},
                  {{"CUDA_VISIBLE_DEVICES", "4,5"}, {"HIP_VISIBLE_DEVICES", "6,7"}})
                  .visible_devices_of,
              ElementsAre("6", "7"));
  EXPECT_THAT(
      refusal({"--virtual-local-rank", "--nproc-per-node=2"}, {{"HIP_VISIBLE_DEVICES", "4"}}),
      HasSubstr("HIP_VISIBLE_DEVICES, which is '4'"));
}

TEST_F(Planning, NumaBindingEndsUpAsCpuSets) {
  tree_.write("proc/driver/nvidia/gpus/0000:01:00.0/information", "GPU UUID: GPU-1\n");
  tree_.write("sys/bus/pci/devices/0000:01:00.0/numa_node", "0\n");
  tree_.write("sys/devices/system/node/node0/cpulist", "0-3\n");
  EXPECT_EQ(job({"--numa-binding=node"}).cpus_of, (std::vector<std::vector<int>>{{0, 1, 2, 3}}));
  EXPECT_TRUE(job({}).cpus_of.empty());
  EXPECT_THAT(refusal({"--numa-binding=node", "--nproc-per-node=2"}),
              HasSubstr("--numa-binding=node: 2 workers need as many visible GPUs"));
  EXPECT_THAT(refusal({"--numa-binding=node"}, {{"CUDA_VISIBLE_DEVICES", ""}}),
              HasSubstr("there are 0"));
}

TEST_F(Planning, PythonOptionsExcludeEachOther) {
  EXPECT_THAT(refusal({"-m", "--no-python"}), HasSubstr("needs Python"));
  EXPECT_THAT(refusal({"--no-python"}, {{"PET_MODULE", "1"}}), HasSubstr("(PET_MODULE)"));
  tree_.write("py/bin/python", "", 0755);
  const Environment python = {{"VIRTUAL_ENV", tree_ / "py"}};
  EXPECT_THAT(job({"-m"}, python).program.argv,
              ElementsAre(tree_ / "py/bin/python", "-u", "-m", "prog"));
  EXPECT_EQ(job({"--run-path", "-m", "--no-python"}, python).program.argv.at(2), "-c")
      << "--run-path wins, as under torchrun";
  EXPECT_THAT(job({"--no-python"}, python).program.argv, ElementsAre(tree_ / "cwd/prog"));
}

TEST_F(Planning, DoubledDollarIsKeptAndWarnedOf) {
  const auto line = parse_command_line(std::vector<std::string>{"prog", "kill -9 $$", "$x"});
  const auto made = make_plan(resolve(*line, {}, {}), line->command, {}, surroundings_);
  ASSERT_TRUE(made);
  EXPECT_THAT(made->warnings, ElementsAre(HasSubstr("'kill -9 $$' becomes '$'")));
  EXPECT_EQ(made->job.program.argv.at(1), "kill -9 $$") << "the agent replaces macros, per worker";
}

TEST_F(Planning, EtcdElectsTheLeader) {
  for (const std::string backend : {"etcd", "etcd-v2"}) {
    const auto planned = job({"--nnodes=2", "--rdzv-backend=" + backend, "--rdzv-endpoint=e1:1,e2",
                              "--rdzv-conf=lease_time=2,etcd_prefix=/x"});
    EXPECT_EQ(planned.nodes.leader.where, rdzv::LeaderSpec::Where::kElected);
    const rdzv::EtcdSpec& etcd = planned.nodes.leader.etcd.value();
    EXPECT_THAT(etcd.endpoints, ElementsAre(rdzv::Endpoint{"e1", 1}, rdzv::Endpoint{"e2", 2379}));
    EXPECT_EQ(etcd.lease, std::chrono::seconds(2));
    EXPECT_EQ(etcd.prefix, "/x");
    EXPECT_FALSE(etcd.is_tls);
  }
  EXPECT_THAT(refusal({"--nnodes=2", "--rdzv-backend=etcd"}), HasSubstr("where etcd is"));
}

TEST_F(Planning, EtcdTakesItsKeysInBothSpellings) {
  const auto etcd = [this](const std::string& conf) {
    return job({"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=e", "--rdzv-conf=" + conf})
        .nodes.leader.etcd.value();
  };
  const rdzv::TlsFiles files{"a", "b", "c"};
  EXPECT_EQ(etcd("cacert=a,cert=b,key=c").tls, files);
  EXPECT_EQ(etcd("ca_cert=a,ssl_cert=b,ssl_cert_key=c").tls, files);
  EXPECT_TRUE(etcd("ca_cert=a").is_tls);
  EXPECT_TRUE(etcd("protocol=https").is_tls);
  EXPECT_EQ(etcd("user=u,password=p").password, "p");
  const auto refused = [this](const std::string& conf) {
    return refusal(
        {"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=e", "--rdzv-conf=" + conf});
  };
  EXPECT_THAT(refused("user=u"), HasSubstr("needs a password_file"));
  EXPECT_THAT(refused("password=p"), HasSubstr("needs its user"));
  EXPECT_THAT(refused("protocol=ftp"), HasSubstr("http or https"));
  EXPECT_THAT(refused("protocol=http,ca_cert=a"), HasSubstr("of no use"));
  EXPECT_THAT(refused("lease_time=0"), HasSubstr("lease_time"));
  EXPECT_THAT(refused("user=u,password_file=/nowhere"),
              HasSubstr("the password file /nowhere: No such file"));
}

TEST_F(Planning, APasswordIsNotShown) {
  const auto line = parse_command_line(
      std::vector<std::string>{"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=e",
                               "--rdzv-conf=user=u,password=sesame,lease_time=2", "prog"});
  const auto made = make_plan(resolve(*line, {}, {}), line->command, {}, surroundings_);
  ASSERT_TRUE(made);
  for (const std::string& text : {to_table(*made), to_json(*made)}) {
    EXPECT_THAT(text, Not(HasSubstr("sesame")));
    EXPECT_THAT(text, HasSubstr("user=u,password=***,lease_time=2"));
  }
}

TEST_F(Planning, AJobOnOneNodeMeetsOnLoopbackAtAnyPortUnlessTold) {
  const auto place = [this](const std::vector<std::string>& words) {
    return job(words).store_endpoint;
  };
  using Place = agent::StoreEndpoint;
  EXPECT_EQ(place({}), (Place{"127.0.0.1", 0, 0}));
  EXPECT_EQ(place({"--standalone"}), (Place{"127.0.0.1", 0, 0}));
  EXPECT_EQ(place({"--master-port=29511"}), (Place{"127.0.0.1", 29511, 29511}));
  EXPECT_EQ(place({"--master-port=0"}), (Place{"127.0.0.1", 0, 0}));
  EXPECT_EQ(place({"--master-addr=localhost"}), (Place{"localhost", 0, 0}));
  EXPECT_EQ(place({"--rdzv-endpoint=node0:1234"}), (Place{"node0", 1234, 1234}));
  EXPECT_EQ(place({"--rdzv-backend=c10d", "--rdzv-endpoint=node0:1234"}),
            (Place{"127.0.0.1", 0, 0}))
      << "the endpoint is where nodes meet, not workers";
  EXPECT_EQ(place({"--rdzv-backend=c10d", "--local-addr=10.0.0.5"}), (Place{"10.0.0.5", 0, 0}));
  EXPECT_EQ(place({"--standalone", "--local-addr=10.0.0.5"}), (Place{"10.0.0.5", 0, 0}));
  EXPECT_EQ(place({"--master-port-range=3000:3010"}), (Place{"127.0.0.1", 3000, 3010}));
  for (const std::string text : {"3000", "3010:3000", "0:10", "1:65536", "a:b", "1:2:3", ":"}) {
    EXPECT_THAT(refusal({"--master-port-range=" + text}), HasSubstr("such as 29500:29599")) << text;
  }
  EXPECT_THAT(refusal({"--master-port-range=1:2", "--master-port=3"}),
              HasSubstr("fixed already by --master-port"));
}

TEST_F(Planning, TheStoresMemoryIsBounded) {
  EXPECT_EQ(job({}).store_endpoint.store_memory, std::size_t{1} << 30);
  EXPECT_EQ(job({"--store-memory=64"}).store_endpoint.store_memory, std::size_t{64} << 20);
  EXPECT_EQ(job({"--store-memory=2147483647"}).store_endpoint.store_memory,
            std::size_t{2147483647} << 20);
  for (const std::string text : {"0", "-1", "1GiB", "2147483648"}) {
    EXPECT_THAT(refusal({"--store-memory=" + text}), HasSubstr("--store-memory=" + text)) << text;
  }
}

TEST_F(Planning, RunIdIsAsGivenAndNeverEmpty) {
  EXPECT_EQ(job({"--rdzv-id=job7"}).run_id, "job7");
  EXPECT_EQ(job({"--standalone", "--rdzv-id=job7"}).run_id, "random-id");
  const auto empty = plan({"--rdzv-id="});
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->job.run_id, "random-id");
  EXPECT_THAT(empty->warnings, ElementsAre(HasSubstr("--rdzv-id is empty")));
}

TEST_F(Planning, LogDirectoryIsMadeAndTriedBeforehand) {
  const std::string directory = tree_ / "logs/deep";
  auto made = plan({"--log-dir=" + directory});
  ASSERT_TRUE(made);
  EXPECT_FALSE(std::filesystem::exists(directory)) << "planning starts nothing and makes nothing";
  EXPECT_TRUE(prepare_outputs(*made));
  EXPECT_TRUE(std::filesystem::is_empty(directory));

  EXPECT_TRUE(prepare_outputs(*plan({})));
  EXPECT_TRUE(prepare_outputs(*plan({"--log-dir=/dev/null"})));
  EXPECT_TRUE(prepare_outputs(*plan({"--log-dir="}))) << "none, as under torchrun";
  const std::string file = tree_.write("file", "");
  for (const std::string& bad : {file, file + "/below", std::string("/proc/nowhere")}) {
    const auto prepared = prepare_outputs(*plan({"--log-dir=" + bad}));
    ASSERT_FALSE(prepared) << bad;
    EXPECT_EQ(prepared.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(prepared.error().message, HasSubstr("--log-dir=" + bad));
  }
}

TEST_F(Planning, EventTargetIsTriedBeforehand) {
  const std::string file = tree_ / "events.jsonl";
  EXPECT_TRUE(prepare_outputs(*plan({"--events=" + file})));
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_TRUE(prepare_outputs(*plan({"--events=fd:2"})));
  for (const std::string& bad : {tree_ / "no/such/folder", std::string("fd:987")}) {
    const auto prepared = prepare_outputs(*plan({"--events=" + bad}));
    ASSERT_FALSE(prepared) << bad;
    EXPECT_EQ(prepared.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(prepared.error().message, HasSubstr("--events=" + bad));
  }
}

TEST_F(Planning, JsonHasThePlanAndEveryOriginInOneLine) {
  const auto made = plan({"--nproc-per-node=2", "--preempt-signal=USR1"}, {{"PET_TEE", "3"}});
  ASSERT_TRUE(made);
  const std::string text = to_json(*made);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const boost::json::value json = boost::json::parse(text);
  EXPECT_EQ(json.at("job").at("local_world_size"), 2);
  EXPECT_EQ(json.at("job").at("preempt_signal"), "SIGUSR1");
  EXPECT_TRUE(json.at("job").at("preempt_notice").is_null());
  EXPECT_EQ(json.at("job").at("health_check"), "");
  EXPECT_EQ(json.at("rendezvous").at("backend"), "static");
  const boost::json::object& settings = json.at("settings").as_object();
  EXPECT_EQ(settings.size(), kOptionCount);
  EXPECT_EQ(settings.at("tee").at("value"), "3");
  EXPECT_EQ(settings.at("tee").at("origin"), "PET_TEE");
  EXPECT_EQ(settings.at("redirects").at("origin"), "default");
  const boost::json::array& workers = json.at("workers").as_array();
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[1].at("environment").at("RANK"), "1");
  EXPECT_EQ(workers[1].at("environment").at("MASTER_PORT"), "(chosen at the start)");
  EXPECT_FALSE(workers[1].at("environment").as_object().contains("PET_TEE")) << "it is inherited";
  EXPECT_EQ(boost::json::value_to<std::string>(workers[1].at("argv").at(0)), tree_ / "cwd/prog");
}

TEST_F(Planning, TableShowsEveryValueWithItsOrigin) {
  const auto made = plan({"--nproc-per-node=2", "--max-restarts=1"}, {{"PET_TEE", "3"}});
  ASSERT_TRUE(made);
  const std::string table = to_table(*made);
  EXPECT_THAT(table, testing::ContainsRegex("nproc-per-node +2 +--nproc-per-node\n"));
  EXPECT_THAT(table, testing::ContainsRegex("tee +3 +PET_TEE\n"));
  EXPECT_THAT(table, testing::ContainsRegex("redirects +0 +default\n"));
  EXPECT_THAT(table, HasSubstr("\n  WORLD_SIZE=2\n"));
}

}  // namespace
}  // namespace ddprun::cli
