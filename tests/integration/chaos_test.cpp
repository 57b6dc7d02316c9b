// Random deaths in random jobs. Whichever process dies at any moment, the restart, the exit code
// and the report are as documented, and a second after the end there is no process, no open port
// and no temporary file.
//
// Each round has a seed, which a failure message shows; DDPRUN_TEST_SEED=<that seed> begins with
// it. DDPRUN_TEST_FULL=1 runs 300 rounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr seconds kUntilNothingIsLeft{1};
constexpr int kCodeOfAFollower = 70;  // a worker that ends because its child died

class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  int up_to(int last) { return std::uniform_int_distribution<int>(0, last)(random_); }
  bool one_in(int sides) { return up_to(sides - 1) == 0; }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(up_to(static_cast<int>(values.size()) - 1))];
  }
  void pause(int microseconds_at_most) {
    std::this_thread::sleep_for(std::chrono::microseconds(up_to(microseconds_at_most)));
  }

 private:
  std::mt19937 random_;
};

enum class Kind { kWorker, kChild, kKeeper, kAgent };

struct Victim {
  Kind kind = Kind::kAgent;
  pid_t pid = 0;
  int rank = -1;  // of the worker, or of the child's worker
  pid_t worker_pid = 0;
  int signal = 0;
};

std::vector<int> signals_that_kill(Kind kind) {
  switch (kind) {
    case Kind::kKeeper:  // it blocks all others
      return {SIGKILL};
    case Kind::kAgent:  // a sanitizer in it would handle SIGSEGV
      return {SIGKILL, SIGKILL, SIGABRT};
    case Kind::kWorker:
    case Kind::kChild:
      break;
  }
  return {SIGKILL, SIGKILL, SIGSEGV, SIGABRT, SIGBUS};
}

// One job, until nothing is left of it.
class Story {
 public:
  explicit Story(unsigned seed) : dice_(seed) {}

  void run();
  std::string told() const { return told_.str() + (job_ ? "\n" + job_->err() : ""); }

 private:
  struct Cause {
    int code;
    std::string words;  // that the report must hold
  };

  Command command();
  void start();
  bool round_is_up();
  void strike(bool at_start);
  std::vector<Victim> candidates();
  std::vector<Victim> choose_victims();
  void await_consequences(const std::vector<Victim>& victims);
  std::vector<Cause> causes_in(const std::vector<Victim>& victims) const;
  void check_end();
  void check_nothing_is_left();
  std::vector<std::string> unexpected_processes();
  std::vector<std::string> unexpected_files();

  Dice dice_;
  const TemporaryTree folder_;
  const TemporaryTree temporary_;
  std::ostringstream told_;
  std::optional<Job> job_;

  int workers_ = 1;
  int budget_ = 0;
  bool follows_child_ = false;
  bool has_log_folder_in_tmp_ = false;

  int round_ = 0;  // that is running or being started
  bool is_over_ = false;
  std::optional<int> agent_killed_by_;
  bool keeper_died_with_agent_ = false;
  int keepers_replaced_ = 0;
  std::vector<Cause> causes_;  // of the end: one of these
};

Command Story::command() {
  workers_ = 1 + dice_.up_to(3);
  budget_ = dice_.up_to(2);
  std::vector<std::string> options{"--kill-orphans", "--nproc-per-node=" + std::to_string(workers_),
                                   "--max-restarts=" + std::to_string(budget_),
                                   "--shutdown-timeout=" + dice_.one_of<std::string>({"0", "0.1"})};
  const std::string streams = dice_.one_of<std::string>({"", "", "-r3", "-t3", "-t0:1"});
  if (!streams.empty()) options.push_back(streams);
  const bool has_log_dir = dice_.one_in(3);
  if (has_log_dir) options.push_back("--log-dir=" + (folder_ / "logs"));
  has_log_folder_in_tmp_ = !streams.empty() && !has_log_dir;

  Command program = worker({});
  const auto add = [&](std::initializer_list<std::string> words) {
    program.insert(program.end(), words);
  };
  if (dice_.one_in(4)) add({"ignore", "15"});
  for (const char* action : {"child", "deaf-child", "stranger", "daemon"}) {
    if (dice_.one_in(3)) add({action});
  }
  if (dice_.one_in(2)) add({"error-file", "not yet dead"});
  add({"complain", "rank {rank} starts"});
  add({"environment", folder_ / "environment.{round}.{rank}", "stamp", folder_.path()});
  follows_child_ = dice_.one_in(2);
  add({follows_child_ ? "until-unless-child-dies" : "until", folder_ / "go"});
  return ddprun(options, program);
}

