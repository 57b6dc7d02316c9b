// --standby for programs that are linked with worker_lib: each is its own zygote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "tests/support/ddpctl.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class StandbyProgram : public ::testing::Test {
 protected:
  static JobSetup setup() { return {.environment = {{"DDPRUN_LOG_LEVEL", "info"}}}; }
  Command command(const std::string& program, int last, const std::string& what = "") const {
    Command words{program, folder_.path(), std::to_string(last)};
    if (!what.empty()) words.push_back(what);
    return ddprun({"--standby=2", "--nproc-per-node=2", "--max-restarts=100000",
                   "--shutdown-timeout=1", "--no-python"},
                  words);
  }
  Command command(int last = 1, const std::string& what = "") const {
    return command(DDPRUN_STANDBY_PROGRAM, last, what);
  }
  void go(int round) const { folder_.write("go-" + std::to_string(round), ""); }
  static bool says(Job& job, const std::string& text) {
    return job.reaches([&] { return job.err().find(text) != std::string::npos; });
  }
  static bool wait_for_standbys(Job& job) { return says(job, "2 wait for a restart"); }
  static bool standbys_wait_again(Job& job) {
    const std::string status = "status --json " + std::to_string(job.pid());
    return job.reaches(
        [&] { return ddpctl(status).output.find("\"waiting\":2") != std::string::npos; });
  }
  // What this rank has said of itself after its pid; empty: nothing yet.
  static std::string line_of(const Job& job, int round, int rank) {
    const std::string begin =
        "round " + std::to_string(round) + " rank " + std::to_string(rank) + " pid ";
    std::istringstream lines(job.out());
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(begin)) return line.substr(line.find(' ', begin.size()) + 1);
    }
    return "";
  }
  static bool both_run(Job& job, int round) {
    return job.reaches(
        [&] { return !line_of(job, round, 0).empty() && !line_of(job, round, 1).empty(); });
  }
  void SetUp() override { folder_.write("digits", "0123456789"); }

  const TemporaryTree folder_;
};

