// The workers of a node as the supervisor has them, with processes that are none.
#include "agent/supervisor/workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/worker_link.h"
#include "tests/unit/agent/output/output_fixture.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Started {
  ProcessSpec spec;
  WorkerProcess::OnEnd on_end;
  WorkerProcess::OnStarted on_started;
  std::vector<std::pair<std::string, int>> got;  // "group" or "worker", and the signal
  rdzv::UniqueFd link;                           // its end of its link
};

// What is started, by pid from 100 on; none is refused but the next ones.
std::vector<Started> started;
std::vector<Error> refusals;
bool heeds_notices = true;  // all processes handle the signal of a preemption

class FakeProcess final : public WorkerProcess {
 public:
  explicit FakeProcess(std::size_t index) : index_(index) {}
  pid_t pid() const override { return static_cast<pid_t>(100 + index_); }
  bool is_in_control_group() const override { return true; }
  bool has_pidfd() const override { return true; }
  void signal_group(int signal) override { note("group", signal); }
  void signal_worker(int signal) override { note("worker", signal); }
  bool give_notice(int signal) override {
    note("notice", signal);
    return heeds_notices;
  }
  void stop(int signal) override { note("stop", signal); }
  void pause() override { note("group", SIGSTOP); }
  void resume() override { note("group", SIGCONT); }
  void hold_end() override {}
  void let_end(std::chrono::milliseconds) override {}
  void tell_of_rest(std::function<void(const std::string&)>) override {}

 private:
  void note(const char* whom, int signal) { started[index_].got.emplace_back(whom, signal); }
  const std::size_t index_;
};

Result<std::unique_ptr<WorkerProcess>> start_fake(boost::asio::io_context&, const ProcessSpec& spec,
                                                  WorkerProcess::OnEnd on_end,
                                                  WorkerProcess::OnStarted on_started) {
  if (!refusals.empty()) {
    Error error = std::move(refusals.front());
    refusals.erase(refusals.begin());
    return fail(std::move(error));
  }
  started.push_back({spec,
                     std::move(on_end),
                     std::move(on_started),
                     {},
                     rdzv::UniqueFd(::dup(spec.link_socket_fd))});
  return std::make_unique<FakeProcess>(started.size() - 1);
}

class WorkersTest : public ::testing::Test {
 protected:
  WorkersTest() {
    started.clear();
    refusals.clear();
    heeds_notices = true;
    job_.local_world_size = 2;
    job_.program.path = job_.program.name = "/opt/train";
  }

  // With whatever a test has put into the job.
  Workers& group() {
    if (group_) return *group_;
    const Log log(console_, {{"DDPRUN_LOG_LEVEL", "critical"}});
    group_.emplace(
        AgentParts{loop_, console_, log, output_, job_, "here", "agent"}, keeper_,
        [this](const WorkerEvent& event) { note(event); }, &start_fake);
    return *group_;
  }
  Workers& begun() {
    rdzv::RoundStart start;
    start.round = Round{3};
    start.rank_offset = 4;
    start.world_size = 6;
    start.node_rank = 1;
    group().begin(start, Workers::WantedSteps(2));
    return group();
  }
  // Keeps what the observers see, and what the core gets.
  void note(const WorkerEvent& event) {
    if (const auto* its = std::get_if<worker_event::Started>(&event.what)) pids_ = its->pids;
    if (const auto* its = std::get_if<worker_event::ReplicasDiffer>(&event.what)) {
      differences_.push_back(its->what);
    }
    if (const auto* its = std::get_if<worker_event::Ending>(&event.what)) {
      ending_.push_back(its->local_rank);
      is_readable_ =
          group_->view().round().round == event.round && group_->view().pid(its->local_rank) != 0;
    }
    if (const auto* its = std::get_if<worker_event::Ended>(&event.what)) {
      ended_.push_back(its->end);
    }
    if (const auto* its = std::get_if<worker_event::Killed>(&event.what)) {
      killed_.push_back(its->local_rank);
      EXPECT_EQ(its->grace, 3s);
    }
    if (const auto* its = std::get_if<worker_event::Preempted>(&event.what)) {
      EXPECT_EQ(its->signal, job_.preempt_signal);
      EXPECT_EQ(group_->view().running(), 1) << "the one that has ended is not asked to leave";
      group_->round_stops();
    }
    if (auto decided = node_event(event)) events_.push_back(std::move(*decided));
  }
  // It executes its program, or an error says why not.
  static void exec(std::size_t index, Result<void> result = {}) {
    started[index].on_started(std::move(result));
  }
  // Its callback may destroy the process that calls it.
  static void end(std::size_t index, ExitStatus status) {
    const auto on_end = std::exchange(started[index].on_end, nullptr);
    on_end(status);
  }
  const WorkerEnded& last_end() const { return std::get<WorkerEnded>(events_.back()); }

