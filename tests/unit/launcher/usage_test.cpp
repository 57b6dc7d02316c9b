// ddprun itself, run: what it prints and returns when nothing is to be started.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/temporary_tree.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Words = std::vector<std::string>;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

std::string contents(const std::string& file) {
  std::ifstream stream(file);
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

class Usage : public testing::Test {
 protected:
  Outcome ddprun(const Words& words, const Words& environment = {}) {
    return run(DDPRUN_PROGRAM, words, environment);
  }
  std::string output_of(const std::string& program, const Words& words) {
    return run(program, words, {}).out;
  }

  Outcome run(const std::string& program, const Words& words, const Words& environment) {
    const std::string out = tree_ / "stdout";
    const std::string err = tree_ / "stderr";
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    std::vector<char*> argv = {const_cast<char*>(program.c_str())};
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    std::vector<char*> envp = {const_cast<char*>("PATH=/usr/bin:/bin")};
    for (const std::string& line : environment) envp.push_back(const_cast<char*>(line.c_str()));
    envp.push_back(nullptr);
    pid_t child = 0;
    EXPECT_EQ(::posix_spawn(&child, program.c_str(), &files, nullptr, argv.data(), envp.data()), 0);
    posix_spawn_file_actions_destroy(&files);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(out), contents(err)};
  }

  TemporaryTree tree_;
};

