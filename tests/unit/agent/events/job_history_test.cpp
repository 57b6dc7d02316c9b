// What a node remembers of its job, from the events that it is told.
#include "agent/events/job_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <boost/json.hpp>
#include <csignal>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class History : public ::testing::Test {
 protected:
  void note(const JobEvent& event) {
    now += 1s;
    history.note({std::chrono::system_clock::time_point(now.time_since_epoch()), now, "job", "b1"},
                 event);
  }
  void run(Round round) {
    RoundStarted started;
    started.round = round;
    started.master_addr = "b1";
    started.master_port = 4711;
    started.workers = {{2, 0, 100}, {3, 1, 101}};
    started.since_cause = 12ms;
    started.node_rank = 1;
    started.node_count = 2;
    started.world_size = 4;
    note(started);
  }
  void end(int local_rank, ExitStatus status, bool was_told_to_stop) {
    note(WorkerExited{Round{0},
                      {2 + local_rank, local_rank, 100 + local_rank},
                      status,
                      was_told_to_stop,
                      false,
                      "",
                      {}});
  }
  NodeStatus status(std::size_t events = kEventsKept) const {
    NodeStatus status;
    history.fill(status, clock, now + 500ms, events);
    return status;
  }

  steady_clock::time_point now{};
  JobHistory history{2};
  DowntimeClock clock{now, 2};
};

TEST_F(History, KnowsNothingBeforeTheFirstRound) {
  note(JobStarted{"train", 2, 3, 1});
  EXPECT_EQ(status().round, std::nullopt);
  EXPECT_EQ(status().local_world_size, 2);
  EXPECT_EQ(status().max_restarts, 3);
  EXPECT_THAT(status().workers, IsEmpty());
}

TEST_F(History, ShowsTheRoundAndHowEachWorkerEnded) {
  run(Round{0});
  EXPECT_EQ(status().round, Round{0});
  EXPECT_EQ(status().rank_offset, 2);
  EXPECT_EQ(status().node_rank, 1);
  EXPECT_EQ(status().world_size, 4);
  EXPECT_EQ(status().master_port, 4711);
  EXPECT_EQ(status().round_age, 500ms);
  EXPECT_EQ(status().until_run, 12ms);
  ASSERT_THAT(status().workers, SizeIs(2));
  EXPECT_EQ(status().workers[1].pid, 101);
  EXPECT_EQ(status().workers[1].state, WorkerState::kRunning);
  end(1, ExitStatus::exited(3), /*was_told_to_stop=*/false);
  end(0, ExitStatus::killed(SIGTERM), /*was_told_to_stop=*/true);
  EXPECT_EQ(status().workers[1].state, WorkerState::kFailed);
  EXPECT_EQ(status().workers[1].exit, ExitStatus::exited(3));
  EXPECT_EQ(status().workers[0].state, WorkerState::kStopped);
  run(Round{1});
  EXPECT_EQ(status().workers[1].state, WorkerState::kRunning);
  EXPECT_EQ(status().workers[1].exit, std::nullopt);
  end(0, ExitStatus::exited(0), /*was_told_to_stop=*/false);
  EXPECT_EQ(status().workers[0].state, WorkerState::kSucceeded);
}

TEST_F(History, AWorkerThatCouldNotBeStartedIsSaidToBeNone) {
  RoundStarted started;
  started.workers = {{0, 0, 100}, {1, 1, 0}};
  note(started);
  note(WorkerExited{Round{0}, {1, 1, 0}, ExitStatus::exited(127), false, false, "no such", {}});
  EXPECT_EQ(status().workers[1].state, WorkerState::kNotStarted);
}

