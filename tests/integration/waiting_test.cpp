// Ranks that do not come where the others wait, or that do something else there, over shared memory and over Gloo,
// on one node and on two: who it is, by event, by report and by ddpctl status; that a rank which is only slow is
// never called hung; and what --hang-timeout and --on-hang make of it. DDPRUN_TEST_FULL=1 tries every fault at all
// four places, several times; otherwise each is tried once, and the places take turns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Place {
  std::string backend;
  bool has_two_nodes = false;
};
const Place kPlaces[] = {{"shm", false}, {"gloo", false}, {"shm", true}, {"gloo", true}};
std::string name_of(const Place& place) {
  return place.backend + (place.has_two_nodes ? " on two nodes" : " on one node");
}

constexpr const char* kStackTool =
    "#!/bin/sh\necho \"TID $2:\"; echo '#0  0x01 next_batch(int)'; echo '#1  0x02 main'\n";

// A job of three ranks on one node, or four on two, with that fault (waiting_worker.cpp).
class Trial {
 public:
  Trial(const Place& place, const std::string& fault, std::vector<std::string> options = {},
        std::map<std::string, std::string> environment = {})
      : world_(place.has_two_nodes ? 4 : 3) {
    const Command program{DDPRUN_WAITING_WORKER, place.backend, fault};
    options.push_back("--events=" + events_file());
    environment["DDPRUN_CONTROL_DIR"] = folder_ / "control";
    environment["OMP_NUM_THREADS"] = "1";
    // A tool that is fast, except where all is tried: gdb needs seconds of a processor for each rank.
    folder_.write("bin/eu-stack", kStackTool, 0755);
    if (!full_tests()) environment.try_emplace("PATH", folder_ / "bin");
    if (full_tests() && fault == "evaluates") environment["DDPRUN_TEST_SECONDS"] = "30";
    if (fault == "overlaps") environment["DDPRUN_TEST_SECONDS"] = "24";  // a cycle is told after 20
    if (place.has_two_nodes) {
      ClusterSetup setup{.meeting = Meeting::kStatic, .nproc = 2, .options = std::move(options)};
      setup.environment = std::move(environment);
      setup.program = program;
      cluster_ = std::make_unique<Cluster>(std::move(setup));
      cluster_->start_all(2);
    } else {
      options.push_back("--nproc-per-node=3");
      job_ = std::make_unique<Job>(ddprun(options, program),
                                   JobSetup{.environment = std::move(environment)});
    }
  }

  int last() const { return world_ - 1; }
  std::string events_file() const { return folder_ / "events"; }
  std::string events() const { return read_file(events_file()); }
  std::string told() const { return job_ ? job_->err() : cluster_->told(); }
  bool has(const std::string& text) const { return events().find(text) != std::string::npos; }
  bool sees(const std::string& text, milliseconds within = 60s) const {
    return eventually([&] { return has(text); }, within);
  }
  bool never_hung() const { return !has("\"event\":\"hung\""); }
  static std::string ranks(std::initializer_list<int> ranks) {
    std::string text;
    for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
    return "\"ranks\":[" + text + "]";
  }
  // The answer of the first node's agent, in the words of the screen.
  std::string screen() const {
    std::vector<std::string> arguments{"status"};
    if (cluster_) arguments.push_back(std::to_string((*cluster_)[0].pid()));
    return run_to_its_end(ddpctl(arguments),
                          {.environment = {{"DDPRUN_CONTROL_DIR", folder_ / "control"}}})
        .out;
  }
  // The first rank's agent's; all have the same code.
  Ended end() {
    if (job_) return job_->wait(90s);
    const auto ends = cluster_->wait(90s);
    for (const auto& [node, end] : ends) EXPECT_EQ(end, ends.begin()->second) << told();
    return ends.begin()->second;
  }
  pid_t pid_of(int rank) const {
    const auto workers = job_->workers();
    return workers.at(rank);
  }

 private:
  const int world_;
  TemporaryTree folder_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Cluster> cluster_;
};

constexpr const char* kWaits = "\"event\":\"waiting_for\"";
constexpr const char* kHung = "\"event\":\"hung\"";

// ---- what is expected of a fault, and why

