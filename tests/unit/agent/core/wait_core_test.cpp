#include "agent/core/wait_core.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ddprun::agent