TEST_F(Usage, HelpAndVersionGoToStdout) {
  const Outcome help = ddprun({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("usage: ddprun"));
  EXPECT_THAT(help.err, IsEmpty());
  EXPECT_EQ(ddprun({"-h"}).out, help.out);
  EXPECT_THAT(ddprun({"--version"}).out,
              testing::MatchesRegex(
                  "ddprun [0-9.]+ \\((commit [0-9a-f]+(, changed)?, )?round protocol [0-9]+\\)\n"));
}

// Each would start /bin/touch, which would leave a file behind.
TEST_F(Usage, WrongUseIsOneSentenceAndStartsNothing) {
  struct Case {
    Words words;
    Words environment;
    int exit_code;
    std::string sentence;
  };
  const std::string touched = tree_ / "touched";
  const std::vector<Case> cases = {
      {{"--nproc-per-node=0"}, {}, 2, "--nproc-per-node=0"},
      {{"--nproc-per-node=-1"}, {}, 2, "--nproc-per-node=-1"},
      {{"--nproc-per-node", "-1"}, {}, 2, "--nproc-per-node=-1"},
      {{"--nproc-per-node", "two"}, {}, 2, "--nproc-per-node=two"},
      {{"--nproc-per-node=5000"}, {}, 2, "at most 4096"},
      {{"--nproc-per-nodd", "3"}, {}, 2, "did you mean --nproc-per-node?"},
      {{"--max-restarts=x"}, {}, 2, "--max-restarts=x"},
      {{"--max-restarts"}, {}, 2, "--max-restarts"},
      {{"--log-dir=/proc/x"}, {}, 2, "--log-dir=/proc/x"},
      {{"--log-dir=/dev/full"}, {}, 2, "--log-dir=/dev/full"},
      {{}, {"PET_NPROC_PER_NODE=two"}, 2, "PET_NPROC_PER_NODE=two"},
      {{}, {"DDPRUN_DRY_RUN=perhaps"}, 2, "DDPRUN_DRY_RUN=perhaps"},
      {{"--nnodes=2", "--standalone"}, {}, 2, "--standalone is for one node"},
      {{"--nnodes=2", "--rdzv-backend=c10d"}, {}, 2, "give --rdzv-endpoint=HOST:PORT"},
      {{"--nnodes=2", "--master-port=0"}, {}, 2, "--master-port=0: port 0 is any"},
      {{"--nnodes=2", "--rdzv-id="}, {}, 2, "--rdzv-id=: each node"},
      {{"--master-addr=node0:29500"}, {}, 2, "the port is --master-port"},
      {{"--nnodes=2", "--node-rank=1"}, {"PET_MASTER_ADDR=tcp://node0"}, 2, "--master-port"},
      {{}, {"JOB_COMPLETION_INDEX=0", "JOBSET_NAME=llm"}, 2, "give --nnodes"},
      {{"--nnodes=2", "--rdzv-backend=etcd"}, {}, 2, "to know where etcd is"},
      {{"--restart-pause=2:1"}, {}, 2, "--restart-pause=2:1"},
      {{"--final-exit-codes=x"}, {}, 2, "--final-exit-codes=x"},
      {{"––nproc-per-node=2"}, {}, 2, "printed text; write --nproc-per-node=2"},
      {{"—standalone"}, {}, 2, "write --standalone"},
      {{"-–max-restarts", "1"}, {}, 2, "write --max-restarts"},
      {{"−r", "3"}, {}, 2, "write -r"},
      {{"--nproc-per-node=2\r"}, {}, 2, "sed -i"},
      {{"--role=trainer\r"}, {}, 2, "sed -i"},
      {{"--standalone\r"}, {}, 2, "--standalone ends with a carriage return"},
      {{"--standalone", "\r"}, {}, 2, "carriage return"},
      {{}, {"PET_ROLE=trainer\r"}, 2, "carriage return"},
      {{"--json"}, {}, 2, "--json: it goes with --dry-run only"},
      {{"--config=/no/such.toml"}, {}, 2, "--config=/no/such.toml"},
      {{"--print-completion=tcsh"}, {}, 2, "give bash, zsh or fish"},
      {{"--numa-binding=node"}, {"CUDA_VISIBLE_DEVICES="}, 2, "--numa-binding=node"},
      {{"--events=fd:99"}, {}, 2, "descriptor 99 is not open"},
      {{"--no-python", "-m"}, {}, 2, "--no-python: "},
      // What torchrun accepts and fails on later, or ends with a traceback for.
      {{"--nnodes=1:2:3"}, {}, 2, "--nnodes=1:2:3"},
      {{"--nnodes=0"}, {}, 2, "--nnodes=0"},
      {{"--nnodes=2:1"}, {}, 2, "--nnodes=2:1"},
      {{"--nnodes=x"}, {}, 2, "--nnodes=x"},
      {{}, {"PET_NNODES="}, 2, "PET_NNODES="},
      {{"--nproc-per-node=gpu"}, {"CUDA_VISIBLE_DEVICES="}, 2, "--nproc-per-node=gpu"},
      {{"--nproc-per-node=xpu"}, {}, 2, "--nproc-per-node=xpu"},
      {{"--max-restarts=-1"}, {}, 2, "--max-restarts=-1"},
      {{}, {"PET_MAX_RESTARTS=x"}, 2, "PET_MAX_RESTARTS=x"},
      {{"--monitor-interval=0"}, {}, 2, "--monitor-interval=0"},
      {{"--monitor-interval=-1"}, {}, 2, "--monitor-interval=-1"},
      {{"--monitor-interval=x"}, {}, 2, "--monitor-interval=x"},
      {{"--start-method=foo"}, {}, 2, "--start-method=foo"},
      {{}, {"PET_START_METHOD=foo"}, 2, "PET_START_METHOD=foo"},
      {{"--event-log-handler=foo"}, {}, 2, "--event-log-handler=foo"},
      {{"--logs-specs=foo"}, {}, 2, "--logs-specs=foo"},
      {{"-r4"}, {}, 2, "--redirects=4"},
      {{"-r", "x"}, {}, 2, "--redirects=x"},
      {{"-t", "0:4"}, {}, 2, "--tee=0:4"},
      {{"-t", "0:1,2"}, {}, 2, "--tee=0:1,2"},
      {{"--local-ranks-filter=x"}, {}, 2, "--local-ranks-filter=x"},
      {{"--rdzv-backend=foo"}, {}, 2, "--rdzv-backend=foo"},
      {{"--rdzv-endpoint=node0"}, {}, 2, "the port is missing"},
      {{"--rdzv-endpoint=node0:"}, {}, 2, "--rdzv-endpoint=node0:"},
      {{"--rdzv-endpoint=node0:65536"}, {}, 2, "--rdzv-endpoint=node0:65536"},
      {{"--rdzv-conf=a"}, {}, 2, "--rdzv-conf=a"},
      {{"--rdzv-conf=a="}, {}, 2, "--rdzv-conf=a="},
      {{"--rdzv-conf==b"}, {}, 2, "--rdzv-conf==***"},
      {{"--rdzv-conf=backend=c10d"}, {}, 2, "has an option of its own"},
      {{"--rdzv-conf=join_timeout=0"}, {}, 2, "join_timeout"},
      {{"--rdzv-conf=is_host=perhaps"}, {}, 2, "is_host"},
      {{"--standalone", "--rdzv-conf=store_type=file"}, {}, 2, "store_type"},
      {{"--node-rank=x"}, {}, 2, "--node-rank=x"},
      {{"--node-rank=1"}, {}, 2, "--node-rank=1"},
      {{"--master-port=65536"}, {}, 2, "--master-port=65536"},
      {{"--master-port=x"}, {}, 2, "--master-port=x"},
      {{"--numa-binding=foo"}, {}, 2, "--numa-binding=foo"},
      {{"--signals-to-handle=SIGKILL"}, {}, 2, "SIGKILL"},
      {{"--signals-to-handle=SIGSTOP"}, {}, 2, "SIGSTOP"},
      {{"--signals-to-handle=SIGFOO"}, {}, 2, "SIGFOO"},
      {{"--virtual-local-rank", "--nproc-per-node=2"},
       {"CUDA_VISIBLE_DEVICES=4"},
       2,
       "CUDA_VISIBLE_DEVICES"},
      {{"--node"}, {}, 2, "--node"},
      {{"--standalone=1"}, {}, 2, "--standalone"},
      {{"no-such-program"}, {}, 127, "no-such-program not found"},
      {{"/etc"}, {}, 126, "/etc is a directory"},
  };
  for (const Case& c : cases) {
    Words words = c.words;
    words.insert(words.end(), {"/bin/touch", touched});
    const Outcome outcome = ddprun(words, c.environment);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << testing::PrintToString(words);
    EXPECT_THAT(outcome.err, HasSubstr(c.sentence));
    EXPECT_THAT(outcome.err, testing::StartsWith("ddprun: "));
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(touched)) << testing::PrintToString(words);
  }
  const Outcome no_program = ddprun({"--standalone"});
  EXPECT_EQ(no_program.exit_code, 2);
  EXPECT_THAT(no_program.err, HasSubstr("no program was given"));
}

