// Real children: what WorkerProcess and Keeper promise about them.
#include "agent/process/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "agent/process/control_group.h"
#include "agent/process/keeper.h"
#include "agent/process/left_processes.h"
#include "agent/process/orphans.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr auto kDeadline = 10s;

struct Pipe {
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  }
  ~Pipe() {
    close_read();
    close_write();
  }
  void close_read() { close_end(0); }
  void close_write() { close_end(1); }
  std::string read_all() {
    close_write();
    std::string text;
    char buffer[4096];
    ssize_t got;
    while ((got = ::read(ends[0], buffer, sizeof buffer)) > 0)
      text.append(buffer, static_cast<std::size_t>(got));
    return text;
  }
  void close_end(int index) {
    if (ends[index] >= 0) ::close(ends[index]);
    ends[index] = -1;
  }
  int ends[2];
};

ProcessSpec shell(const std::string& script) {
  ProcessSpec spec;
  spec.path = "/bin/sh";
  spec.argv = {"sh", "-c", script};
  spec.environment = {"PATH=/usr/bin:/bin"};
  return spec;
}

// Waits for the end of a process that need not be a child; false after the deadline.
bool ends(pid_t pid) {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return true;
  pollfd end{fd, POLLIN, 0};
  const int ready = ::poll(&end, 1, std::chrono::milliseconds(kDeadline).count());
  ::close(fd);
  return ready == 1;
}

bool lives(pid_t pid) { return ::kill(pid, 0) == 0; }

class Process : public ::testing::Test {
 protected:
  void SetUp() override { adopt_signal_state(); }

  std::optional<ExitStatus> run(const ProcessSpec& spec) {
    std::optional<ExitStatus> status;
    auto worker = WorkerProcess::start(io, spec, [&](ExitStatus ended) { status = ended; });
    EXPECT_TRUE(worker) << worker.error().to_string();
    if (!worker) return status;
    io.restart();
    io.run_for(kDeadline);
    return status;
  }

  boost::asio::io_context io;
};

TEST_F(Process, TellsExitCodesAndSignalsApart) {
  EXPECT_EQ(run(shell("exit 0")), ExitStatus::exited(0));
  EXPECT_EQ(run(shell("exit 255")), ExitStatus::exited(255));
  EXPECT_EQ(run(shell("kill -KILL $$")), ExitStatus::killed(SIGKILL));
  EXPECT_EQ(run(shell("kill -TERM $$")), ExitStatus::killed(SIGTERM));
}

// A debugger at its prompt holds what it traces: only it may wait for it.
TEST_F(Process, TheEndOfOneThatADebuggerHoldsIsKnown) {
  std::optional<ExitStatus> status;
  auto worker =
      WorkerProcess::start(io, shell("exec sleep 1000"), [&](ExitStatus ended) { status = ended; });
  ASSERT_TRUE(worker);
  const pid_t pid = (*worker)->pid();
  Pipe holds, lets_go;
  const pid_t debugger = ::fork();
  if (debugger == 0) {
    lets_go.close_write();
    const bool is_tracing = ::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0;
    std::ignore = ::write(holds.ends[1], is_tracing ? "y" : "n", 1);
    char nothing = 0;
    std::ignore = ::read(lets_go.ends[0], &nothing, 1);
    ::_exit(0);
  }
  char is_tracing = 0;
  ASSERT_EQ(::read(holds.ends[0], &is_tracing, 1), 1);
  ASSERT_EQ(is_tracing, 'y');
  (*worker)->signal_group(SIGKILL);
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  while (!status && io.run_one_until(until) != 0) {
  }
  EXPECT_EQ(status, ExitStatus::killed(SIGKILL));
  lets_go.close_write();
  ::waitpid(debugger, nullptr, 0);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid) << "it comes back to be reaped";
}

