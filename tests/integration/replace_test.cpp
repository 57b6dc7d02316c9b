// Replacement in place: one worker dies, the others keep their processes, and a prepared standby takes
// its place; and what follows where that is not possible. The workers are recovering_worker.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Replace : public ::testing::Test {
 protected:
  static constexpr int kSteps = 1'000'000;

  Command program(const std::vector<std::string>& what = {}, int steps = kSteps) const {
    Command words{DDPRUN_RECOVERING_WORKER, folder_.path(), std::to_string(steps)};
    words.insert(words.end(), what.begin(), what.end());
    return words;
  }
  JobSetup setup() const { return {.environment = {{"DDPRUN_CONTROL_DIR", folder_ / "control"}}}; }
  Job& start(int workers, const std::vector<std::string>& what = {},
             std::vector<std::string> options = {}, int steps = kSteps) {
    options.insert(options.begin(),
                   {"--standby=" + std::to_string(workers), "--no-python", "--max-restarts=100000",
                    "--nproc-per-node=" + std::to_string(workers), "--shutdown-timeout=2",
                    "--events=" + folder_ / "events"});
    for (int rank = 0; rank < workers; ++rank) {
      std::filesystem::remove(folder_ / ("pid-" + std::to_string(rank)));  // of another job
    }
    job_ = std::make_unique<Job>(ddprun(options, program(what, steps)), setup());
    return *job_;
  }

  // The process that is this rank; 0: none has said so.
  pid_t worker(int rank) const {
    return std::atoi(read_file(folder_ / ("pid-" + std::to_string(rank))).c_str());
  }
  // Once all have said so.
  std::vector<pid_t> workers(int count) {
    std::vector<pid_t> pids;
    const bool are_there = eventually([&] {
      pids.clear();
      for (int rank = 0; rank < count; ++rank) pids.push_back(worker(rank));
      return std::ranges::count(pids, 0) == 0;
    });
    if (!are_there) throw std::runtime_error("a worker has not said which process it is");
    return pids;
  }
  Told ask(std::vector<std::string> arguments) const {
    arguments.push_back(std::to_string(job_->pid()));
    return run_to_its_end(ddpctl(arguments), setup());
  }
  std::string status() const { return ask({"status", "--json"}).out; }
  // So many prepared standbys wait; then all ranks have one.
  bool are_ready(int count) {
    const std::string all = std::to_string(count);
    return job_->reaches([&] {
      return status().find("\"can_recover\":true,\"waiting\":" + all + ",\"wanted\":" + all) !=
             std::string::npos;
    });
  }
  bool says(const std::string& text) {
    return job_->reaches([&] { return job_->err().find(text) != std::string::npos; });
  }
  // The downtime of as many replacements is over.
  bool have_recovered(int times) {
    return job_->reaches([&] { return count_of("\"event\":\"recovered\"") >= times; });
  }
  int count_of(const std::string& text) const {
    return static_cast<int>(test::count_of(text, events()));
  }
  std::string events() const { return read_file(folder_ / "events"); }
  void finish() const { folder_.write("finish", ""); }
  void go() const { folder_.write("go", ""); }
  bool is_another(int rank, pid_t than) {
    return job_->reaches([&] { return worker(rank) != than; });
  }

  const TemporaryTree folder_;
  std::unique_ptr<Job> job_;
};