// It may come yet: nothing but its own program knows.
void names_the_last_as_missing(Trial& trial) {
  ASSERT_TRUE(trial.sees(kWaits)) << trial.told();
  const std::string rank = "rank " + std::to_string(trial.last());
  EXPECT_THAT(trial.events(),
              AllOf(HasSubstr(Trial::ranks({trial.last()})), HasSubstr("\"call\":\"all_reduce\"")));
  EXPECT_THAT(trial.screen(),
              AllOf(HasSubstr("\nWAITING\n  " + rank + " has not come to all_reduce"),
                    HasSubstr("all_reduce 11 for ")));
  EXPECT_TRUE(trial.never_hung()) << "there is no proof: " << trial.events();
}

// It cannot come, as the kernel says; the report has its stack first, and the others together.
void calls_the_last_hung(Trial& trial, const std::string& why, const std::string& in_words) {
  // A rank is in the kernel for good after two minutes.
  ASSERT_TRUE(trial.sees("\"event\":\"hang_report\"", 180s)) << trial.told() << trial.events();
  EXPECT_THAT(trial.events(), AllOf(HasSubstr("\"why\":\"" + why + "\""),
                                    HasSubstr("\"culprits\":[{" + Trial::ranks({trial.last()}))));
  const std::string rank = "rank " + std::to_string(trial.last());
  EXPECT_THAT(trial.screen(), HasSubstr("  HUNG: " + rank + " " + in_words));
  // Written by another thread than the events, and so perhaps after them.
  EXPECT_TRUE(eventually([&] {
    return trial.told().find("ddprun: what the ranks do while " + rank + " hangs\n  " + rank +
                             " on ") != std::string::npos;
  })) << trial.told();
  EXPECT_THAT(trial.told(), HasSubstr(rank + " hung: " + rank + " " + in_words));
}
void calls_the_last_stopped(Trial& trial) {
  calls_the_last_hung(trial, "stopped", "is stopped by a signal");
}
void calls_the_last_held_by_the_kernel(Trial& trial) {
  names_the_last_as_missing(trial);
  calls_the_last_hung(trial, "uninterruptible", "does not return from the kernel");
}

// The backend notices that the calls differ and fails, or they wait for each other: then the records show it. Of
// shared memory the former is certain.
void names_the_last_as_different(Trial& trial, const Place& place) {
  const std::string last = Trial::ranks({trial.last()});
  const auto fails = [&] { return trial.has("\"event\":\"finished\""); };
  ASSERT_TRUE(eventually([&] { return fails() || trial.has(kHung); }, 60s)) << trial.told();
  if (place.backend == "shm" || (fails() && !trial.has(kHung))) {
    EXPECT_NE(trial.end(), exited(0)) << trial.told();
    EXPECT_THAT(trial.told(), HasSubstr("FAILED: rank "));
    return;
  }
  EXPECT_THAT(trial.events(), AllOf(HasSubstr("\"why\":\"mismatch\""), HasSubstr(last)))
      << "the others are more";
}

// Each rank takes what comes as that of its root. Between two nodes shared memory does not notice, and nobody waits;
// elsewhere as above.
void names_another_root_where_it_shows(Trial& trial, const Place& place) {
  const auto ends = [&] { return trial.has("\"event\":\"finished\""); };
  ASSERT_TRUE(eventually([&] { return ends() || trial.has(kHung); }, 60s)) << trial.told();
  if (trial.has("\"outcome\":\"succeeded\"")) {
    EXPECT_TRUE(place.has_two_nodes || place.backend == "gloo") << trial.told();
    EXPECT_TRUE(trial.never_hung()) << trial.events();
    return;
  }
  names_the_last_as_different(trial, place);
}

// Nothing waits for ever, and nobody is to blame.
void is_never_hung(Trial& trial, std::initializer_list<int> missing) {
  EXPECT_EQ(trial.end(), exited(0)) << trial.told();
  EXPECT_TRUE(trial.never_hung()) << trial.events();
  if (missing.size() == 0) {
    EXPECT_FALSE(trial.has(kWaits)) << trial.events();
  } else {
    EXPECT_THAT(trial.events(), AllOf(HasSubstr(kWaits), HasSubstr(Trial::ranks(missing))));
  }
}

// Each waits for the next one, but computes.
void computes_in_a_cycle(Trial& trial) {
  EXPECT_EQ(trial.end(), exited(0)) << trial.told();
  EXPECT_TRUE(trial.has(kWaits)) << trial.events();
  EXPECT_TRUE(trial.never_hung()) << trial.events();
}

