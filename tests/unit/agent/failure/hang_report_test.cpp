// The report of a hang: who hangs first, with the stack, and many ranks that do the same in one line.
#include "agent/failure/hang_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kPerNode = 8;

WorkerStatus worker(int rank, int world, bool is_in_call) {
  WorkerStatus status;
  status.rank = rank;
  status.local_rank = rank % kPerNode;
  status.pid = 4000 + rank;
  status.state = WorkerState::kRunning;
  status.progress = WorkerProgress{.step = 411, .since_step = 1300ms};
  GroupCalls group{"ddprun", record::id_of("ddprun"), static_cast<std::uint32_t>(world),
                   static_cast<std::uint32_t>(rank), is_in_call ? 12U : 11U};
  group.at = GroupCall{{.operation = record::Operation::kAllReduce},
                       group.calls,
                       /*is_over=*/!is_in_call,
                       1200ms};
  status.calls = {group};
  return status;
}

// A job in which `culprit` has not come to call 12.
JobStatus job(int world, int culprit) {
  JobStatus status;
  for (int rank = 0; rank < world; ++rank) {
    if (rank % kPerNode == 0) {
      NodeStatus& node = status.nodes.emplace_back();
      node.host = "b" + std::to_string(rank / kPerNode);
      node.round = Round{3};
      node.node_rank = rank / kPerNode;
      node.world_size = world;
    }
    status.nodes.back().workers.push_back(worker(rank, world, rank != culprit));
  }
  return status;
}

std::map<int, RankStack> stacks(int world, int culprit) {
  std::map<int, RankStack> all;
  for (int rank = 0; rank < world; ++rank) {
    all[rank] = {"S (sleeping)", "futex_wait\nshm::wait\nmain\n", ""};
  }
  all[culprit] = {"T (stopped)", "next_batch (loader.cpp:12)\nmain (train.cpp:40)\n", ""};
  return all;
}

rdzv::Hung hung_rank(int rank) {
  return {.why = rdzv::Hung::Why::kStopped,
          .group = "ddprun",
          .number = 12,
          .ranks = {rank},
          .what = "all_reduce",
          .waited = 1200ms};
}

TEST(HangReportTest, NamesTheCulpritFirstAndTheOthersTogether) {
  const HangReport report = make_hang_report(hung_rank(3), job(8, 3), stacks(8, 3));
  EXPECT_EQ(report.round, Round{3});
  EXPECT_EQ(to_text(report),
            "  rank 3 on b0, pid 4003: T (stopped); in no call; the last was all_reduce (call 11 "
            "of ddprun), 1.2 s ago; step 411 was done 1.3 s ago\n"
            "    next_batch (loader.cpp:12)\n"
            "    main (train.cpp:40)\n"
            "  ranks 0-2, 4-7 on b0 (7 workers): in all_reduce (call 12 of ddprun) for 1.2 s; "
            "futex_wait < shm::wait < main\n");
}

TEST(HangReportTest, SaysWhatIsMissing) {
  auto known = stacks(4, 1);
  known.erase(2);
  known[1].stack.clear();
  known[1].trouble = "eu-stack did not end within 6 s";
  JobStatus status = job(4, 1);
  status.nodes[0].workers[1].calls.clear();
  status.nodes[0].workers[1].progress.reset();
  status.late = {{7, "b9", "no answer"}};
  const std::string text = to_text(make_hang_report(hung_rank(1), status, known));
  EXPECT_THAT(text, HasSubstr("rank 1 on b0, pid 4001: T (stopped); no call is known\n"
                              "    note: eu-stack did not end within 6 s\n"));
  EXPECT_THAT(text, HasSubstr("rank 2 on b0, pid 4002: in all_reduce"));
  EXPECT_THAT(text, HasSubstr("no answer from b9\n"));
}

TEST(HangReportTest, IsShortWhateverTheRanksDo) {
  auto known = stacks(64, 0);
  for (auto& [rank, stack] : known) stack.stack = "f" + std::to_string(rank) + "\nmain\n";
  rdzv::Hung hung = hung_rank(0);
  for (int rank = 1; rank < 32; ++rank) hung.ranks.push_back(rank);
  const std::string text = to_text(make_hang_report(hung, job(64, 0), known));
  EXPECT_THAT(text, HasSubstr("and 28 other stacks of ranks that hang: see ddpctl stacks\n"));
  EXPECT_THAT(text, HasSubstr("and 24 other stacks: see ddpctl stacks\n"));
  known[0].stack = "\x1b[2J\nmain\n";
  EXPECT_THAT(to_text(make_hang_report(hung, job(64, 0), known)),
              ::testing::Not(HasSubstr("\x1b")));
}

