// The environment of a starting worker: its ranks, its arguments, and otherwise the same process
// state as if a shell had started it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Launch, EveryWorkerFindsItsPlaceInTheEnvironment) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=3", "--max-restarts=4", "--role=trainer", "--rdzv-id=job-7"},
                 worker({"environment", folder / "{rank}", "until", folder / "go"})),
          {.environment = {{"THE_USERS_OWN", "a b=c"}}, .removed_variables = {"OMP_NUM_THREADS"}});
  for (const std::string rank : {"0", "1", "2"}) {
    SCOPED_TRACE("rank " + rank);
    ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(folder / rank); })) << job.err();
    auto environment = environment_in(folder / rank);
    EXPECT_EQ(environment["RANK"], rank);
    EXPECT_EQ(environment["LOCAL_RANK"], rank);
    EXPECT_EQ(environment["WORLD_SIZE"], "3");
    EXPECT_EQ(environment["LOCAL_WORLD_SIZE"], "3");
    EXPECT_EQ(environment["GROUP_RANK"], "0");
    EXPECT_EQ(environment["GROUP_WORLD_SIZE"], "1");
    EXPECT_EQ(environment["ROLE_NAME"], "trainer");
    EXPECT_EQ(environment["ROLE_RANK"], rank);
    EXPECT_EQ(environment["ROLE_WORLD_SIZE"], "3");
    EXPECT_EQ(environment["TORCHELASTIC_RESTART_COUNT"], "0");
    EXPECT_EQ(environment["TORCHELASTIC_MAX_RESTARTS"], "4");
    EXPECT_EQ(environment["TORCHELASTIC_RUN_ID"], "job-7");
    EXPECT_EQ(environment["TORCHELASTIC_USE_AGENT_STORE"], "True");
    EXPECT_TRUE(environment.contains("TORCHELASTIC_ERROR_FILE"));
    EXPECT_EQ(environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "1");
    EXPECT_EQ(environment["OMP_NUM_THREADS"], "1");
    EXPECT_EQ(environment["THE_USERS_OWN"], "a b=c");
    EXPECT_EQ(environment["MASTER_ADDR"], "127.0.0.1");
    ASSERT_TRUE(environment.contains("MASTER_PORT"));
    EXPECT_TRUE(is_listening(std::stoi(environment.at("MASTER_PORT"))));
  }
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST(Launch, LeavesThreadCountAloneForOneWorkerOrWhenTheUserSetIt) {
  const TemporaryTree folder;
  const Command program = worker({"environment", folder / "found"});
  EXPECT_EQ(Job(ddprun({}, program), {.removed_variables = {"OMP_NUM_THREADS"}}).wait(), exited(0));
  EXPECT_FALSE(environment_in(folder / "found").contains("OMP_NUM_THREADS"));

  Job job(ddprun({"--nproc-per-node=2"}, program), {.environment = {{"OMP_NUM_THREADS", "5"}}});
  EXPECT_EQ(job.wait(), exited(0));
  EXPECT_EQ(environment_in(folder / "found")["OMP_NUM_THREADS"], "5");
  EXPECT_THAT(job.err(), Not(HasSubstr("OMP_NUM_THREADS")));

  Job told(ddprun({"--nproc-per-node=2"}, program), {.removed_variables = {"OMP_NUM_THREADS"}});
  EXPECT_EQ(told.wait(), exited(0));
  EXPECT_THAT(told.err(), HasSubstr("OMP_NUM_THREADS is not set, so each of the 2 workers gets "
                                    "OMP_NUM_THREADS=1, as under torchrun"));
}

TEST(Launch, ArgumentsReachTheProgramExactlyAsGiven) {
  Job job(ddprun({}, {"/usr/bin/printf", "<%s>\n", "a b", "", "--nproc-per-node=9", "--", "-h",
                      "$HOME", "*", "a\nb", "\"'\\", "--max_restarts", "é"}));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.out(),
            "<a b>\n<>\n<--nproc-per-node=9>\n<-->\n<-h>\n<$HOME>\n<*>\n<a\nb>\n<\"'\\>\n"
            "<--max_restarts>\n<é>\n");
}

TEST(Launch, OneDoubleDashBeforeTheProgramIsDropped) {
  Job job(ddprun({"--nproc-per-node", "1", "--"}, {"/usr/bin/printf", "<%s>", "--", "x"}));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.out(), "<--><x>");
}

TEST(Launch, LocalRankIsFilledIntoArguments) {
  Job job(
      ddprun({"--nproc-per-node=2"}, worker({"print", "${local_rank} of $local_rank, $other"})));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("0 of 0, $other\n"));
  EXPECT_THAT(job.out(), HasSubstr("1 of 1, $other\n"));
}

TEST(Launch, BothSpellingsOfAnOptionMeanTheSame) {
  for (const char* option : {"--nproc_per_node=3", "--nproc-per-node=3"}) {
    Job job(ddprun({option}, worker({"print", "x"})));
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
    EXPECT_EQ(job.out(), "x\nx\nx\n");
  }
}