// A death, which is known at once, and no hang.
void dies(Trial& trial) {
  EXPECT_EQ(trial.end(), exited(128 + SIGKILL)) << trial.told();
  EXPECT_THAT(trial.told(), HasSubstr("FAILED: rank " + std::to_string(trial.last())));
  EXPECT_TRUE(trial.never_hung()) << trial.events();
}

void waits_in_a_cycle(Trial& trial) {
  ASSERT_TRUE(trial.sees(kHung)) << trial.told();
  EXPECT_THAT(trial.events(), AllOf(HasSubstr("\"why\":\"cycle\""),
                                    HasSubstr(trial.last() == 2 ? Trial::ranks({0, 1, 2})
                                                                : Trial::ranks({0, 1, 2, 3}))));
}

struct Row {
  const char* fault;
  void (*expect)(Trial&, const Place&);
};
const Row kRows[] = {
    {"waits", [](Trial& trial, const Place&) { names_the_last_as_missing(trial); }},
    {"loops", [](Trial& trial, const Place&) { names_the_last_as_missing(trial); }},
    {"deadlocks", [](Trial& trial, const Place&) { names_the_last_as_missing(trial); }},
    {"stops", [](Trial& trial, const Place&) { calls_the_last_stopped(trial); }},
    {"vforks", [](Trial& trial, const Place&) { calls_the_last_held_by_the_kernel(trial); }},
    {"skips", &names_the_last_as_different},
    {"swaps", &names_the_last_as_different},
    {"differs", &names_the_last_as_different},
    {"shape", &names_the_last_as_different},
    {"type", &names_the_last_as_different},
    {"root", &names_another_root_where_it_shows},
    {"dies", [](Trial& trial, const Place&) { dies(trial); }},
    {"slow", [](Trial& trial, const Place&) { is_never_hung(trial, {}); }},
    {"evaluates", [](Trial& trial, const Place&) { is_never_hung(trial, {0}); }},
    {"saves", [](Trial& trial, const Place&) { is_never_hung(trial, {trial.last()}); }},
    {"compiles", [](Trial& trial, const Place&) { is_never_hung(trial, {trial.last()}); }},
    {"overlaps", [](Trial& trial, const Place&) { computes_in_a_cycle(trial); }},
    {"cycle", [](Trial& trial, const Place&) { waits_in_a_cycle(trial); }},
};