TEST_F(Replace, AKilledWorkerIsReplacedAndTheOthersKeepTheirProcesses) {
  Job& job = start(3, {}, {"--tee=3"}, /*steps=*/300);
  ASSERT_TRUE(are_ready(3)) << job.err();
  EXPECT_TRUE(says("workers are replaced in place when they die"));
  const auto before = workers(3);
  ::kill(before[1], SIGKILL);
  ASSERT_TRUE(is_another(1, before[1])) << job.err();
  finish();
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(worker(0), before[0]);
  EXPECT_EQ(worker(2), before[2]);
  // The newcomer's output comes with its rank's prefix, and what it printed before does not.
  const std::string its = "[default1]:rank 1 takes its place; pid " + std::to_string(worker(1));
  EXPECT_THAT(job.out(), AllOf(HasSubstr(its), HasSubstr("[default1]:rank 1 done; pid"),
                               Not(HasSubstr("which nobody sees"))));
  EXPECT_THAT(events(), AllOf(HasSubstr("\"how\":\"replaced\",\"generation\":1"),
                              HasSubstr("\"restart\":1,\"max_restarts\":100000"),
                              ContainsRegex("\"event\":\"recovered\".*\"until\":\"step_after\"")));
  EXPECT_EQ(count_of("\"event\":\"round_started\""), 1);
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(Replace, AsOftenAsAWorkerDies) {
  Job& job = start(2);
  for (int times = 1; times <= 4; ++times) {
    ASSERT_TRUE(are_ready(2)) << job.err();
    const int rank = times % 2;
    const auto before = workers(2);
    ::kill(before[static_cast<std::size_t>(rank)], SIGKILL);
    ASSERT_TRUE(is_another(rank, before[static_cast<std::size_t>(rank)])) << job.err();
    ASSERT_TRUE(have_recovered(times)) << events();
    EXPECT_EQ(worker(1 - rank), before[static_cast<std::size_t>(1 - rank)]);
  }
  EXPECT_EQ(count_of("\"event\":\"round_started\""), 1);
  EXPECT_THAT(status(), HasSubstr("\"restarts\":4,"));
  EXPECT_THAT(ask({"status"}).out,
              AllOf(HasSubstr("workers are replaced in place"),
                    HasSubstr("4 replaced in this round"), HasSubstr(", replaced in place")));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(Replace, TwoAtOnce) {
  Job& job = start(3);
  ASSERT_TRUE(are_ready(3)) << job.err();
  const auto before = workers(3);
  ::kill(before[0], SIGKILL);
  ::kill(before[2], SIGKILL);
  ASSERT_TRUE(is_another(0, before[0])) << job.err();
  ASSERT_TRUE(is_another(2, before[2])) << job.err();
  ASSERT_TRUE(have_recovered(1)) << events();
  EXPECT_EQ(worker(1), before[1]);
  EXPECT_EQ(count_of("\"event\":\"round_started\""), 1);
  EXPECT_EQ(count_of("\"how\":\"replaced\",\"generation\":2,\"newcomer\""), 1) << events();
}

// A second death before all have regrouped: that rank has a standby, too.
TEST_F(Replace, ADeathInTheMiddleOfAnother) {
  Job& job = start(3, {"slow-regroup"});
  ASSERT_TRUE(are_ready(3)) << job.err();
  const auto before = workers(3);
  ::kill(before[0], SIGKILL);
  ASSERT_TRUE(is_another(0, before[0])) << job.err();
  ::kill(before[1], SIGKILL);
  ASSERT_TRUE(is_another(1, before[1])) << job.err();
  go();
  ASSERT_TRUE(have_recovered(1)) << events();
  EXPECT_EQ(worker(2), before[2]);
  EXPECT_EQ(count_of("\"event\":\"round_started\""), 1);
}

// Ten seconds after the death. If they do not come at all, the round is restarted without a cause of its own.
TEST_F(Replace, WhoDoesNotComeTogetherIsShown) {
  Job& job = start(2, {"slow-regroup"});
  ASSERT_TRUE(are_ready(2)) << job.err();
  ::kill(worker(1), SIGKILL);
  ASSERT_TRUE(job.reaches([&] {
    return job.err().find("have not come together with the others") != std::string::npos;
  })) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("a worker was replaced 10 s ago, and ranks 0 and 1"));
  EXPECT_THAT(job.err(), HasSubstr("nanosleep"));
  go();
  ASSERT_TRUE(have_recovered(1)) << events();
}

// ---- the next rung: all workers are restarted

TEST_F(Replace, AllAreRestartedWhenTheStandbyIsGoneToo) {
  Job& job = start(2);
  ASSERT_TRUE(are_ready(2)) << job.err();
  const auto before = workers(2);
  // All processes of the job but its workers and the keeper: the standbys.
  for (const pid_t pid : job.processes()) {
    if (std::ranges::count(before, pid) == 0 && pid != job.keeper()) ::kill(pid, SIGKILL);
  }
  ::kill(before[1], SIGKILL);
  ASSERT_TRUE(job.reaches([&] { return count_of("\"event\":\"round_started\"") == 2; }))
      << events();
  EXPECT_TRUE(is_another(0, before[0]));
  ASSERT_TRUE(are_ready(2)) << "again in the next round: " << job.err();
  ::kill(worker(0), SIGKILL);
  ASSERT_TRUE(have_recovered(1)) << events();
  EXPECT_EQ(count_of("\"event\":\"round_started\""), 2);
}

TEST_F(Replace, ASetUpThatFailsAloneIsSaidOnce) {
  const std::pair<const char*, const char*> cases[] = {
      {"set-up-fails",
       "cannot be replaced in place: a standby that made the program's set-up without the others "
       "ended with "
       "exit code 3: no data for one rank alone; when one dies, all are restarted"},
      {"set-up-cannot", "cannot be replaced in place: its set-up needs the others; when"},
      {"set-up-killed", "without the others ended with SIGKILL"},
      {"cannot", "cannot be replaced in place: its set-up needs the others; when"}};
  for (const auto& [what, sentence] : cases) {
    SCOPED_TRACE(what);
    write_file(folder_ / "events", "");
    Job& job = start(2, {what});
    ASSERT_TRUE(says(sentence)) << job.err();
    EXPECT_THAT(status(), HasSubstr("\"why_none\":\""));
    // Its process may end a moment after what it said.
    EXPECT_TRUE(job.reaches([&] { return job.processes().size() == 3U; }))
        << "the keeper and two workers";
    const auto before = workers(2);
    ::kill(before[0], SIGKILL);
    ASSERT_TRUE(job.reaches([&] { return count_of("\"event\":\"round_started\"") == 2; }));
    EXPECT_TRUE(is_another(1, before[1]));
    EXPECT_EQ(count_of("\"how\":\"replaced\""), 0);
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(), exited(128 + SIGTERM));
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

TEST_F(Replace, WithoutStandbysEverythingIsAsBefore) {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--standby=off"}, std::vector<std::string>{"--max-restarts=0"}}) {
    write_file(folder_ / "events", "");
    Job& job = start(2, {}, options);
    ASSERT_TRUE(job.reaches([&] { return job.out().find("steps") != std::string::npos; }));
    const auto before = workers(2);
    ::kill(before[0], SIGKILL);
    if (options[0] == "--standby=off") {
      ASSERT_TRUE(job.reaches([&] { return count_of("\"event\":\"round_started\"") == 2; }));
      EXPECT_TRUE(is_another(1, before[1]));
      job.signal(SIGTERM);
    }
    job.wait();
    EXPECT_THAT(job.err(), Not(HasSubstr("in place")));
    EXPECT_EQ(count_of("\"how\":\"replaced\""), 0);
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

TEST_F(Replace, AWorkerThatDoesNotRegroupAsToldFailsTheRound) {
  Job& job = start(2, {"deaf"});
  ASSERT_TRUE(are_ready(2)) << job.err();
  // Rank 0 ends when it is told to regroup, and so does each that takes its place.
  ::kill(worker(1), SIGKILL);
  ASSERT_TRUE(job.reaches([&] { return count_of("\"event\":\"round_started\"") == 2; }))
      << events();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// It waits for nothing that the others would come to; the time limit of a replacement is 30 s.
TEST_F(Replace, AWorkerThatHasLeftItsLoopEndsTheReplacementAtOnce) {
  Job& job = start(2, {"leaves"});
  ASSERT_TRUE(are_ready(2)) << job.err();
  const auto killed = std::chrono::steady_clock::now();
  ::kill(worker(1), SIGKILL);
  ASSERT_TRUE(job.reaches([&] { return count_of("\"event\":\"round_started\"") == 2; }))
      << events();
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 20s);
}

// ---- the job ends

TEST_F(Replace, AStepThatKillsItsRankTwiceEndsTheJob) {
  Job& job = start(2, {"poison", "2000"});
  const Ended end = job.wait(120s);
  EXPECT_EQ(end, exited(128 + SIGKILL)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("step 2000 has ended rank 1 twice"));
  EXPECT_EQ(count_of("\"event\":\"round_started\""), 1);
  EXPECT_EQ(count_of("\"how\":\"replaced\""), 1);
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(Replace, TheBudgetOfRestartsIsSpent) {
  Job& job = start(2, {}, {"--max-restarts=2"});
  for (int times = 1; times <= 2; ++times) {
    ASSERT_TRUE(are_ready(2)) << job.err();
    ::kill(worker(0), SIGKILL);
    ASSERT_TRUE(have_recovered(times)) << events();
  }
  ASSERT_TRUE(are_ready(2)) << job.err();
  ::kill(worker(1), SIGKILL);
  EXPECT_EQ(job.wait(), exited(128 + SIGKILL)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("rank 1"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(Replace, NothingIsLeftWhenTheAgentIsKilled) {
  for (const bool is_replacing : {false, true}) {
    Job& job = start(2, {"slow-regroup"});
    ASSERT_TRUE(are_ready(2)) << job.err();
    const pid_t before = worker(1);
    if (is_replacing) {
      ::kill(before, SIGKILL);
      ASSERT_TRUE(is_another(1, before)) << job.err();
    }
    job.signal(SIGKILL);
    EXPECT_EQ(job.wait(), killed_by(SIGKILL));
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

TEST_F(Replace, AStopWhileAWorkerIsReplaced) {
  Job& job = start(2, {"slow-regroup"});
  ASSERT_TRUE(are_ready(2)) << job.err();
  const pid_t before = worker(1);
  ::kill(before, SIGKILL);
  ASSERT_TRUE(is_another(1, before)) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), exited(128 + SIGINT)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// ---- by hand, on two nodes, often

TEST_F(Replace, ByHand) {
  Job& job = start(2);
  ASSERT_TRUE(job.reaches([&] { return job.out().find("steps") != std::string::npos; }));
  EXPECT_THAT(ask({"replace", "--rank=0"}).err, HasSubstr("cannot be replaced in place"));
  ASSERT_TRUE(are_ready(2)) << job.err();
  EXPECT_THAT(ask({"replace", "--rank=7"}).err, HasSubstr("there is no rank 7"));
  const auto before = workers(2);
  const Told told = ask({"replace", "--rank=1"});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("rank 1 was replaced"));
  EXPECT_TRUE(says("was ended by ddpctl replace (")) << job.err();
  EXPECT_TRUE(is_another(1, before[1]));
  EXPECT_EQ(worker(0), before[0]);
  EXPECT_THAT(events(), HasSubstr("\"event\":\"requested\""));
}

TEST_F(Replace, NoneByAProgramThatWasBuiltAnew) {
  const std::string program = folder_ / "program";
  std::filesystem::copy_file(DDPRUN_RECOVERING_WORKER, program);
  Command words{program, folder_.path(), std::to_string(kSteps)};
  job_ = std::make_unique<Job>(
      ddprun({"--standby=2", "--no-python", "--max-restarts=5", "--nproc-per-node=2"}, words),
      setup());
  workers(2);
  std::filesystem::copy_file(DDPRUN_RECOVERING_WORKER, program + ".new");
  std::filesystem::rename(program + ".new", program);
  EXPECT_TRUE(says("cannot be replaced in place: its file has changed")) << job_->err();
}

TEST_F(Replace, OnTwoNodes) {
  ClusterSetup setup{.meeting = Meeting::kStatic,
                     .nproc = 2,
                     .options = {"--standby=2", "--no-python", "--max-restarts=9",
                                 "--events=" + folder_ / "events"}};
  setup.environment["DDPRUN_CONTROL_DIR"] = folder_ / "control";
  setup.program = program();
  Cluster cluster(std::move(setup));
  cluster.start_all(2);
  const auto ask = [&](std::vector<std::string> arguments) {
    arguments.push_back(std::to_string(cluster[0].pid()));
    return run_to_its_end(ddpctl(arguments), Replace::setup());
  };
  const auto are_ready = [&] {
    return eventually([&] {
      const std::string text = ask({"status", "--json"}).out;
      const std::string ready = R"("can_recover":true,"waiting":2,"wanted":2)";
      const auto first = text.find(ready);
      return first != std::string::npos && text.find(ready, first + 1) != std::string::npos;
    });
  };
  const auto is_another = [&](int rank, pid_t than) {
    return eventually([&] { return worker(rank) != than; });
  };
  ASSERT_TRUE(are_ready()) << cluster.told();
  const auto before = workers(4);
  // Each node counts its own ranks and tells when these have recovered.
  const auto have_recovered = [&](int times) {
    return eventually([&] { return count_of("\"event\":\"recovered\"") == 2 * times; });
  };
  ::kill(before[3], SIGKILL);
  ASSERT_TRUE(is_another(3, before[3])) << cluster.told();
  ASSERT_TRUE(have_recovered(1)) << events();
  ASSERT_TRUE(are_ready()) << cluster.told();
  ::kill(before[0], SIGKILL);
  ASSERT_TRUE(is_another(0, before[0])) << cluster.told();
  ASSERT_TRUE(have_recovered(2)) << events();
  ASSERT_TRUE(are_ready()) << cluster.told();
  EXPECT_EQ(worker(1), before[1]);
  EXPECT_EQ(worker(2), before[2]);
  const pid_t third = worker(3);
  const Told told = ask({"replace", "--rank=3"});
  EXPECT_THAT(told.out, HasSubstr("rank 3 was replaced")) << told.err;
  EXPECT_NE(worker(3), third);
  EXPECT_THAT(ask({"status"}).out, HasSubstr("3 replaced in this round"));
  EXPECT_EQ(count_of("\"event\":\"round_started\""), 2) << "one on each node";
}

// Orphans are found among the agent's children then, and a standby is none.
TEST_F(Replace, WithoutAControlGroup) {
  const Command command = ddprun({"--standby=2", "--no-python", "--max-restarts=5",
                                  "--nproc-per-node=2", "--events=" + folder_ / "events"},
                                 program());
  job_ = std::make_unique<Job>(without_control_groups(command), setup());
  for (int times = 1; times <= 2; ++times) {
    ASSERT_TRUE(are_ready(2)) << job_->err();
    ::kill(worker(1), SIGKILL);
    ASSERT_TRUE(have_recovered(times)) << events();
  }
  EXPECT_EQ(count_of("\"event\":\"round_started\""), 1);
  ASSERT_TRUE(are_ready(2)) << job_->err();
  job_->signal(SIGKILL);
  EXPECT_THAT(job_->left_over(), IsEmpty());
}

// The newcomer writes where the one before it did.
TEST_F(Replace, LogFilesGoOn) {
  Job& job = start(2, {}, {"--redirects=3", "--log-dir=" + folder_ / "logs"}, /*steps=*/400);
  ASSERT_TRUE(are_ready(2)) << job.err();
  const pid_t before = worker(1);
  ::kill(before, SIGKILL);
  ASSERT_TRUE(is_another(1, before)) << job.err();
  finish();
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  std::string text;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "logs")) {
    if (entry.path().string().ends_with("/1/stdout.log")) text = read_file(entry.path());
  }
  EXPECT_THAT(text, AllOf(HasSubstr("rank 1 begins; pid " + std::to_string(before)),
                          HasSubstr("rank 1 takes its place; pid " + std::to_string(worker(1))),
                          HasSubstr("rank 1 done")));
}

int resident_kib(pid_t pid) {
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/status");
  const std::size_t at = text.find("VmRSS:");
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + 6);
}

TEST_F(Replace, ManyTimesWithoutGrowth) {
  const int times = full_tests() ? 1000 : 40;
  Job& job = start(2);
  ASSERT_TRUE(are_ready(2)) << job.err();
  const pid_t survivor = worker(0);
  constexpr int kFirst = 20;  // until then buffers grow to their size
  std::size_t files = 0;
  int memory = 0;
  for (int i = 1; i <= times; ++i) {
    ASSERT_TRUE(are_ready(2)) << i << job.err();
    const pid_t before = worker(1);
    ::kill(before, SIGKILL);
    ASSERT_TRUE(is_another(1, before)) << i << job.err();
    ASSERT_TRUE(have_recovered(i)) << i << job.err();
    if (i == kFirst || i == times) {
      ASSERT_TRUE(are_ready(2)) << i << job.err();
      ASSERT_TRUE(job.reaches([&] { return job.processes().size() == 5; }))
          << "the keeper, two workers, two standbys";
    }
    if (i == kFirst) {
      files = open_files_of(job.pid()).size();
      memory = resident_kib(job.pid());
    }
  }
  // The files of ddpctl, which has just asked, are closed when the agent sees its end.
  EXPECT_TRUE(job.reaches([&] { return open_files_of(job.pid()).size() <= files + 3; }))
      << open_files_of(job.pid()).size() << " files, after " << kFirst << " replacements " << files;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // which keep freed memory
  constexpr int kGrowthKib = 256 * 1024;
#else
  constexpr int kGrowthKib = 1024;
#endif
  EXPECT_LE(resident_kib(job.pid()), memory + kGrowthKib);
  EXPECT_EQ(worker(0), survivor);
  EXPECT_EQ(count_of("\"event\":\"round_started\""), 1);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
}

}  // namespace
}  // namespace ddprun::test