void Story::start() {
  const Command words = command();
  for (const std::string& word : words) told_ << word << " ";
  // No debugger is found: the stacks of workers that have to be killed are another test's.
  job_.emplace(words, JobSetup{.environment = {{"TMPDIR", temporary_.path()}, {"PATH", "/none"}}});
}

bool Story::round_is_up() {
  return job_->reaches(
      [&] { return stamps(folder_.path(), round_).size() == static_cast<std::size_t>(workers_); });
}

void Story::run() {
  start();
  const int strikes = dice_.one_of<int>({0, 1, 1, 1, 2, 2});
  for (int strike_number = 0; strike_number < strikes && !is_over_; ++strike_number) {
    const bool at_start = strike_number == 0 && dice_.one_in(3);
    ASSERT_TRUE(at_start || round_is_up()) << "round " << round_ << " does not start";
    strike(at_start);
    if (::testing::Test::HasFatalFailure()) return;
  }
  write_file(folder_ / "go", "");
  check_end();
  check_nothing_is_left();
}

// Everybody whose death has a known consequence.
std::vector<Victim> Story::candidates() {
  std::vector<Victim> found{{Kind::kAgent, job_->pid()}};
  if (const auto pid = job_->keeper()) found.push_back({Kind::kKeeper, *pid});
  const auto everybody = all_processes();
  const auto started = stamps(folder_.path(), round_);
  for (const ProcessInfo& worker : everybody) {
    if (worker.parent != job_->pid() || worker.state == 'Z' || worker.name == "stranger") continue;
    const auto environment = environment_in("/proc/" + std::to_string(worker.pid) + "/environ");
    const auto rank = environment.find("RANK");
    if (rank == environment.end()) continue;  // the keeper, or not yet the worker's program
    const int number = std::stoi(rank->second);
    found.push_back({Kind::kWorker, worker.pid, number, worker.pid});
    if (!started.contains(number)) continue;  // it does not look after its children yet
    for (const ProcessInfo& child : everybody) {
      if (child.parent == worker.pid) {
        found.push_back({Kind::kChild, child.pid, number, worker.pid});
      }
    }
  }
  return found;
}

// The kind first: else a job of many workers would hardly ever lose its agent.
std::vector<Victim> Story::choose_victims() {
  auto among = candidates();
  std::vector<Victim> victims;
  for (int wanted = dice_.one_of<int>({0, 1, 1, 1, 2}); wanted > 0; --wanted) {
    const Kind kind = dice_.one_of<Kind>(
        {Kind::kWorker, Kind::kWorker, Kind::kChild, Kind::kKeeper, Kind::kAgent});
    std::vector<Victim> of_kind;
    std::copy_if(among.begin(), among.end(), std::back_inserter(of_kind),
                 [kind](const Victim& each) { return each.kind == kind; });
    if (of_kind.empty()) continue;
    Victim victim = dice_.one_of(of_kind);
    victim.signal = dice_.one_of(signals_that_kill(kind));
    std::erase_if(among, [&](const Victim& each) { return each.pid == victim.pid; });
    victims.push_back(victim);
  }
  return victims;
}

void Story::strike(bool at_start) {
  dice_.pause(at_start ? 20'000 : 3'000);
  const auto victims = choose_victims();
  for (const Victim& victim : victims) {
    told_ << "\n  " << (at_start ? "at the start" : "in round " + std::to_string(round_)) << ": "
          << std::array{"worker", "child", "keeper", "agent"}[static_cast<std::size_t>(victim.kind)]
          << " " << victim.pid << " (rank " << victim.rank << ") gets " << victim.signal;
    kill(victim.pid, victim.signal);
  }
  await_consequences(victims);
}

void Story::await_consequences(const std::vector<Victim>& victims) {
  const auto has = [&](Kind kind) {
    return std::any_of(victims.begin(), victims.end(),
                       [kind](const Victim& each) { return each.kind == kind; });
  };
  for (const Victim& victim : victims) {
    if (victim.kind == Kind::kAgent) {
      if (!agent_killed_by_) agent_killed_by_ = victim.signal;
      continue;
    }
    // Before `go` is there: else a worker might end well, before it sees its child's death.
    ASSERT_TRUE(eventually([&] {
      const auto info = process(victim.pid);
      return !info || info->state == 'Z';
    })) << victim.pid
        << " does not die";
  }
  keeper_died_with_agent_ = agent_killed_by_ && has(Kind::kKeeper);
  const auto causes = causes_in(victims);
  is_over_ = agent_killed_by_.has_value();
  if (!causes.empty() && round_ == budget_) {
    is_over_ = true;
    causes_ = causes;
  }
  if (is_over_) return;
  if (!causes.empty()) {
    ++round_;
    ASSERT_TRUE(round_is_up()) << "no restart";
  }
  if (has(Kind::kKeeper)) {
    ++keepers_replaced_;
    ASSERT_TRUE(job_->reaches([&] { return job_->keeper().has_value(); })) << "no new keeper";
  }
}