TEST(Launch, StdinIsInherited) {
  const TemporaryTree folder;
  Job job(ddprun({}, worker({"copy-stdin", folder / "got"})), {.stdin_text = "from\nthe user"});
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(read_file(folder / "got"), "from\nthe user");
}

TEST(Launch, WorkerStartsAsCleanAsFromAShell) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2"}, worker({"state", folder / "{rank}", "wait"})),
          {.directory = folder.path()});
  for (const std::string rank : {"0", "1"}) {
    ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(folder / rank); })) << job.err();
    const auto state = state_in(folder / rank);
    EXPECT_EQ(state.at("fds"), "0,1,2," + state.at("link"));
    EXPECT_EQ(state.at("blocked"), "");
    EXPECT_EQ(state.at("ignored"), "");
    EXPECT_EQ(state.at("cwd"), folder.path());
    EXPECT_EQ(state.at("parent"), std::to_string(job.pid()));
    EXPECT_EQ(state.at("group"), state.at("pid")) << "a process group of its own";
    EXPECT_EQ(state.at("session"), state.at("pid")) << "a session of its own";
  }
}

// nohup, and shells that ignore SIGINT for what they start in the background.
TEST(Launch, SignalsIgnoredBeforeStayIgnoredForWorkers) {
  const TemporaryTree folder;
  Job job(ddprun({}, worker({"state", folder / "found"})), {.ignored = {SIGHUP, SIGPIPE}});
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(state_in(folder / "found").at("ignored"), "1,13");
}

// A program that starts processes from a thread with blocked signals.
TEST(Launch, StopSignalsBlockedBeforeStopTheJob) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    SCOPED_TRACE(signal);
    const TemporaryTree folder;
    Job job(ddprun({}, worker({"state", folder / "found", "wait"})),
            {.blocked = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGTSTP, SIGUSR1}});
    ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(folder / "found"); }))
        << job.err();
    EXPECT_EQ(state_in(folder / "found").at("blocked"), "10,20")
        << "SIGUSR1 and SIGTSTP stop no job";
    job.signal(signal);
    EXPECT_EQ(job.wait(), exited(128 + signal)) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

TEST(Launch, FindsANameInTheCurrentFolderThenOnPath) {
  const TemporaryTree folder;
  const TemporaryTree on_path;
  write_file(on_path / "tool", "#!/bin/sh\necho from PATH\n", 0755);
  const JobSetup setup{.environment = {{"PATH", on_path.path() + ":/usr/bin:/bin"}},
                       .directory = folder.path()};
  {
    Job job(ddprun({}, {"tool"}), setup);
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
    EXPECT_EQ(job.out(), "from PATH\n");
  }
  write_file(folder / "tool", "#!/bin/sh\necho from here\n", 0755);
  Job job(ddprun({}, {"tool"}), setup);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.out(), "from here\n");
}

TEST(Launch, FindsTheProgramsBesideDdprun) {
  Job job(ddprun({}, {"ddprun_test_worker", "print", "found"}), {.directory = "/"});
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.out(), "found\n");
}

TEST(Launch, RunsPythonFilesWithPython) {
  const TemporaryTree folder;
  write_file(folder / "named.py", "import sys; print('ran', sys.argv[1])\n");
  write_file(folder / "unnamed", "import sys; print('ran', sys.argv[1])\n");
  for (const char* name : {"named.py", "unnamed"}) {
    Job job(ddprun({}, {folder / name, "well"}));
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
    EXPECT_EQ(job.out(), "ran well\n");
  }
}

