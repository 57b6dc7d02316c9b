#include "agent/core/wait_core.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using Action = WaitCore::Action;

constexpr WaitCore::Clock::time_point kNow{1h};

TEST(WaitCore, ANodeWithAWaitTellsTheFirstWhichAsksAll) {
  WaitCore core;
  EXPECT_EQ(core.look(kNow, {.node_rank = 3}), Action::kNothing);
  EXPECT_EQ(core.look(kNow, {.node_rank = 3, .has_waited = true}), Action::kTellFirst);
  EXPECT_EQ(core.look(kNow, {.node_rank = 0, .has_waited = true}), Action::kAskAll);
}

TEST(WaitCore, TheFirstNodeAsksAsLongAsItIsTold) {
  WaitCore first;
  first.told(kNow);
  EXPECT_EQ(first.look(kNow + 1s, {.node_rank = 0}), Action::kAskAll);
  EXPECT_EQ(first.look(kNow + 2s, {.node_rank = 0}), Action::kAskAll) << "one word may be lost";
  EXPECT_EQ(first.look(kNow + 3s, {.node_rank = 0}), Action::kNothing);
  first.told(kNow + 3s);
  first.round_began();
  EXPECT_EQ(first.look(kNow + 3s, {.node_rank = 0}), Action::kNothing);
}

TEST(WaitCore, AnotherNodeThanTheFirstNeverAsksAll) {
  WaitCore core;
  core.told(kNow);  // by a node that still takes it for the first one of an earlier round
  EXPECT_EQ(core.look(kNow, {.node_rank = 1}), Action::kNothing);
  EXPECT_EQ(core.look(kNow, {.node_rank = 1, .has_waited = true}), Action::kTellFirst);
}

TEST(WaitCore, ANodeThatHasAllRanksAsksNobody) {
  WaitCore core;
  EXPECT_EQ(core.look(kNow, {.has_all_ranks = true, .has_waited = true}), Action::kJudgeAlone);
}

// Each word to the first node passes the leader: two messages. A question to all is answered by all: three for each node.
TEST(WaitCore, MessagesOfAJobThatWaitsGrowWithItsNodesOnly) {
  constexpr int kNodes = 512;
  constexpr auto kWait = 10min;
  for (const bool waits_at_first_node : {true, false}) {
    std::vector<WaitCore> nodes(kNodes);
    std::size_t messages = 0;
    int judged = 0;
    for (auto now = kNow; now < kNow + kWait; now += 1s) {
      bool is_told = false;
      for (int rank = 0; rank < kNodes; ++rank) {
        const bool has_waited = rank > 0 || waits_at_first_node;
        switch (nodes[static_cast<std::size_t>(rank)].look(
            now, {.node_rank = rank, .has_waited = has_waited})) {
          case Action::kTellFirst:
            messages += 2;
            is_told = true;
            break;
          case Action::kAskAll:
            messages += 3 * kNodes;
            judged += 1;
            break;
          default:
            break;
        }
      }
      if (is_told) nodes[0].told(now + 100ms);
    }
    EXPECT_LE(messages, 5UL * kNodes * 600);
    EXPECT_GE(judged, 599);
  }
}

}  // namespace
}  // namespace ddprun::agent