std::vector<Story::Cause> Story::causes_in(const std::vector<Victim>& victims) const {
  std::vector<Cause> causes;
  for (const Victim& victim : victims) {
    const std::string who =
        "rank " + std::to_string(victim.rank) + " (pid " + std::to_string(victim.worker_pid) + ") ";
    if (victim.kind == Kind::kWorker) {
      causes.push_back(
          {128 + victim.signal, who + "was killed by SIG" + sigabbrev_np(victim.signal)});
    } else if (victim.kind == Kind::kChild && follows_child_) {
      causes.push_back({kCodeOfAFollower, who + "ended with exit code 70"});
    }
  }
  return causes;
}

void Story::check_end() {
  const Ended ended = job_->wait();
  const std::string err = job_->err();
  if (agent_killed_by_ && ended == killed_by(*agent_killed_by_)) return;
  const auto is_told = [&](const Cause& cause) {
    return ended == exited(cause.code) && err.find("FAILED: " + cause.words) != std::string::npos;
  };
  if (!causes_.empty()) {  // also of an agent that was quicker than its own death
    EXPECT_TRUE(std::any_of(causes_.begin(), causes_.end(), is_told)) << ended;
  } else {
    EXPECT_EQ(agent_killed_by_, std::nullopt);
    EXPECT_EQ(ended, exited(0));
    EXPECT_EQ(stamps(folder_.path(), round_).size(), static_cast<std::size_t>(workers_));
    EXPECT_EQ(err.find("FAILED"), std::string::npos);
  }
  for (int number = 1; number <= round_; ++number) {
    EXPECT_THAT(err, HasSubstr("; restart " + std::to_string(number) + " of " +
                               std::to_string(budget_) + "\n"));
  }
  if (keepers_replaced_ > 0) {
    EXPECT_THAT(err, HasSubstr("the keeper was killed; there is a new one"));
  }
}

// What may be left is what left its worker's group, and only where the agent itself was killed.
std::vector<std::string> Story::unexpected_processes() {
  std::vector<std::string> found;
  for (const pid_t pid : job_->processes()) {
    const auto info = process(pid);
    if (!info || (agent_killed_by_ && info->name == "stranger")) continue;
    // Nobody is there to kill more than the kernel does: the workers themselves.
    if (keeper_died_with_agent_ && getpgid(pid) != pid) continue;
    found.push_back(info->name + " (pid " + std::to_string(pid) + ", state " + info->state + ")");
  }
  return found;
}

std::vector<std::string> Story::unexpected_files() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(temporary_.path())) {
    if (!has_log_folder_in_tmp_ || !entry.is_directory()) found.push_back(entry.path());
  }
  return found;
}

void Story::check_nothing_is_left() {
  const auto until = std::chrono::steady_clock::now() + kUntilNothingIsLeft;
  const auto in_time = [until](const std::function<bool()>& holds) {
    const auto left = until - std::chrono::steady_clock::now();
    return eventually(holds,
                      std::max(std::chrono::duration_cast<milliseconds>(left), milliseconds(0)));
  };
  in_time([&] { return unexpected_processes().empty(); });
  EXPECT_THAT(unexpected_processes(), IsEmpty());
  if (!keeper_died_with_agent_) {
    in_time([&] { return unexpected_files().empty(); });
    EXPECT_THAT(unexpected_files(), IsEmpty());
  }
  for (int round = 0; round <= round_; ++round) {
    for (int rank = 0; rank < workers_; ++rank) {
      const auto environment = environment_in(
          folder_ / ("environment." + std::to_string(round) + "." + std::to_string(rank)));
      const auto port = environment.find("MASTER_PORT");
      if (port == environment.end()) continue;  // it did not get that far
      EXPECT_TRUE(in_time([&] { return !is_listening(std::stoi(port->second)); })) << port->second;
    }
  }
}

TEST(Chaos, WhoeverDiesTheRestIsAsDocumentedAndNothingIsLeft) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const char* given = std::getenv("DDPRUN_TEST_SEED");
  const unsigned first = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10))
                                          : std::random_device{}() % 1'000'000'000;
  RecordProperty("seed", static_cast<int>(first));
  std::cout << "DDPRUN_TEST_SEED=" << first << "\n";
  for (unsigned round = 0; round < (full_tests() ? 300U : 40U); ++round) {
    Story story(first + round);
    story.run();
    ASSERT_FALSE(HasFailure()) << "DDPRUN_TEST_SEED=" << first + round << "\n" << story.told();
  }
}

}  // namespace
}  // namespace ddprun::test
