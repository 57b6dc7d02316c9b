#include "agent/core/leaving.h"

#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <optional>

namespace ddprun::agent {
namespace {

using Told = std::optional<rdzv::NodeLeaving>;
const Told kPreemption = rdzv::NodeLeaving{SIGUSR1, true};
const Told kStop = rdzv::NodeLeaving{SIGTERM};

enum State { kStays, kUntold, kTold, kSignalled, kStates };

Leaving in_state(int state) {
  Leaving leaving;
  if (state == kUntold) leaving.preempted(SIGUSR1, /*is_running=*/true);
  if (state == kTold) leaving.preempted(SIGUSR1, /*is_running=*/false);
  if (state == kSignalled) leaving.signalled(SIGTERM);
  return leaving;
}

TEST(Leaving, AnswersEveryEventInEveryStateAsItsTableSays) {
  const struct {
    const char* name;
    std::function<Told(Leaving&)> happen;
    Told told[kStates];
  } table[] = {
      {"preempted while it runs", [](Leaving& its) { return its.preempted(SIGUSR1, true); }, {}},
      {"preempted else",
       [](Leaving& its) { return its.preempted(SIGUSR1, false); },
       {kPreemption, {}, {}, {}}},
      {"due", [](Leaving& its) { return its.is_due(); }, {{}, kPreemption, {}, {}}},
      {"signalled",
       [](Leaving& its) { return its.signalled(SIGTERM); },
       {kStop, kPreemption, kStop, {}}},
  };
  for (const auto& row : table) {
    for (int state = 0; state < kStates; ++state) {
      Leaving leaving = in_state(state);
      EXPECT_EQ(row.happen(leaving), row.told[state]) << row.name << " in state " << state;
    }
  }
}

TEST(Leaving, ThePreemptionIsKnownUntilTheLeaderIsTold) {
  Leaving leaving = in_state(kUntold);
  EXPECT_EQ(leaving.untold_signal(), SIGUSR1);
  EXPECT_FALSE(leaving.stays());
  leaving.is_due();
  EXPECT_EQ(leaving.untold_signal(), std::nullopt);
  EXPECT_FALSE(leaving.stays());
}

}  // namespace
}  // namespace ddprun::agent