  boost::asio::io_context loop_;
  PipeEnds out_;
  PipeEnds err_;
  Console console_{loop_.get_executor(), {out_.write_end(), err_.write_end()}};
  Job job_;
  Output output_{loop_.get_executor(), console_, job_.output, "job", ""};
  std::optional<Keeper> keeper_;  // none is started
  std::optional<Workers> group_;
  std::vector<NodeEvent> events_;
  std::vector<pid_t> pids_;
  std::vector<int> ending_;
  bool is_readable_ = false;  // the worker that was ending
  std::vector<rdzv::WorkerFailure> ended_;
  std::vector<int> killed_;
  std::vector<std::string> differences_;
};

TEST_F(WorkersTest, StartsAWorkerForEveryLocalRankWithItsOwnRank) {
  EXPECT_EQ(begun().view().running(), 2);
  EXPECT_THAT(pids_, ElementsAre(100, 101));
  ASSERT_THAT(started, SizeIs(2));
  EXPECT_THAT(started[1].spec.environment, Contains("RANK=5"));
  EXPECT_THAT(started[1].spec.environment, Contains("LOCAL_RANK=1"));
  EXPECT_GE(started[1].spec.link_page_fd, 0);
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(WorkersTest, TheEndOfAWorkerIsSeenToldAndThenAnEvent) {
  Workers& group = begun();
  end(1, ExitStatus::exited(3));
  EXPECT_THAT(ending_, ElementsAre(1));
  EXPECT_TRUE(is_readable_);
  ASSERT_THAT(ended_, SizeIs(1));
  EXPECT_EQ(ended_[0].rank, 5);
  EXPECT_EQ(ended_[0].node_rank, 1);
  EXPECT_EQ(ended_[0].pid, 101);
  EXPECT_FALSE(ended_[0].was_told_to_stop);
  EXPECT_EQ(last_end().round, Round{3});
  EXPECT_EQ(last_end().local_rank, 1);
  ASSERT_TRUE(last_end().failure);
  EXPECT_EQ(last_end().failure->status, ExitStatus::exited(3));
  EXPECT_EQ(group.view().running(), 1);
  EXPECT_EQ(group.view().progress(1), std::nullopt);
}

// The loop may hear of a process's end before it reads what that process has sent.
TEST_F(WorkersTest, WhatAWorkerSentLastIsHeardBeforeItsEnd) {
  begun();
  link::ReplicasDiffer differ;
  differ.head.pid = 100;
  differ.step = 40;
  differ.rank = 4;
  differ.other = 5;
  std::strcpy(differ.what, "weight");
  ASSERT_EQ(::send(started[0].link.get(), &differ, sizeof differ, MSG_NOSIGNAL),
            ssize_t{sizeof differ});
  end(0, ExitStatus::exited(1));
  EXPECT_THAT(differences_, ElementsAre("weight"));
}

TEST_F(WorkersTest, AWorkerThatIsStoppedForANanFailsHoweverItEnds) {
  Workers& group = begun();
  const ExitStatus ends[] = {ExitStatus::killed(SIGKILL, false), ExitStatus::exited(0)};
  for (const int local_rank : {0, 1}) {
    ASSERT_TRUE(group.is_to_end_for_nan(local_rank, "it reported loss = nan"));
    end(local_rank, ends[local_rank]);
    ASSERT_TRUE(last_end().failure);
    EXPECT_EQ(last_end().failure->status, ExitStatus::exited(116));
    EXPECT_EQ(last_end().failure->message, "it reported loss = nan");
    EXPECT_FALSE(last_end().failure->is_worth_a_retry);
    EXPECT_FALSE(group.is_to_end_for_nan(local_rank, "")) << "it has ended";
  }
}

TEST_F(WorkersTest, AWorkerThatSucceedsHasNoFailure) {
  begun();
  end(0, ExitStatus::exited(0));
  EXPECT_EQ(last_end().failure, std::nullopt);
}

TEST_F(WorkersTest, WhoEndsWhileTheRoundIsStoppedWasToldTo) {
  begun().round_stops();
  end(0, ExitStatus::killed(SIGTERM));
  EXPECT_TRUE(ended_[0].was_told_to_stop);
}

TEST_F(WorkersTest, AWorkerThatThePreemptionSignalEndsWasToldToStop) {
  job_.preempt_signal = SIGUSR1;
  begun();
  end(0, ExitStatus::killed(SIGUSR1));
  EXPECT_TRUE(ended_[0].was_told_to_stop);
  EXPECT_THAT(ending_, ElementsAre(0));
}

// A child that has ended.
pid_t ended_child() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  return child;
}