TEST_F(Usage, NoPasswordGetsToTheTerminalOrTheTerminationLog) {
  const std::string log = tree_.write("termination-log", "");
  const Words environment = {"DDPRUN_TERMINATION_LOG=" + log};
  const Words wrong = {"--nnodes=2", "--rdzv-conf=pasword=sesame,password=sesame,timeout=x"};
  const Words unknown_key = {"--rdzv-conf=pasword=sesame", "/bin/true"};
  const Words leader = {"leader", "--listen=127.0.0.1:0"};
  const Words wrong_leader = {leader[0], leader[1], wrong[0], wrong[1]};
  const Words misspelt = {leader[0], leader[1], "--rdzv-cof=password=sesame"};
  for (const Outcome& outcome :
       {ddprun(wrong, environment),
        ddprun({"/bin/true"}, {environment[0], "PET_RDZV_CONF=password=sesame,a"}),
        ddprun({wrong[1].substr(1), "/bin/true"}, environment), ddprun(unknown_key, environment),
        run(DDPRUN_DDPCTL, wrong_leader, environment), run(DDPRUN_DDPCTL, misspelt, environment)}) {
    EXPECT_THAT(outcome.err, HasSubstr("***"));
    EXPECT_THAT(outcome.out + outcome.err + contents(log), Not(HasSubstr("sesame")));
  }
  EXPECT_THAT(contents(log), HasSubstr("***"));
}