TEST_F(History, AddsUpRestartsByTheirReason) {
  rdzv::WorkerFailure failure;
  failure.rank = 5;
  failure.host = "b7";
  failure.status = ExitStatus::exited(3);
  using How = rdzv::NodeGone::How;
  const auto restart = [&](Restarted restarted, std::chrono::milliseconds before) {
    restarted.downtime_before.stopped = before;
    note(restarted);
  };
  restart({Round{1}, 1, 3, failure, 1ms}, 0ms);
  restart({Round{2}, 1, 3, {}, 1ms, rdzv::NodeGone{How::kSilent, 2, "b9"}, 1, 0}, 100ms);
  restart({Round{3}, 1, 3, {}, 1ms, rdzv::NodeGone{How::kLeft, 2, "b9"}, 1, 1}, 200ms);
  restart({Round{4}, 1, 3, {}, 1ms, {}, 0, 2}, 300ms);
  restart({Round{5}, 1, 3, {}, 1ms, {}, 0, 0, /*was_asked_for=*/true}, 400ms);
  restart({Round{6}, 2, 3, failure, 1ms}, 500ms);
  clock.round_runs(now - 10s);
  clock.failed(now - 60ms);
  clock.round_runs(now - 10ms);  // the latest, as the clock has it
  const NodeStatus node = status();
  const std::vector<RestartTotal> expected = {{RestartReason::kWorkerFailed, 2, 150ms},
                                              {RestartReason::kNodeLost, 1, 200ms},
                                              {RestartReason::kNodeLeft, 1, 300ms},
                                              {RestartReason::kNodeJoined, 1, 400ms},
                                              {RestartReason::kRequested, 1, 500ms}};
  EXPECT_EQ(node.restart_totals, expected);
  EXPECT_EQ(node.downtime, clock.all(now));
  EXPECT_EQ(node.recent_restarts[1].downtime.stopped, 200ms);
  EXPECT_EQ(node.recent_restarts[5].downtime.until, DowntimeEnd::kWorkersRun);
  EXPECT_EQ(node.restarts, 2);
  ASSERT_THAT(node.recent_restarts, SizeIs(6));
  EXPECT_EQ(node.recent_restarts[0].rank, 5);
  EXPECT_EQ(node.recent_restarts[0].host, "b7");
  EXPECT_THAT(node.recent_restarts[0].sentence, HasSubstr("rank 5"));
  EXPECT_THAT(node.recent_restarts[1].sentence, HasSubstr("nothing was heard of it"));
  EXPECT_EQ(node.recent_restarts[3].sentence, "2 nodes joined");
}

TEST_F(History, KeepsOfAMessageWhatALineShows) {
  rdzv::WorkerFailure failure;
  failure.status = ExitStatus::exited(1);
  failure.message = std::string(std::size_t{1} << 20, 'x');
  failure.stderr_tail.assign(20, std::string(4096, 'y'));
  run(Round{0});
  const std::size_t before = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
  for (std::uint32_t i = 1; i <= 70; ++i) {
    note(WorkerExited{Round{i}, {2, 0, 100}, failure.status, false, false, failure.message, {}});
    note(Restarted{Round{i}, static_cast<int>(i), 100, failure, 1ms});
  }
  EXPECT_LT(::mallinfo2().uordblks + ::mallinfo2().hblkhd, before + (std::size_t{1} << 20));
  const auto line = boost::json::parse(status().events.back());
  EXPECT_EQ(line.at("failure").at("message").as_string(), std::string(4096, 'x') + "…");
}

TEST_F(History, KnowsWhoHasTakenAPlaceAndThatTheRoundGoesOn) {
  run(Round{0});
  rdzv::WorkerFailure failure;
  failure.rank = status().workers.at(1).rank;
  failure.status = ExitStatus::killed(9);
  note(WorkerExited{Round{0}, {failure.rank, 1, 101}, failure.status, false, false, "", {}});
  EXPECT_EQ(status().workers.at(1).state, WorkerState::kFailed);
  Restarted restarted{Round{0}, 1, 3, failure, 1ms};
  restarted.in_place = {1, failure.rank, RoundStarted::Worker{failure.rank, 1, 177}};
  note(restarted);
  const NodeStatus node = status();
  EXPECT_EQ(node.round, Round{0});
  EXPECT_EQ(node.restarts, 1);
  EXPECT_EQ(node.workers.at(1).pid, 177);
  EXPECT_EQ(node.workers.at(1).state, WorkerState::kRunning);
  EXPECT_EQ(node.workers.at(1).exit, std::nullopt);
  ASSERT_THAT(node.recent_restarts, SizeIs(1));
  EXPECT_EQ(node.recent_restarts[0].generation, 1U);
  EXPECT_EQ(node.recent_restarts[0].reason, RestartReason::kWorkerFailed);
  restarted.in_place = {2, 7, {}};
  note(restarted);
  EXPECT_EQ(status().workers.at(1).pid, 177) << "one of another node";
}

TEST_F(History, KeepsTheLatestAndCountsThemAll) {
  for (std::uint32_t i = 0; i < 200; ++i) {
    note(Restarted{Round{i}, 0, 0, {}, 1ms, {}, 0, 0, /*was_asked_for=*/true});
  }
  const NodeStatus node = status(7);
  EXPECT_THAT(node.recent_restarts, SizeIs(kRestartsKept));
  EXPECT_EQ(node.recent_restarts.back().round, Round{199});
  EXPECT_EQ(node.restart_totals.at(0).count, 200);
  ASSERT_THAT(node.events, SizeIs(7));
  EXPECT_EQ(boost::json::parse(node.events.back()).at("round"), 199);
  EXPECT_THAT(status().events, SizeIs(kEventsKept));
}

}  // namespace
}  // namespace ddprun::agent