TEST_F(StandbyProgram, WorkersOfTheNextRoundsWereForked) {
  Job job(command(/*last=*/2), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  go(0);
  ASSERT_TRUE(both_run(job, 1)) << job.err();
  ASSERT_TRUE(standbys_wait_again(job));
  go(1);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  for (const int rank : {0, 1}) {
    EXPECT_EQ(line_of(job, 0, rank), "started; digit 2, kept");
    for (const int round : {1, 2}) {
      EXPECT_EQ(line_of(job, round, rank), "forked; digit 2, kept");
    }
  }
  // What the program prints before its Context is each worker's, whether it was flushed or not.
  std::map<std::string, int> counts;
  std::istringstream lines(job.out());
  for (std::string line; std::getline(lines, line);) ++counts[line];
  EXPECT_EQ(counts["first"], 6);
  EXPECT_EQ(counts["second"], 6);
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(StandbyProgram, NoneWhereTheProgramCannotBeForked) {
  const std::pair<const char*, const char*> cases[] = {
      {"early", "has not said that it can wait for a rank"},
      {"refuses", "has not said that it can wait for a rank"},
      {"thread", "no standbys: the program starts a thread before its Context"},
      {"pipe", "no standbys: the program opens what forks cannot share before its Context (pipe:"},
      {"exits", "no standbys: the program, started to wait in its Context, ended with exit code 4"},
      // Or it would go on, as a worker without a rank.
      {"closes",
       "no standbys: the program, started to wait in its Context, ended with exit code 1"},
  };
  for (const auto& [what, why] : cases) {
    SCOPED_TRACE(what);
    std::error_code ignored;
    fs::remove(folder_ / "go-0", ignored);
    Job job(command(/*last=*/1, what), setup());
    EXPECT_TRUE(says(job, why)) << job.err();
    go(0);
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
    EXPECT_THAT(line_of(job, 1, 0), HasSubstr("started"));
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

// A standby would not run the script, which may look at its rank.
TEST_F(StandbyProgram, NoneForAScriptAroundTheProgram) {
  const std::string script = folder_.write(
      "around", "#!/bin/sh\nexec " + std::string(DDPRUN_STANDBY_PROGRAM) + " \"$@\"\n", 0755);
  Job job(command(script, /*last=*/1), setup());
  EXPECT_TRUE(says(job, "the workers do not run " + script + " itself")) << job.err();
  go(0);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(line_of(job, 1, 0), HasSubstr("started"));
}

TEST_F(StandbyProgram, AProgramThatWasBuiltAnewIsStartedAnew) {
  const std::string program = folder_ / "program";
  fs::copy_file(DDPRUN_STANDBY_PROGRAM, program);
  Job job(command(program, /*last=*/2), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  fs::copy_file(DDPRUN_STANDBY_PROGRAM, program + ".new");
  fs::rename(program + ".new", program);
  go(0);
  ASSERT_TRUE(both_run(job, 1)) << job.err();
  EXPECT_THAT(line_of(job, 1, 0), HasSubstr("started"));
  EXPECT_THAT(job.err(), HasSubstr("standbys end, because " + program + " has changed"));
  EXPECT_TRUE(standbys_wait_again(job)) << "of the new file: " << job.err();
  go(1);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(line_of(job, 2, 0), HasSubstr("forked"));
}

TEST_F(StandbyProgram, NothingIsLeftWhenTheAgentIsKilledOrStopped) {
  for (const int signal : {SIGKILL, SIGTERM}) {
    Job job(command(), setup());
    ASSERT_TRUE(wait_for_standbys(job)) << job.err();
    EXPECT_EQ(job.processes().size(), 6u);  // the keeper, two workers, the zygote, two standbys
    job.signal(signal);
    EXPECT_EQ(job.wait(), signal == SIGKILL ? killed_by(SIGKILL) : exited(128 + signal));
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

// Whatever dies, and when: every restart succeeds.
TEST_F(StandbyProgram, KilledAtRandom) {
  std::mt19937 random(28);
  const int kills = full_tests() ? 300 : 25;
  Job job(command(/*last=*/100'000), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  for (int i = 0; i < kills; ++i) {
    auto pids = job.processes();
    std::erase(pids, job.keeper().value_or(0));
    if (pids.empty()) continue;
    ::kill(pids[random() % pids.size()], SIGKILL);
    ::usleep(random() % 300'000);
  }
  // The round that runs now, or follows, starts both of its workers.
  const auto lines = [&] { return std::ranges::count(job.out(), ';'); };
  const auto before = lines();
  const auto pids = job.processes();
  for (const pid_t pid : pids) {
    if (pid != job.keeper()) ::kill(pid, SIGKILL);
  }
  EXPECT_TRUE(job.reaches([&] { return lines() >= before + 2; })) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

int resident_kib(pid_t pid) {
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/status");
  const std::size_t at = text.find("VmRSS:");
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + 6);
}

TEST_F(StandbyProgram, RestartsWithoutGrowth) {
  const int restarts = full_tests() ? 1000 : 40;
  Job job(command(/*last=*/restarts), setup());
  ASSERT_TRUE(wait_for_standbys(job)) << job.err();
  const auto processes = [&] { return job.processes().size(); };
  pid_t zygote = 0;
  std::size_t files_at_first = 0, files_of_zygote = 0;
  int memory_at_first = 0, memory_of_zygote = 0;
  constexpr int kFirst = 10;  // until then buffers grow to their size
  for (int round = 0; round < restarts; ++round) {
    ASSERT_TRUE(both_run(job, round)) << round << ": " << job.err();
    ASSERT_TRUE(standbys_wait_again(job)) << round << ": " << job.err();
    ASSERT_TRUE(job.reaches([&] { return processes() == 6; })) << round;
    if (round == kFirst) {
      const auto pids = job.processes();
      const auto workers = job.workers();
      for (const pid_t pid : pids) {
        const bool is_worker = std::ranges::any_of(
            workers, [pid](const auto& worker) { return worker.second == pid; });
        if (is_worker || pid == job.keeper()) continue;
        if (zygote == 0 || pid < zygote) zygote = pid;  // it forks the others
      }
      files_at_first = open_files_of(job.pid()).size();
      files_of_zygote = open_files_of(zygote).size();
      memory_at_first = resident_kib(job.pid());
      memory_of_zygote = resident_kib(zygote);
    }
    if (round == restarts - 1) {
      // Those of ddpctl, which has just asked, and of a fork may still be there.
      EXPECT_LE(open_files_of(job.pid()).size(), files_at_first + 3);
      EXPECT_LE(open_files_of(zygote).size(), files_of_zygote + 3);
      EXPECT_LE(resident_kib(job.pid()), memory_at_first + 1024);
      EXPECT_LE(resident_kib(zygote), memory_of_zygote + 128);
    }
    go(round);
  }
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  std::istringstream lines(job.out());
  int forked = 0;
  for (std::string line; std::getline(lines, line);) {
    forked += line.find("forked;") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(forked, 2 * restarts);
  EXPECT_THAT(job.left_over(), IsEmpty());
}

}  // namespace
}  // namespace ddprun::test