// The rest of its group is killed meanwhile, and nobody else has its number.
TEST_F(Process, OneWhoseEndIsHeldIsReapedWhenItIsLet) {
  auto keeper = Keeper::start(1);
  ASSERT_TRUE(keeper);
  ProcessSpec spec = shell("sleep 1000 & exit 3");
  spec.keeper_slot = &keeper->slot(0);
  std::optional<ExitStatus> status;
  auto worker = WorkerProcess::start(io, spec, [&](ExitStatus ended) { status = ended; });
  ASSERT_TRUE(worker);
  const pid_t pid = (*worker)->pid();
  (*worker)->hold_end();
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  while (spec.keeper_slot->load() != 0 && io.run_one_until(until) != 0) {
  }
  EXPECT_EQ(spec.keeper_slot->load(), 0);
  EXPECT_EQ(status, std::nullopt);
  EXPECT_TRUE(lives(pid)) << "a zombie";
  (*worker)->let_end(1h);
  (*worker)->let_end(2h);  // no news
  io.restart();
  io.poll();
  EXPECT_EQ(status, std::nullopt);
  (*worker)->let_end(0ms);
  io.restart();
  io.run_for(kDeadline);
  EXPECT_EQ(status, ExitStatus::exited(3));
  EXPECT_FALSE(lives(pid));
}

TEST_F(Process, OneThatIsLetBeforeItEndsIsReapedAtOnce) {
  std::optional<ExitStatus> status;
  auto worker =
      WorkerProcess::start(io, shell("exec sleep 1000"), [&](ExitStatus ended) { status = ended; });
  ASSERT_TRUE(worker);
  (*worker)->hold_end();
  (*worker)->let_end(1h);
  (*worker)->signal_group(SIGKILL);
  io.run_for(kDeadline);
  EXPECT_EQ(status, ExitStatus::killed(SIGKILL));
}

TEST_F(Process, AProgramThatIsNotThereIsAnErrorAndLeavesNoChild) {
  ProcessSpec spec = shell("");
  spec.path = "/nowhere/train";
  std::optional<Error> error;
  std::optional<ExitStatus> status;
  const auto worker = WorkerProcess::start(
      io, spec,
      [&](ExitStatus ended) {
        EXPECT_TRUE(error) << "the end is told before the error";
        status = ended;
      },
      [&](Result<void> executed) { error = executed.error(); });
  ASSERT_TRUE(worker);
  io.run_for(kDeadline);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kNotFound);
  EXPECT_THAT(error->message, HasSubstr("/nowhere/train"));
  EXPECT_EQ(status, ExitStatus::exited(127));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

TEST_F(Process, IsToldOnceToBeExecuted) {
  int executed = 0;
  const auto worker = WorkerProcess::start(
      io, shell("exit 0"), [&](ExitStatus) { EXPECT_EQ(executed, 1); },
      [&](const Result<void>& result) { executed += result ? 1 : 100; });
  ASSERT_TRUE(worker);
  io.run_for(kDeadline);
  EXPECT_EQ(executed, 1);
}

// With no descriptor left, or a few: started and watched, or not there and off the table.
TEST_F(Process, AStartWithoutDescriptorsIsAnErrorAndLeavesNoChild) {
  auto keeper = Keeper::start(1);
  ASSERT_TRUE(keeper);
  ASSERT_EQ(run(shell("exit 0")), ExitStatus::exited(0));  // what comes once has its descriptors
  const int first_free = ::dup(0);
  ::close(first_free);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  bool has_failed = false;
  bool has_started = false;
  for (int left = 0; !has_started && left < 100; ++left) {
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(first_free) + static_cast<rlim_t>(left);
    ::setrlimit(RLIMIT_NOFILE, &few);
    ProcessSpec spec = shell("sleep 1000 & wait");
    spec.keeper_slot = &keeper->slot(0);
    std::optional<ExitStatus> status;
    auto worker = WorkerProcess::start(io, spec, [&](ExitStatus ended) { status = ended; });
    ::setrlimit(RLIMIT_NOFILE, &before);
    if (worker) {
      has_started = true;
      (*worker)->signal_group(SIGKILL);
      io.restart();
      io.run_for(kDeadline);
      EXPECT_EQ(status, ExitStatus::killed(SIGKILL));
    } else {
      has_failed = true;
      EXPECT_EQ(worker.error().code, ErrorCode::kResourceExhausted) << worker.error().message;
      EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), 0) << "the keeper alone is a child";
    }
    EXPECT_EQ(spec.keeper_slot->load(), 0) << "the keeper would kill whoever gets that number";
  }
  EXPECT_TRUE(has_failed);
  EXPECT_TRUE(has_started);
}

