// A Context and its link: what the agent sees of it, and that all ranks leave together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>

#include "agent/process/worker_link.h"
#include "ddprun/context.h"
#include "ddprun/failure_vote.h"
#include "ddprun/leave.h"
#include "tests/unit/worker_lib/group_of_threads.h"
#include "worker_lib/process/agent_link.h"

namespace ddprun::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The agent's side, for one rank of this process.
struct Agent {
  Agent() {
    auto made = agent::WorkerLink::make(io.get_executor());
    if (!made) throw Failure(made.error());
    link = *made;
    link::Header header;
    header.worker_pid = header.agent_pid = ::getpid();
    if (::pwrite(link->worker_page(), &header, sizeof header, 0) != ssize_t{sizeof header}) {
      throw std::runtime_error("pwrite");
    }
    environment.link_fd = ::dup(link->worker_socket());
    environment.link_page_fd = ::dup(link->worker_page());
    agent::WorkerLink::Hooks hooks;
    hooks.misuse = [](std::string_view what) { ADD_FAILURE() << what; };
    hooks.stepped = [](const StepMarks&) {};
    link->started(::getpid(), std::move(hooks));
  }
  boost::asio::io_context io;
  std::shared_ptr<agent::WorkerLink> link;
  Environment environment;
};

TEST(Leave, TheAgentSeesWhatTheContextDoes) {
  Agent agent;
  const auto progress = [&] { return agent.link->progress().value_or(WorkerProgress{}); };
  run_ranks(
      1,
      [&](Context& context) {
        EXPECT_EQ(progress().phase, WorkerPhase::kRunning);
        EXPECT_EQ(progress().step, std::nullopt);
        context.progress(3, 10);
        EXPECT_EQ(progress().step, 3);
        EXPECT_EQ(progress().total_steps, 10);
        context.barrier();
        std::ignore = context.all_reduce(1);
        EXPECT_EQ(progress().collectives, 2U);
        EXPECT_EQ(progress().phase, WorkerPhase::kRunning) << "again";
        EXPECT_FALSE(context.should_leave());
        EXPECT_TRUE(agent.link->ask_to_leave());
        int calls = 1;
        while (!context.should_leave() && ++calls < 5000) {
        }
        EXPECT_TRUE(context.should_leave());
        leave(context);
        EXPECT_EQ(progress().phase, WorkerPhase::kLeaving);
      },
      [&](int) { return agent.environment; });
}

// Only one rank is told, at some moment; each counts the steps that it has made when it leaves. A
// rank that goes on alone would wait in vain for the others.
TEST(Leave, AllRanksLeaveAfterTheSameStepWhenOneIsTold) {
  constexpr int kRanks = 3;
  for (const int told : {0, 2}) {
    Agent agents[kRanks];
    std::atomic<int> left_after[kRanks] = {-1, -2, -3};
    run_ranks(
        kRanks,
        [&](Context& context) {
          const int rank = context.rank();
          for (int step = 1; step < 100'000; ++step) {
            std::ignore = context.all_reduce(1);
            context.progress(step);
            if (rank == told && step == 20) {
              EXPECT_TRUE(agents[told].link->ask_to_leave());
            }
            if (context.should_leave()) {
              left_after[rank] = step;
              return;
            }
          }
        },
        [&](int rank) { return agents[rank].environment; });
    EXPECT_GE(left_after[0], 20);
    EXPECT_EQ(left_after[0], left_after[1]);
    EXPECT_EQ(left_after[0], left_after[2]);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(agents[rank].link->progress()->step, left_after[rank].load());
    }
  }
}

TEST(Progress, IsToldToTheAgent) {
  Agent agent;
  run_ranks(
      1,
      [&](Context& context) {
        context.progress(3, 10, {{"loss", 0.25}});
        context.progress(4, 10);
      },
      [&](int) { return agent.environment; });
  const auto progress = agent.link->progress();
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->step, 4);
  EXPECT_THAT(progress->values, ElementsAre(NamedValue{"loss", 0.25}));
}

// As the Trainer asks: one vote for failures and for the end of the job.
TEST(Leave, AFailureVoteLeavesTooUnlessARankHasFailed) {
  constexpr int kRanks = 3;
  for (const bool fails : {false, true}) {
    Agent agents[kRanks];
    std::atomic<int> left_after[kRanks] = {-1, -2, -3};
    std::atomic<int> failed = 0;
    run_ranks(
        kRanks,
        [&](Context& context) {
          const int rank = context.rank();
          FailureVote failures(context);
          for (int step = 1; step < 100'000; ++step) {
            std::ignore = context.all_reduce(1);
            if (rank == 2 && step == 20) {
              EXPECT_TRUE(agents[2].link->ask_to_leave());
              if (fails) failures.report(step, "the disk is full");
            }
            try {
              if (!failures.should_leave()) continue;
              EXPECT_TRUE(failures.should_leave());
              left_after[rank] = step;
            } catch (const Failure& failure) {
              EXPECT_THAT(failure.what(), HasSubstr("rank 2: the disk is full"));
              ++failed;
            }
            return;
          }
        },
        [&](int rank) { return agents[rank].environment; });
    EXPECT_EQ(failed, fails ? kRanks : 0);
    if (fails) continue;
    EXPECT_GE(left_after[0], 20);
    EXPECT_EQ(left_after[0], left_after[1]);
    EXPECT_EQ(left_after[0], left_after[2]);
  }
}

TEST(Leave, WithoutALinkNobodyEverLeaves) {
  run_ranks(2, [&](Context& context) {
    for (int step = 1; step < 1000; ++step) {
      context.progress(step, 1000);
      EXPECT_FALSE(context.should_leave());
    }
  });
}

}  // namespace
}  // namespace ddprun::test