TEST_F(Usage, FlagBeatsEnvironmentBeatsFileAndErrorsNameTheirOrigin) {
  const std::string file =
      tree_.write("job.toml", "max-restarts = 1\nrole = 'file'\nnproc-per-node = 4\n");
  const Outcome outcome = ddprun({"--dry-run", "--config", file, "--max-restarts=3", "/bin/true"},
                                 {"PET_MAX_RESTARTS=2", "PET_ROLE=environment"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::ContainsRegex("max-restarts +3 +--max-restarts"));
  EXPECT_THAT(outcome.out, testing::ContainsRegex("role +environment +PET_ROLE"));
  EXPECT_THAT(outcome.out, testing::ContainsRegex("nproc-per-node +4 +.*job.toml:3"));

  tree_.write("job.toml", "\nnproc-per-node = 0\n");
  const Outcome wrong = ddprun({"--config", file, "/bin/true"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr(file + ":2: nproc-per-node = 0: "));
}

TEST_F(Usage, BashCompletesOptionsAndTheirValues) {
  const std::string script =
      tree_.write("completion.bash", ddprun({"--print-completion=bash"}).out);
  const auto completed = [&](const std::string& words, int current) {
    return output_of("/bin/bash", {"-c", "source " + script + "; COMP_WORDS=(" + words +
                                             "); COMP_CWORD=" + std::to_string(current) +
                                             "; _ddprun; printf '%s\\n' \"${COMPREPLY[@]}\""});
  };
  EXPECT_EQ(completed("ddprun --max", 1), "--max-restarts\n");
  EXPECT_EQ(completed("ddprun --exit-code ''", 2), "worker\ntorchrun\n");
  EXPECT_EQ(completed("ddprun --exit-code = t", 3), "torchrun\n");
  EXPECT_THAT(completed("ddprun --tee 3 --standa", 3), "--standalone\n");
  EXPECT_EQ(completed("ddprun --tee 3 prog --stand", 4), "\n") << "the program's own option";
}

TEST_F(Usage, DdpctlCompletesItsCommandsAndTheirOptions) {
  const auto script_for = [&](const std::string& shell) {
    return output_of(DDPRUN_DDPCTL, {"--print-completion=" + shell});
  };
  const std::string script = tree_.write("ddpctl.bash", script_for("bash"));
  const auto completed = [&](const std::string& words, int current) {
    return output_of("/bin/bash", {"-c", "source " + script + "; COMP_WORDS=(" + words +
                                             "); COMP_CWORD=" + std::to_string(current) +
                                             "; _ddpctl; printf '%s\\n' \"${COMPREPLY[@]}\""});
  };
  EXPECT_EQ(completed("ddpctl rep", 1), "replace\nreplay\n");
  EXPECT_EQ(completed("ddpctl logs --ta", 2), "--tail\n");
  EXPECT_EQ(completed("ddpctl store sta", 2), "stats\n");
  EXPECT_THAT(script_for("zsh"),
              testing::AllOf(HasSubstr("'stop:Stop a job"), HasSubstr("'--tail[of each worker")));
  EXPECT_THAT(script_for("fish"),
              testing::AllOf(HasSubstr("-a stop -d 'Stop a job"), HasSubstr(" -l tail -r -d ")));
  EXPECT_EQ(run(DDPRUN_DDPCTL, {"--print-completion=tcsh"}, {}).exit_code, 2);
}

TEST_F(Usage, DdpctlsManPageHasAllCommandsAndIsSoundTroff) {
  const std::string page = output_of(DDPRUN_DDPCTL, {"--print-man-page"});
  for (const std::string command :
       {"status", "logs", "stacks", "events", "stop", "restart", "replace", "forget", "store",
        "leader", "token", "replay", "doctor"}) {
    EXPECT_THAT(page, HasSubstr("\n.SS " + command + "\n"));
  }
  EXPECT_THAT(page, HasSubstr("\n.BR ddprun (1)\n"));
  const std::set<std::string> known{".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".BR", ".nf", ".fi"};
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    const bool is_request = line.starts_with('.') || line.starts_with('\'');
    EXPECT_TRUE(!is_request || known.contains(line.substr(0, line.find(' ')))) << line;
    EXPECT_EQ(line.find(".SH", 1), std::string::npos) << line;
  }
}

TEST_F(Usage, TheConfigFileMayHoldTheProgram) {
  const std::string file = tree_.write(
      "job.toml", "program = '/bin/echo'\narguments = ['from', 'file']\nshutdown-timeout = '2m'\n");
  EXPECT_EQ(ddprun({"--config", file}).out, "from file\n");
  EXPECT_EQ(ddprun({"--config", file, "/bin/echo", "here"}).out, "here\n");
  EXPECT_THAT(
      ddprun({"--config", file, "--dry-run"}).out,
      testing::MatchesRegex("Set\n(.|\n)*shutdown-timeout +2m +[^\n]*job.toml:3\n(.|\n)*Job\n"
                            "(.|\n)*Not set\n(.|\n)*nnodes +1:1 +default\n(.|\n)*"));
}

TEST_F(Usage, OptionsAfterTheProgramAreNamed) {
  const Outcome outcome =
      ddprun({"/bin/echo", "--nproc_per_node=2", "--lr=1", "--standalone", "--", "--tee"},
             {"DDPRUN_LOG_LEVEL=info"});
  EXPECT_EQ(outcome.out, "--nproc_per_node=2 --lr=1 --standalone -- --tee\n");
  EXPECT_THAT(outcome.err, HasSubstr("--nproc_per_node, --standalone go to the program"));
  EXPECT_THAT(ddprun({"/bin/echo", "--standalone"}).err, IsEmpty());
}

// A link in bin/, as an environment's python is one; a copy of the program is 12 MB.
TEST_F(Usage, TakesThePythonOfTheEnvironmentThatItWasCalledIn) {
  tree_.write("venv/pyvenv.cfg", "");
  const std::string python = tree_.write("venv/bin/python", "#!/bin/sh\n", 0755);
  const std::string script = tree_.write("train.py", "");
  std::filesystem::create_symlink(DDPRUN_PROGRAM, tree_ / "venv/bin/ddprun");
  EXPECT_THAT(run(tree_ / "venv/bin/ddprun", {"--dry-run", script}, {}).out,
              HasSubstr("run by " + python + " (from ddprun's environment)"));
  EXPECT_THAT(run(tree_ / "venv/bin/ddprun", {"--dry-run", script}, {"PYTHON_EXEC=/bin/true"}).out,
              HasSubstr("run by /bin/true (from PYTHON_EXEC)"));
}

TEST_F(Usage, InTorchrunsPlaceTheFirstDdprunsPythonIsTaken) {
  tree_.write("venv/pyvenv.cfg", "");
  const std::string python = tree_.write("venv/bin/python", "#!/bin/sh\n", 0755);
  const std::string script = tree_.write("train.py", "");
  std::filesystem::create_symlink(DDPRUN_PROGRAM, tree_ / "venv/bin/ddprun");
  EXPECT_THAT(
      run(tree_ / "venv/bin/ddprun", {"--as-torchrun", "torchrun", script}, {"DDPRUN_DRY_RUN=1"})
          .out,
      HasSubstr("run by " + python + " (from ddprun's environment)"));
}

TEST_F(Usage, OptionsBesideAsTorchrunAreReadWhereDdprunIsCalled) {
  const std::string file = tree_.write("job.toml", "exit-code = 'worker'\n");
  tree_.write("sub/empty", "");
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(tree_.path());
  const Outcome outcome = ddprun({"--as-torchrun", "--config=job.toml", "--events=events",
                                  "--record=record", "--log-dir=logs", "--token-file=token", "sh",
                                  "-c", "cd sub; export DDPRUN_DRY_RUN=1; torchrun /bin/true"});
  std::filesystem::current_path(here);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const std::string option : {"events", "record", "log-dir", "token-file"}) {
    const std::string name = option == "log-dir" ? "logs" : option.substr(0, option.find('-'));
    EXPECT_THAT(outcome.out, testing::ContainsRegex(option + " +" + tree_ / name + " +DDPRUN_"));
  }
  EXPECT_THAT(outcome.out, testing::ContainsRegex("exit-code +worker +" + file + ":1"));
}

TEST_F(Usage, AsTorchrunDoesWithoutATemporaryFolderThatPathCannotName) {
  tree_.write("a:b/empty", "");
  EXPECT_THAT(
      ddprun({"--as-torchrun", "sh", "-c", "torchrun --version"}, {"TMPDIR=" + tree_ / "a:b"}).out,
      testing::StartsWith("ddprun "));
}

TEST_F(Usage, WrongValuesBesideAsTorchrunAreRefusedAtOnce) {
  for (const std::string option :
       {"--max-restarts=abc", "--nproc-per-node=two", "--nnodes=x", "--node-rank=x", "--tee=7",
        "--master-port=x", "--numa-binding=x", "--exit-code=x", "--hang-timeout=x", "--standby=x",
        "--preempt-signal=x", "--metrics-port=x", "--attach-debugger=x", "--config=/no/such.toml",
        "--config=/dev/null"}) {
    const Outcome outcome = ddprun({"--as-torchrun", option, "--", "echo", "fine"});
    EXPECT_EQ(outcome.exit_code, 2) << option;
    EXPECT_THAT(outcome.err, HasSubstr(option));
    EXPECT_THAT(outcome.out, IsEmpty()) << option;
  }
  for (const Words& right : std::vector<Words>{{"--nnodes=2"},
                                               {"--nproc-per-node=gpu"},
                                               {"--keep-memory=60", "--standalone"},
                                               {"--rdzv-backend=etcd"},
                                               {"-m", "--no-python"},
                                               {"--attach-debugger=7"},
                                               {"--node-rank=3"},
                                               {"--standby=auto", "--preload=torchvision"},
                                               {"--preempt-signal=TERM"}}) {
    Words words{"--as-torchrun"};
    words.insert(words.end(), right.begin(), right.end());
    words.insert(words.end(), {"--", "echo", "fine"});
    const Outcome outcome = ddprun(words);
    EXPECT_EQ(outcome.out, "fine\n") << testing::PrintToString(right) << outcome.err;
    EXPECT_THAT(outcome.err, IsEmpty());
  }
}

// Without anything that says that its pods belong together.
TEST_F(Usage, APodOfASweepSaysFirstAndLastThatItIsAJobOfItsOwn) {
  const Words pod{"JOB_COMPLETION_INDEX=1", "HOSTNAME=train-1", "DDPRUN_LOG_LEVEL=info",
                  "DDPRUN_TERMINATION_LOG=" + tree_ / "message"};
  for (const std::string program : {"/bin/true", "/bin/false"}) {
    const Outcome outcome = ddprun({program}, pod);
    EXPECT_EQ(outcome.exit_code, program == "/bin/true" ? 0 : 1);
    const std::string line = outcome.err.substr(0, outcome.err.find('\n') + 1);
    EXPECT_THAT(line, HasSubstr("JOB_COMPLETION_INDEX=1"));
    EXPECT_TRUE(outcome.err.ends_with(line)) << outcome.err;
    EXPECT_GT(outcome.err.size(), 2 * line.size()) << outcome.err;
  }
  for (const std::string option : {"--nnodes=1", "--standalone"}) {
    EXPECT_THAT(ddprun({option, "/bin/true"}, pod).err, Not(HasSubstr("JOB_COMPLETION_INDEX=1,")));
  }
}

TEST_F(Usage, DryRunStartsNothingAndMakesNothing) {
  const std::string touched = tree_ / "touched";
  const Outcome outcome = ddprun({"--dry-run", "--log-dir", tree_ / "logs", "/bin/touch", touched});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("/bin/touch"));
  EXPECT_FALSE(std::filesystem::exists(touched));
  EXPECT_FALSE(std::filesystem::exists(tree_ / "logs"));
}

}  // namespace
}  // namespace ddprun