TEST_F(Process, LeadsASessionOfItsOwn) {
  Pipe out;
  ProcessSpec spec = shell("echo $$ $(ps -o pgid=,sid= -p $$)");
  spec.stdout_fd = out.ends[1];
  ASSERT_EQ(run(spec), ExitStatus::exited(0));
  int pid = 0;
  int group = 0;
  int session = 0;
  const std::string text = out.read_all();
  ASSERT_EQ(std::sscanf(text.c_str(), "%d %d %d", &pid, &group, &session), 3) << text;
  EXPECT_EQ(group, pid);
  EXPECT_EQ(session, pid);
}

TEST_F(Process, HasStandardStreamsAndNothingElse) {
  const int inherited =
      ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC, as from a careless parent
  Pipe out;
  ProcessSpec spec = shell("");
  spec.path = "/bin/ls";
  spec.argv = {"ls", "/proc/self/fd"};
  spec.stdout_fd = out.ends[1];
  ASSERT_EQ(run(spec), ExitStatus::exited(0));
  EXPECT_EQ(out.read_all(), "0\n1\n2\n3\n");  // 3 is ls reading the folder
  ::close(inherited);
}

TEST_F(Process, GetsBackTheSignalsThatTheAgentChanged) {
  // The agent ignores SIGPIPE and handles others; an ignored signal would be inherited through
  // exec.
  EXPECT_EQ(run(shell("kill -PIPE $$")), ExitStatus::killed(SIGPIPE));
}

TEST_F(Process, WhatItsLeaderLeavesInTheGroupIsKilled) {
  Pipe out;
  ProcessSpec spec = shell("sleep 1000 & echo $!");
  spec.stdout_fd = out.ends[1];
  ASSERT_EQ(run(spec), ExitStatus::exited(0));
  out.close_write();
  char text[32] = {};
  ASSERT_GT(::read(out.ends[0], text, sizeof text - 1), 0);
  EXPECT_TRUE(ends(std::atoi(text)));
}

TEST_F(Process, SignalsReachTheWholeGroup) {
  Pipe out;
  ProcessSpec spec = shell("sleep 1000 & echo started; wait");
  spec.stdout_fd = out.ends[1];
  std::optional<ExitStatus> status;
  auto worker = WorkerProcess::start(io, spec, [&](ExitStatus ended) { status = ended; });
  ASSERT_TRUE(worker);
  char text[32];
  ASSERT_GT(::read(out.ends[0], text, sizeof text), 0);
  (*worker)->signal_group(SIGTERM);
  io.run_for(kDeadline);
  EXPECT_EQ(status, ExitStatus::killed(SIGTERM));
  out.close_write();
  EXPECT_EQ(::read(out.ends[0], text, sizeof text), 0) << "a child still holds the pipe";
}

// An agent in a process of its own: starts a keeper and one registered worker, tells the worker's
// pid and waits for its end.
pid_t start_agent(int pid_fd) {
  const pid_t agent = ::fork();
  if (agent != 0) return agent;
  boost::asio::io_context io;
  auto keeper = Keeper::start(1);
  ProcessSpec spec = shell("sleep 1000 & wait");
  spec.keeper_slot = &keeper->slot(0);
  auto worker = WorkerProcess::start(io, spec, [](ExitStatus) {});
  const pid_t pid = (*worker)->pid();
  if (::write(pid_fd, &pid, sizeof pid) != sizeof pid) ::_exit(1);
  for (;;) ::pause();
}

TEST(KeeperTest, KillsTheGroupsOfAnAgentThatWasKilled) {
  Pipe pipe;
  const pid_t agent = start_agent(pipe.ends[1]);
  pid_t worker = 0;
  ASSERT_EQ(::read(pipe.ends[0], &worker, sizeof worker), static_cast<ssize_t>(sizeof worker));
  ::kill(agent, SIGKILL);
  ::waitpid(agent, nullptr, 0);
  EXPECT_TRUE(ends(worker));
  // The whole group: kill(-group) finds nobody once the last member is reaped by whoever adopted
  // it.
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (::kill(-worker, 0) == 0 && std::chrono::steady_clock::now() < deadline)
    ::poll(nullptr, 0, 1);
  EXPECT_FALSE(::kill(-worker, 0) == 0);
}