// As pip installs a command; without -u its line would stay in a buffer.
TEST(Launch, TheFirstLineNamesThePythonAndNothingStaysInABuffer) {
  const TemporaryTree folder;
  std::filesystem::create_directories(folder / "venv/bin");
  const std::string own = folder / "venv/bin/python3";
  write_file(own, "#!/bin/sh\nexport RUN_BY=own\nexec python3 \"$@\"\n", 0755);
  struct Case {
    std::string first_line;
    bool is_own;
    std::string warning;
  };
  const std::vector<Case> cases = {{"#!" + own + "\n", true, ""},
                                   {"#!" + own + " -s -E\n", true, ""},
                                   {"#!/usr/bin/env " + own + "\n", true, ""},
                                   {"", false, ""},
                                   {"#!/no/such/python\n", false, "names /no/such/python"},
                                   {"#!" + own + "\r\n", false, "carriage return"}};
  for (const Case& c : cases) {
    write_file(folder / "command",
               c.first_line +
                   "import os, sys\n"
                   "print('ran', sys.argv[1], os.environ.get('RUN_BY'))\n"
                   "os._exit(3)\n",
               0755);
    Job job(
        ddprun({}, {folder / "command", "well"}),
        {.removed_variables = {"PYTHONUNBUFFERED", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON_EXEC"}});
    EXPECT_EQ(job.wait(), exited(3)) << job.err();
    EXPECT_EQ(job.out(), c.is_own ? "ran well own\n" : "ran well None\n") << c.first_line;
    EXPECT_EQ(job.err().find("warning: the first line of") != std::string::npos, !c.warning.empty())
        << job.err();
    EXPECT_THAT(job.err(), HasSubstr(c.warning));
  }
}

// By a link, as a package of Python installs it: the environment is that of the link.
TEST(Launch, TakesThePythonOfTheEnvironmentThatItIsCalledIn) {
  const TemporaryTree folder;
  const std::string venv = folder / "venv";
  std::filesystem::create_directories(venv + "/bin");
  write_file(venv + "/pyvenv.cfg", "");
  write_file(venv + "/bin/python", "#!/bin/sh\necho the environment\\'s\n", 0755);
  write_file(folder / "train.py", "");
  std::filesystem::create_symlink(ddprun({}).front(), venv + "/bin/ddprun");
  JobSetup setup;
  setup.removed_variables = {"PYTHON_EXEC", "VIRTUAL_ENV", "CONDA_PREFIX"};
  // As a shell finds it on PATH.
  const Told told = run_to_its_end({"env", "PATH=" + venv + "/bin:/usr/bin:/bin", "ddprun",
                                    "--nproc-per-node=1", folder / "train.py"},
                                   setup);
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_EQ(told.out, "the environment's\n");
}

TEST(Launch, ReadsAConfigurationFromAPipe) {
  const Told told =
      run_to_its_end({"sh", "-c",
                      std::string("echo 'nproc-per-node = 2' | ") + ddprun({}).front() +
                          " --config=/dev/stdin sh -c 'echo $WORLD_SIZE'"});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_EQ(told.out, "2\n2\n");
}

TEST(Launch, RunsAPythonArchive) {
  const TemporaryTree folder;
  std::filesystem::create_directories(folder / "app");
  write_file(folder / "app/__main__.py", "import sys; print('ran', sys.argv[1])\n");
  for (const Command& more : {Command{}, Command{"-p", "/usr/bin/env python3"}}) {
    Command command{"/usr/bin/env", "python3",         "-m", "zipapp", folder / "app",
                    "-o",           folder / "app.pyz"};
    command.insert(command.end(), more.begin(), more.end());
    Job zip(command);
    ASSERT_EQ(zip.wait(), exited(0)) << zip.err();
    std::filesystem::permissions(folder / "app.pyz", std::filesystem::perms::owner_all);
    Job job(ddprun({}, {folder / "app.pyz", "well"}));
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
    EXPECT_EQ(job.out(), "ran well\n");
  }
}

TEST(Launch, StartsSixtyFourWorkers) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=64"}, worker({"stamp", folder.path()})));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(stamps(folder.path(), 0).size(), 64U);
}

// Two connections of each of 47 workers, as LibTorch's have them: VALIDATE and PING over one, VALIDATE
// and BARRIER of all over the other. Says the limit that the worker has.
Command with_two_connections() {
  return {"bash", "-c",
          R"sh(exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT 4<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT
             printf '\0\xce\xf7\x85\x3c\xd\1\0\0\0' >&3
             head -c 4 <&3 >/dev/null
             printf '\0\xce\xf7\x85\x3c\x12\1\0\0\0\0\0\0\0b\x2f\0\0\0\0\0\0\0' >&4
             [ $(head -c 1 <&4 | wc -c) = 1 ] && echo "limit $(ulimit -Sn)")sh"};
}

Command with_open_files(int soft, int hard, const Command& command) {
  Command limited{"sh", "-c",
                  "ulimit -S -n " + std::to_string(soft) + "; ulimit -H -n " +
                      std::to_string(hard) + "; exec \"$@\"",
                  "sh"};
  limited.insert(limited.end(), command.begin(), command.end());
  return limited;
}

TEST(Launch, ASoftLimitOnOpenFilesIsRaisedForTheStoreAndKeptForWorkers) {
  Job job(with_open_files(130, 4096,
                          ddprun({"--nproc-per-node=47", "--no-python"}, with_two_connections())));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  std::istringstream lines(job.out());
  int workers = 0;
  for (std::string line; std::getline(lines, line); ++workers) {
    EXPECT_THAT(line, EndsWith("limit 130"));
  }
  EXPECT_EQ(workers, 47);
}

TEST(Launch, AHardLimitOnOpenFilesThatIsTooLowIsSaid) {
  const Command many_connections{
      "bash", "-c",
      "for i in {1..20}; do exec {fd}<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT; done; exec sleep 1000"};
  Job job(
      with_open_files(130, 130, ddprun({"--nproc-per-node=4", "--no-python"}, many_connections)));
  EXPECT_TRUE(job.reaches([&] {
    return job.err().find("the limit on open files is 130; raise it") != std::string::npos;
  })) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("serves 66 clients"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
}

TEST(Launch, DryRunStartsNothing) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--dry-run"}, worker({"touch", folder / "started"})));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("ddprun_test_worker"));
  EXPECT_FALSE(std::filesystem::exists(folder / "started"));
}

}  // namespace
}  // namespace ddprun::test