// The one that started it would wait for its end for ever.
TEST_F(WorkersTest, AHelperIsNotReapedAsAnOrphan) {
  ASSERT_TRUE(group().prepare());
  pid_t helper = -1;
  EXPECT_NE(group().take_in_helper([&helper](pid_t pid) { return pid == helper; }), nullptr);
  const pid_t orphan = ended_child();  // reaped in the order in which they were made
  helper = ended_child();
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (::kill(orphan, 0) == 0 && std::chrono::steady_clock::now() < until) loop_.run_one_for(1s);
  EXPECT_NE(::kill(orphan, 0), 0);
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(helper), &info, WEXITED | WNOHANG), 0);
  EXPECT_EQ(info.si_pid, helper);
}

TEST_F(WorkersTest, AWorkerThatTakesNoRequestIsToldBySignalIfItHandlesOne) {
  begun();
  exec(0);
  exec(1);
  events_.clear();
  group().ask_to_leave(0, SIGUSR1);
  EXPECT_THAT(started[0].got, ElementsAre(std::pair("notice", SIGUSR1)));
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(std::get<WorkerTold>(events_.back()).local_rank, 0);
  group().ask_to_leave(1, 0);
  EXPECT_THAT(started[1].got, IsEmpty()) << "a notice, and no --preempt-signal";
  job_.preempt_signal = SIGUSR2;
  heeds_notices = false;
  group().ask_to_leave(1, 0);
  EXPECT_THAT(started[1].got, ElementsAre(std::pair("notice", SIGUSR2)));
  EXPECT_THAT(events_, SizeIs(1)) << "it does not handle the signal";
  end(0, ExitStatus::exited(0));
  EXPECT_TRUE(last_end().has_left);
  end(1, ExitStatus::exited(0));
  EXPECT_FALSE(last_end().has_left) << "it has come to its end";
}

// Whatever waits for a file server, and what has made no step yet.
TEST_F(WorkersTest, WorkersThatMakeNoStepsAreNotHeldBeforeAStop) {
  group().hold_at_boundary(rdzv::HoldSteps::Until::kRoundStop);
  EXPECT_EQ(std::get<WorkersHeld>(events_.back()).passed, -1) << "none is started";
  begun().hold_at_boundary(rdzv::HoldSteps::Until::kRoundStop);
  EXPECT_EQ(std::get<WorkersHeld>(events_.back()).passed, -1);
}

TEST_F(WorkersTest, WorkersThatAreHeldGoOnWhenTheRoundIsStopped) {
  begun();
  exec(0);
  exec(1);
  const auto state = [](std::size_t index) {
    std::uint32_t read = ~0U;
    EXPECT_EQ(::pread(started[index].spec.link_page_fd, &read, sizeof read,
                      offsetof(link::Page, boundaries)),
              ssize_t{sizeof read});
    return static_cast<link::BoundaryState>(read);
  };
  events_.clear();
  group().hold_at_boundary(rdzv::HoldSteps::Until::kLeaveAt);
  EXPECT_EQ(state(0), link::BoundaryState::kHold);
  EXPECT_EQ(state(1), link::BoundaryState::kHold);
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(std::get<WorkersHeld>(events_.back()).passed, 0);
  group().round_stops();
  EXPECT_EQ(state(0), link::BoundaryState::kGoOn) << "its handler of the stop signal may run";
  EXPECT_EQ(state(1), link::BoundaryState::kGoOn);
}

