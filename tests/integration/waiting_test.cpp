// Ranks that do not come where the others wait: who it is, by event and by ddpctl status, over shared memory
// and over Gloo, on one node and on two; and that a rank which is only slow is never called hung.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>

#include "agent/status/job_status.h"
#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Backend, and whether on two nodes.
using Place = std::tuple<std::string, bool>;

class Waiting : public ::testing::TestWithParam<Place> {
 protected:
  static std::string backend() { return std::get<0>(GetParam()); }
  static bool is_on_two_nodes() { return std::get<1>(GetParam()); }

  // Three or four ranks, the last of which has that fault.
  void start(const std::string& fault) {
    const Command program{DDPRUN_WAITING_WORKER, backend(), fault};
    const std::string control = folder_ / "control";
    if (is_on_two_nodes()) {
      ClusterSetup setup{
          .meeting = Meeting::kStatic, .nproc = 2, .options = {"--events=" + events_file()}};
      setup.environment["DDPRUN_CONTROL_DIR"] = control;
      setup.program = program;
      cluster_ = std::make_unique<Cluster>(std::move(setup));
      cluster_->start_all(2);
      last_ = 3;
    } else {
      job_ = std::make_unique<Job>(
          ddprun({"--nproc-per-node=3", "--events=" + events_file()}, program),
          JobSetup{.environment = {{"DDPRUN_CONTROL_DIR", control}}});
      last_ = 2;
    }
  }
  std::string events_file() const { return folder_ / "events"; }
  std::string events() const { return read_file(events_file()); }
  std::string told() const { return job_ ? job_->err() : cluster_->told(); }
  bool sees(const std::string& text) const {
    return eventually([&] { return events().find(text) != std::string::npos; }, 30s);
  }
  std::string the_last() const { return "\"ranks\":[" + std::to_string(last_) + "]"; }
  // The answer of the first node's agent, in the words of the screen.
  std::string screen() const {
    std::vector<std::string> arguments{"status"};
    if (cluster_) arguments.push_back(std::to_string((*cluster_)[0].pid()));
    return run_to_its_end(ddpctl(arguments),
                          {.environment = {{"DDPRUN_CONTROL_DIR", folder_ / "control"}}})
        .out;
  }

  TemporaryTree folder_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Cluster> cluster_;
  int last_ = 0;
};

TEST_P(Waiting, NamesARankThatDoesNotCome) {
  for (const std::string fault : {"waits", "loops"}) {
    start(fault);
    ASSERT_TRUE(sees("\"event\":\"waiting_for\"")) << told();
    EXPECT_THAT(events(), AllOf(HasSubstr(the_last()), HasSubstr("\"call\":\"all_reduce\"")));
    const std::string rank = "rank " + std::to_string(last_);
    EXPECT_THAT(screen(),
                AllOf(HasSubstr("\nWAITING\n"), HasSubstr(rank + " has not come to all_reduce"),
                      HasSubstr("all_reduce 11 for ")));
    EXPECT_THAT(events(), Not(HasSubstr("\"event\":\"hung\""))) << "without proof";
    job_.reset();
    cluster_.reset();
    write_file(events_file(), "");
  }
}

TEST_P(Waiting, CallsAStoppedRankHung) {
  start("stops");
  ASSERT_TRUE(sees("\"event\":\"hung\"")) << told() << events();
  EXPECT_THAT(events(), AllOf(HasSubstr("\"why\":\"stopped\""), HasSubstr(the_last())));
  EXPECT_THAT(screen(), HasSubstr("stopped by a signal"));
}

TEST_P(Waiting, NeverCallsASlowRankHung) {
  start("evaluates");
  if (job_) {
    EXPECT_EQ(job_->wait(60s), exited(0)) << told();
  } else {
    for (const auto& [name, end] : cluster_->wait(60s)) EXPECT_EQ(end, exited(0)) << told();
  }
  EXPECT_THAT(events(), AllOf(HasSubstr("\"event\":\"waiting_for\""), HasSubstr(the_last()),
                              Not(HasSubstr("\"event\":\"hung\""))));
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Waiting,
                         ::testing::Combine(::testing::Values("shm", "gloo"), ::testing::Bool()),
                         [](const auto& place) {
                           return std::get<0>(place.param) +
                                  (std::get<1>(place.param) ? "_two_nodes" : "_one_node");
                         });

// Their records come to them as their links do.
TEST(WaitingStandbys, AreNamedToo) {
  const TemporaryTree folder;
  const JobSetup setup{.environment = {{"DDPRUN_CONTROL_DIR", folder / "control"}}};
  const std::string events = folder / "events";
  Job job(ddprun({"--nproc-per-node=2", "--standby=2", "--max-restarts=1", "--events=" + events},
                 {DDPRUN_WAITING_WORKER, "shm", "waits"}),
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