class Fault : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Fault, IsNamedAsItIs) {
  const Row& row = kRows[GetParam()];
  const std::size_t count = full_tests() ? 4 * std::size(kPlaces) : 1;
  for (std::size_t i = 0; i < count && !HasFailure(); ++i) {
    const Place& place = kPlaces[(GetParam() + i) % std::size(kPlaces)];
    SCOPED_TRACE(row.fault + (" over " + name_of(place)));
    Trial trial(place, row.fault);
    row.expect(trial, place);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Fault, ::testing::Range(std::size_t{0}, std::size(kRows)),
                         [](const auto& row) { return std::string(kRows[row.param].fault); });

// Eight ranks on as few processors as there are, beside programs that want them too, as a build does.
TEST(BusyMachine, GivesNoFalseVerdict) {
  if (!full_tests()) GTEST_SKIP() << "takes half an hour: DDPRUN_TEST_FULL=1";
  const TemporaryTree folder;
  const std::string events = folder / "events";
  const std::string burn = "for i in 1 2 3 4; do (while :; do :; done) & done; exec \"$@\"";
  Command command{"/bin/sh", "-c", burn, "sh"};
  std::ranges::copy(ddprun({"--nproc-per-node=8", "--hang-timeout=auto", "--events=" + events},
                           {DDPRUN_WAITING_WORKER, "gloo", "trains"}),
                    std::back_inserter(command));
  Job job(command, {.environment = {{"DDPRUN_TEST_SECONDS", "1800"}, {"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(job.wait(2000s), exited(0)) << job.err();
  EXPECT_THAT(read_file(events), Not(HasSubstr("\"event\":\"hung\"")));
}

// ---- what follows

// On this node and on the other one: the rank is killed there, the round ends, and the next one is well.
TEST(OnHang, RestartEndsARankThatHangs) {
  for (const Place& place : {kPlaces[0], kPlaces[3]}) {
    SCOPED_TRACE(name_of(place));
    Trial trial(place, "stops", {"--on-hang=restart", "--max-restarts=1"});
    EXPECT_EQ(trial.end(), exited(0)) << trial.told();
    const std::string rank = "rank " + std::to_string(trial.last());
    EXPECT_THAT(trial.told(), HasSubstr(") hung: " + rank + " is stopped by a signal, and "));
    EXPECT_THAT(trial.told(), HasSubstr("; restart 1 of 1"));
    EXPECT_THAT(trial.events(), HasSubstr("\"hang\":\"" + rank + " is stopped by a signal"));
  }
}

TEST(OnHang, TheReportNamesItIfNoRestartIsLeft) {
  Trial trial(kPlaces[1], "stops", {"--on-hang=restart"});
  EXPECT_EQ(trial.end(), exited(128 + SIGKILL)) << trial.told();
  EXPECT_THAT(trial.told(), HasSubstr("FAILED: rank 2 (pid "));
  EXPECT_THAT(trial.told(), HasSubstr("  its stack when it hung\n    "));
}

TEST(OnHang, AfterTheTimeoutAWaitIsAHang) {
  Trial trial(kPlaces[0], "waits", {"--hang-timeout=2", "--on-hang=restart", "--max-restarts=1"});
  EXPECT_EQ(trial.end(), exited(0)) << trial.told();
  EXPECT_THAT(trial.events(), AllOf(HasSubstr(kWaits), HasSubstr("\"why\":\"timeout\""),
                                    HasSubstr(Trial::ranks({2}))));
  EXPECT_THAT(trial.told(), HasSubstr("has not come for longer than --hang-timeout allows"));
}

// Nothing was asked for: it is told all the same that the job stands still, at a rank of which line. Of a minute there is
// a second here.
TEST(StandingStill, IsToldAfterAMinuteAndAfterFive) {
  for (const Place& place : {kPlaces[0], kPlaces[3]}) {
    SCOPED_TRACE(name_of(place));
    Trial trial(place, "waits", {}, {{"DDPRUN_TEST_MINUTE_MS", "1500"}});
    const std::string rank = "rank " + std::to_string(trial.last());
    const auto lines = [&] {
      const std::string told = trial.told();
      int count = 0;
      const std::string line = rank + " has not come to all_reduce (call 11 of ";
      for (auto at = told.find(line); at != std::string::npos; at = told.find(line, at + 1)) ++count;
      return count;
    };
    EXPECT_TRUE(eventually([&] { return lines() == 2; }, 60s)) << trial.told();
    EXPECT_THAT(trial.told(), HasSubstr("; " + rank + ": "));
    EXPECT_THAT(trial.told(), HasSubstr("; ddpctl stacks "));
    EXPECT_THAT(trial.told(), HasSubstr(" shows all ranks"));
    EXPECT_TRUE(trial.never_hung()) << trial.events();
  }
}

TEST(OnHang, TheAutomaticTimeoutKillsNothing) {
  Trial trial(kPlaces[0], "evaluates", {"--hang-timeout=auto", "--on-hang=restart"},
              {{"DDPRUN_TEST_SECONDS", "70"}});
  EXPECT_EQ(trial.end(), exited(0)) << trial.told();
  EXPECT_TRUE(trial.never_hung()) << trial.events();
  EXPECT_THAT(trial.told(), HasSubstr("rank 0 has not come for much longer than any wait of this job"));
  EXPECT_THAT(trial.told(), HasSubstr("ddprun: what the ranks do while others wait for rank 0\n"));
}

TEST(OnHang, OneThatGoesOnMeanwhileIsNotEnded) {
  // Its stack is taken by a tool that takes until then.
  const TemporaryTree tools;
  tools.write("bin/eu-stack",
              "#!/bin/sh\nwhile [ ! -e " + (tools / "goes_on") + " ]; do /bin/sleep 0.05; done\n",
              0755);
  Trial trial(kPlaces[0], "pauses", {"--on-hang=restart"}, {{"PATH", tools / "bin"}});
  ASSERT_TRUE(trial.sees(kHung)) << trial.told();
  ::kill(trial.pid_of(2), SIGCONT);
  tools.write("goes_on", "");
  EXPECT_EQ(trial.end(), exited(0)) << trial.told();
  EXPECT_THAT(trial.told(), HasSubstr("rank 2 went on by itself meanwhile: nothing is done"));
}

// --record keeps what the ranks were doing, and ddpctl replay gives the verdict again.
TEST(OnHang, IsShownAgainByReplay) {
  const TemporaryTree folder;
  Trial trial(kPlaces[1], "stops", {"--on-hang=restart", "--record=" + (folder / "record")});
  EXPECT_EQ(trial.end(), exited(128 + SIGKILL)) << trial.told();
  const Told told = run_to_its_end(ddpctl({"replay", folder / "record"}));
  EXPECT_EQ(told.code, 0) << told.out << told.err;
  const std::string verdict =
      "rank 2 is stopped by a signal, and ranks 0 and 1 wait for it in all_reduce (call 11 of ";
  EXPECT_THAT(told.out,
              AllOf(HasSubstr("ranks   3 ranks of round 0\n"), HasSubstr("hung: " + verdict),
                    HasSubstr("rank 2: stopped by a signal, left all_reduce (call 10 of "),
                    HasSubstr("ranks   of this node at the end of round 0\n"),
                    HasSubstr("all decisions were the same as in the recording\n")));
}

TEST(OnHang, AStackToolThatHangsDelaysTheEndByItsLimit) {
  const TemporaryTree tools;
  tools.write("bin/eu-stack", "#!/bin/sh\nexec /bin/sleep 1000\n", 0755);
  Trial trial(kPlaces[0], "stops", {"--on-hang=restart", "--max-restarts=1"},
              {{"PATH", tools / "bin"}});
  EXPECT_EQ(trial.end(), exited(0)) << trial.told();
  EXPECT_THAT(trial.told(), HasSubstr("note: eu-stack did not end within 6 s\n"));
}

// Their records come to them as their links do.
TEST(WaitingStandbys, AreNamedToo) {
  const TemporaryTree folder;
  const JobSetup setup{.environment = {{"DDPRUN_CONTROL_DIR", folder / "control"}}};
  const std::string events = folder / "events";
  Job job(ddprun({"--nproc-per-node=2", "--standby=2", "--max-restarts=1", "--events=" + events},
                 {DDPRUN_WAITING_WORKER, "shm", "waits_always"}),
          setup);
  const auto sees = [&](int round) {
    return job.reaches([&] {
      const std::string text = read_file(events);
      const auto at = text.rfind("\"event\":\"waiting_for\"");
      return at != std::string::npos &&
             text.find("\"round\":" + std::to_string(round) + ",\"ranks\":[1]", at) !=
                 std::string::npos;
    });
  };
  ASSERT_TRUE(sees(0)) << job.err();
  ASSERT_TRUE(job.reaches([&] {
    return run_to_its_end(ddpctl({"status"}), setup).out.find("standbys 2 of 2 wait") !=
           std::string::npos;
  })) << job.err();
  const auto waiting = job.processes();
  const auto workers = job.workers();
  ::kill(workers.at(0), SIGKILL);
  EXPECT_TRUE(sees(1)) << job.err();
  for (const auto& [rank, pid] : job.workers()) {
    EXPECT_EQ(std::ranges::count(waiting, pid), 1) << "rank " << rank << " was no standby";
  }
}

// Over shared memory the ranks compare their calls themselves, and fail at once.
TEST(WaitingOverGloo, NamesBothOfTwoRanksThatMakeDifferentCalls) {
  const TemporaryTree folder;
  const std::string events = folder / "events";
  Job job(ddprun({"--nproc-per-node=2", "--events=" + events},
                 {DDPRUN_WAITING_WORKER, "gloo", "differs"}));
  EXPECT_TRUE(eventually(
      [&] { return read_file(events).find("\"event\":\"hung\"") != std::string::npos; }, 30s))
      << job.err();
  EXPECT_THAT(read_file(events),
              AllOf(HasSubstr("\"why\":\"mismatch\""), HasSubstr("\"ranks\":[0,1]"),
                    HasSubstr("all_reduce of 8 elements on rank 0, broadcast of 32 elements with "
                              "root 0 on rank 1")))
      << "a broadcast moves bytes";
}

}  // namespace
}  // namespace ddprun::test