TEST_F(WorkersTest, AProgramThatIsNotThereIsNotWorthARetry) {
  const std::pair<ErrorCode, int> refused[] = {{ErrorCode::kNotFound, kExitNotFound},
                                               {ErrorCode::kPermissionDenied, kExitNotExecutable}};
  begun();
  for (std::size_t index = 0; index < 2; ++index) {
    const auto& [code, exit_code] = refused[index];
    exec(index, fail(code, "no such program"));
    EXPECT_THAT(events_, SizeIs(index)) << "its process has not ended yet";
    end(index, ExitStatus::exited(127));
    ASSERT_THAT(events_, SizeIs(index + 1));
    EXPECT_EQ(last_end().failure->status, ExitStatus::exited(exit_code));
    EXPECT_FALSE(last_end().failure->is_worth_a_retry);
    EXPECT_THAT(last_end().failure->message, HasSubstr("no such program"));
  }
}

TEST_F(WorkersTest, AStartThatMeetsALimitIsWorthARetryAndNoOtherIsTried) {
  refusals = {{ErrorCode::kResourceExhausted, "no process left", {}}};
  EXPECT_EQ(begun().view().running(), 0);
  EXPECT_THAT(started, IsEmpty());
  EXPECT_THAT(pids_, ElementsAre(0, 0));
  ASSERT_THAT(events_, SizeIs(2));
  for (const NodeEvent& event : events_) {
    const auto& failure = std::get<WorkerEnded>(event).failure.value();
    EXPECT_TRUE(failure.is_worth_a_retry);
    EXPECT_EQ(failure.status, ExitStatus::exited(kExitCannotRun));
  }
}

TEST_F(WorkersTest, WorkersAreAwaitedUntilTheirProgramsAreExecuted) {
  Workers& group = begun();
  EXPECT_THAT(events_, IsEmpty());
  EXPECT_THAT(group.view().what_starts({0, 1}),
              HasSubstr("ranks 4 and 5 wait for the kernel to execute /opt/train"));
  exec(1);
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(std::get<WorkerStarted>(events_[0]).local_rank, 1);
  EXPECT_EQ(std::get<WorkerStarted>(events_[0]).round, Round{3});
  EXPECT_THAT(group.view().what_starts({0, 1}), HasSubstr("rank 4 waits"));
  exec(0);
  EXPECT_EQ(group.view().what_starts({0, 1}), "");
}

TEST_F(WorkersTest, AWorkerWhoseProgramIsNotExecutedYetIsStoppedLikeAnyOther) {
  Workers& group = begun();
  group.round_stops();
  group.signal(0, SIGTERM);
  EXPECT_THAT(started[0].got, ElementsAre(std::pair("stop", SIGTERM)));
  end(0, ExitStatus::killed(SIGKILL));
  EXPECT_TRUE(ended_[0].was_told_to_stop);
  exec(1);
  EXPECT_THAT(events_, SizeIs(2));
}

TEST_F(WorkersTest, AKillIsOneAfterTheGraceOnlyWhenThatIsOver) {
  Workers& group = begun();
  group.signal(0, SIGTERM);
  group.signal(0, SIGKILL);
  EXPECT_THAT(killed_, IsEmpty());
  group.grace_is_over(3s);
  group.signal(1, SIGKILL);
  EXPECT_THAT(killed_, ElementsAre(1));
  EXPECT_THAT(started[0].got, ElementsAre(std::pair("stop", SIGTERM), std::pair("group", SIGKILL)));
  begun();
  group.signal(1, SIGKILL);
  EXPECT_THAT(killed_, ElementsAre(1)) << "the next round has a grace of its own";
}

TEST_F(WorkersTest, SignalsOfJobControlReachGroupsAndNoticesTheWorkersAlone) {
  Workers& group = begun();
  group.pause_all();
  group.signal_all(SIGCONT);
  group.signal_all(SIGUSR2);
  end(1, ExitStatus::exited(0));
  group.signal_all(SIGUSR2);
  EXPECT_THAT(started[0].got,
              ElementsAre(std::pair("group", SIGSTOP), std::pair("group", SIGCONT),
                          std::pair("worker", SIGUSR2), std::pair("worker", SIGUSR2)));
  EXPECT_THAT(started[1].got, SizeIs(3)) << "it has ended";
}

TEST_F(WorkersTest, ARoundThatLeftNothingBehindIsClosedAtOnce) {
  Workers& group = begun();
  end(0, ExitStatus::exited(0));
  end(1, ExitStatus::exited(0));
  group.close(/*spares_orphans=*/false);
  loop_.run_for(1s);
  const auto* closed = std::get_if<RoundClosed>(&events_.back());
  ASSERT_NE(closed, nullptr);
  EXPECT_EQ(closed->round, Round{3});
}

}  // namespace
}  // namespace ddprun::agent