// The worker makes its file again and again, until it is dead.
TEST(KeeperTest, RemovesTheFilesOfAnAgentThatWasKilled) {
  for (int run = 0; run < 5; ++run) {
    std::string name = ::testing::TempDir() + "keeper_test_XXXXXX";
    const int fd = ::mkstemp(name.data());
    ASSERT_GE(fd, 0);
    ::close(fd);
    Pipe pipe;
    const pid_t agent = ::fork();
    if (agent == 0) {
      boost::asio::io_context io;
      auto keeper = Keeper::start(1);
      keeper->set_file(0, name);
      ProcessSpec spec = shell("while :; do : > " + name + "; done");
      spec.keeper_slot = &keeper->slot(0);
      auto worker = WorkerProcess::start(io, spec, [](ExitStatus) {});
      const pid_t pids[] = {keeper->pid(), (*worker)->pid()};
      if (::write(pipe.ends[1], &pids, sizeof pids) != sizeof pids) ::_exit(1);
      for (;;) ::pause();
    }
    pid_t pids[2]{};
    ASSERT_EQ(::read(pipe.ends[0], &pids, sizeof pids), static_cast<ssize_t>(sizeof pids));
    ::kill(agent, SIGKILL);
    ::waitpid(agent, nullptr, 0);
    EXPECT_TRUE(ends(pids[1]));
    EXPECT_TRUE(ends(pids[0]));
    EXPECT_NE(::access(name.c_str(), F_OK), 0) << name;
    ::unlink(name.c_str());
  }
}

TEST(KeeperTest, EndsQuietlyWhenTheAgentLetsItGo) {
  pid_t pid = 0;
  {
    auto keeper = Keeper::start(1);
    ASSERT_TRUE(keeper);
    pid = keeper->pid();
    EXPECT_TRUE(lives(pid));
    EXPECT_FALSE(keeper->died());
  }
  EXPECT_FALSE(lives(pid));
}

TEST(KeeperTest, ForgetsAGroupThatWasTakenOffItsTable) {
  const pid_t bystander = ::fork();
  if (bystander == 0) {
    ::setsid();
    for (;;) ::pause();
  }
  {
    auto keeper = Keeper::start(2);
    ASSERT_TRUE(keeper);
    keeper->slot(1).store(bystander);
    keeper->slot(1).store(0);
  }
  EXPECT_EQ(::waitpid(bystander, nullptr, WNOHANG), 0) << "it was killed";
  ::kill(bystander, SIGKILL);
  ::waitpid(bystander, nullptr, 0);
}

TEST(KeeperTest, ItsOwnDeathIsNoticedOnce) {
  auto keeper = Keeper::start(1);
  ASSERT_TRUE(keeper);
  const pid_t pid = keeper->pid();
  ::kill(pid, SIGKILL);
  ASSERT_TRUE(ends(pid));
  EXPECT_TRUE(keeper->died());
  EXPECT_FALSE(keeper->died());
}

TEST(KeeperTest, AReplacedKeeperKnowsTheSameGroups) {
  const pid_t worker = ::fork();
  if (worker == 0) {
    for (;;) ::pause();
  }
  ASSERT_EQ(::setpgid(worker, worker), 0);
  {
    auto keeper = Keeper::start(1);
    ASSERT_TRUE(keeper);
    keeper->slot(0).store(worker);
    ::kill(keeper->pid(), SIGKILL);
    ASSERT_TRUE(ends(keeper->pid()));
    ASSERT_TRUE(keeper->died());
    ASSERT_TRUE(keeper->replace());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(worker, &status, 0), worker);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// A daemon with that entry in its environment: a grandchild in a session of its own whose parent
// ends at once. It may still be executing its program when this returns.
pid_t start_daemon(const std::string& entry) {
  Pipe out;
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::dup2(out.ends[1], 1);
    ::execle("/bin/sh", "sh", "-c", "setsid sleep 1000 & echo $!", nullptr,
             std::vector<char*>{const_cast<char*>("PATH=/usr/bin:/bin"),
                                const_cast<char*>(entry.c_str()), nullptr}
                 .data());
    ::_exit(127);
  }
  ::waitpid(parent, nullptr, 0);
  char text[32] = {};
  return ::read(out.ends[0], text, sizeof text - 1) > 0 ? std::atoi(text) : -1;
}