TEST(WaitLine, SaysWhereTheProgramIsThatHasNotCome) {
  const rdzv::WaitingFor wait{.group = "default_pg",
                              .number = 7,
                              .operation = record::Operation::kAllReduce,
                              .waited = 305s,
                              .waiting = {0, 2},
                              .missing = {1}};
  const std::string told =
      "rank 1 has not come to all_reduce (call 7 of default_pg), where ranks 0 and 2 wait, for 5 "
      "min 05 s";
  const auto line = [&](RankStack stack) { return wait_line(wait, {{1, std::move(stack)}}, 4711); };
  const std::string next = "; ddpctl stacks 4711 shows all ranks";
  EXPECT_EQ(line({"",
                  "read (codec.py:9)\nload (codec.py:4)\nevaluate (train.py:41)\n"
                  "<module> (train.py:90)\n_run_code (<frozen runpy>:88)\n",
                  ""}),
            told + "; rank 1: evaluate (train.py:41), in read (codec.py:9)" + next);
  EXPECT_EQ(line({"", "<module> (train.py:90)\n", ""}),
            told + "; rank 1: <module> (train.py:90)" + next);
  EXPECT_EQ(line({"T (stopped)", "f(int)\nmain (train.cpp:3)\n_start\n", ""}),
            told + "; rank 1: T (stopped), main (train.cpp:3), in f(int)" + next);
  EXPECT_EQ(line({"", "S (sleeping), waits in do_poll\nkernel: do_poll+0x1/0x2\n", "install gdb"}),
            told + "; rank 1: S (sleeping), waits in do_poll" + next);
  EXPECT_EQ(line({"D (disk sleep)", "", "install elfutils"}),
            told + "; rank 1: D (disk sleep)" + next);
  EXPECT_EQ(wait_line(wait, {}, 4711), told + next);
}

TEST(WaitLine, SaysWhoWaitsInTheStore) {
  rdzv::WaitingFor wait{.group = "/rank_2", .waited = 61s, .waiting = {0, 1}, .missing = {2}};
  EXPECT_EQ(
      wait_line(wait, {{2, {"", "load (train.py:4)\n", ""}}}, 4711),
      "rank 2 does not wait in the store of this round, where ranks 0 and 1 wait for the key "
      "/rank_2, for 1 min 01 s; rank 2: load (train.py:4); ddpctl stacks 4711 shows all ranks");
  wait.missing.clear();
  EXPECT_EQ(
      wait_line(wait, {}, 4711),
      "ranks 0 and 1 wait in the store of this round for the key /rank_2, for 1 min 01 s; ddpctl "
      "stacks 4711 shows all ranks");
}

// As in a job of 128 nodes: what it takes is printed, and how much text it is.
TEST(HangReportTest, OfAThousandRanksIsThreeLinesBesideTheStack) {
  constexpr int kWorld = 1024;
  const JobStatus status = job(kWorld, 77);
  const auto known = stacks(kWorld, 77);
  const auto begin = std::chrono::steady_clock::now();
  const HangReport report = make_hang_report(hung_rank(77), status, known);
  const std::string text = to_text(report);
  const auto took = std::chrono::steady_clock::now() - begin;
  std::printf("report of %d ranks in %.1f ms\n%s", kWorld,
              std::chrono::duration<double, std::milli>(took).count(), text.c_str());
  EXPECT_LT(took, 1s);
  ASSERT_THAT(report.culprits, SizeIs(1));
  EXPECT_THAT(report.culprits[0].ranks, ElementsAre(77));
  ASSERT_THAT(report.others, SizeIs(1));
  EXPECT_EQ(report.others[0].ranks.size(), 1023U);
  EXPECT_EQ(std::ranges::count(text, '\n'), 4) << "one for each of both, and two frames";
  EXPECT_THAT(text, HasSubstr("ranks 0-76, 78-1023 on b0, b1, b2, b3 and 124 more hosts (1023 "
                              "workers): in all_reduce (call 12 of ddprun) for 1.2 s; futex_wait"));
}

}  // namespace
}  // namespace ddprun::agent