std::vector<pid_t> all_strangers_of(const std::string& id,
                                    const std::function<bool(pid_t)>& is_known) {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  boost::asio::io_context io;
  EnvironmentLooks looks(io.get_executor(), std::string(kAgentVariable) + "=" + id);
  for (;;) {
    Orphans found = orphans_of(looks, is_known);
    if (!found.some_unseen) return found.pids;
    if (std::chrono::steady_clock::now() > deadline) ADD_FAILURE() << "one is never seen";
    io.restart();
    io.run_one_for(1ms);
  }
}

TEST(Orphans, AreFoundByTheirEnvironmentAndLeftToTheirOwners) {
  become_subreaper();
  const std::string id = "host-" + name_of_this_process();
  const auto nobody_known = [](pid_t) { return false; };
  for (int i = 0; i < 50; ++i) {
    const pid_t daemon = start_daemon(std::string(kAgentVariable) + "=" + id);
    ASSERT_GT(daemon, 0);
    ASSERT_THAT(all_strangers_of(id, nobody_known), ::testing::ElementsAre(daemon));
    EXPECT_THAT(all_strangers_of(id + "x", nobody_known), ::testing::IsEmpty());
    const auto daemon_known = [&](pid_t pid) { return pid == daemon; };
    EXPECT_THAT(all_strangers_of(id, daemon_known), ::testing::IsEmpty());
    ::kill(daemon, SIGKILL);
    ASSERT_TRUE(ends(daemon));
    EXPECT_THAT(all_strangers_of(id, nobody_known), ::testing::IsEmpty());
    reap_orphans(daemon_known);
    EXPECT_TRUE(lives(daemon)) << "a known child is its owner's to reap";
    reap_orphans(nobody_known);
    EXPECT_FALSE(lives(daemon));
  }
}

TEST(Orphans, AKernelThatTellsLittleOfAProcessIsNoError) {
  std::string stat = "S";
  for (int field = 4; field <= 51; ++field) stat += " " + std::to_string(field);
  const auto memory = memory_in(stat);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->state, 'S');
  EXPECT_EQ(memory->code_start, 26U);
  EXPECT_EQ(memory->environment_start, 50U);
  EXPECT_EQ(memory->environment_end, 51U);
  for (const char* few :
       {"", "S", "S 1 2 3", "S 1 2 x 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24"}) {
    EXPECT_FALSE(memory_in(few)) << few;
  }
}

TEST(LeftProcesses, AreNamedOnOneLineHoweverManyAndHowLong) {
  EXPECT_EQ(in_words({71}, {"tensorboard --logdir runs"}), "71 (tensorboard --logdir runs)");
  EXPECT_EQ(in_words({71, 72}, {"sleep 9", "a\nb"}), "71 (sleep 9), 72 (a\\nb)");
  EXPECT_EQ(in_words({71}, {std::string(999, 'x')}), "71 (" + std::string(160, 'x') + "…)");
  EXPECT_THAT(in_words(std::vector<pid_t>(10, 7), std::vector<std::string>(10, "x")),
              ::testing::EndsWith(", 7 (x) and 2 more"));
}

// Its environment is seen, and is empty: it is not waited for.
TEST(Orphans, AProcessWithoutAnyEnvironmentIsNone) {
  Pipe alive;
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(alive.ends[1], 1);
    ::execle("/bin/sh", "sh", "-c", "echo; exec env -i sleep 1000", nullptr,
             std::vector<char*>{nullptr}.data());
    ::_exit(127);
  }
  char newline = 0;
  ASSERT_EQ(::read(alive.ends[0], &newline, 1), 1);
  EXPECT_THAT(all_strangers_of("host-1-1", [](pid_t) { return false; }), ::testing::IsEmpty());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace ddprun::agent
