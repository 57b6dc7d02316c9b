// Each bug of planted_bugs.cmake is found within a number of schedules; without a bug, the same
// copies of cores and shells hold every invariant.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "tests/scenarios/scenario.h"
#include "tests/sim/planted.h"
#include "tests/sim/simulation.h"

namespace ddprun::sim {
namespace {

constexpr std::uint64_t kSchedules = 500'000;  // the rarest is found after 400,000
constexpr const char* kBugs[] = {DDPRUN_PLANTED_BUGS};

// The rare ones, and the schedule that showed each: there the search begins, but for --full. When the simulator's
// schedules change, the whole search finds another one.
const std::map<std::string_view, std::uint64_t> kSeenIn = {
    {"CountsRoundsOfOthers", 403'429},
    {"ShellAcknowledgesWhatHasNotCome", 104'806},
    {"ShellResumesTheSessionOfALostNode", 106'785},
    {"ReplacesAfterAFailure", 32'369},
    {"EtcdOutcomeIsNotSeen", 6'457},
    {"StoreHostMayBeGone", 13'839},
};

ManyResults search(std::string_view bug) {
  const auto& simulated = bug.starts_with("Etcd")   ? simulate_etcd
                          : bug.starts_with("Hang") ? simulate_hangs
                                                    : simulate;
  const auto seen = kSeenIn.find(bug);
  if (seen != kSeenIn.end() && std::getenv("DDPRUN_TEST_FULL") == nullptr) {
    ManyResults again = simulate_seeds(seen->second, 1, simulated);
    if (!again.violation.empty()) return again;
  }
  return simulate_seeds(1, kSchedules, simulated);
}

class PlantedBug : public ::testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { planted_bug = {}; }
};

TEST_P(PlantedBug, IsFound) {
  planted_bug = GetParam();
  const ManyResults all = search(planted_bug);
  ASSERT_NE(all.violation, "") << "not found in " << kSchedules << " schedules";
  std::cout << "found in schedule " << all.violating_seed << ": " << all.violation << "\n";
}

INSTANTIATE_TEST_SUITE_P(Simulation, PlantedBug, ::testing::ValuesIn(kBugs),
                         [](const auto& bug) { return std::string(bug.param); });

// These are in the resend queue and in liveness, which no scenario runs.
const std::set<std::string_view> kNotInScenarios = {"WhatWasUnderWayIsLost", "SilenceIsNotNoticed"};

TEST(PlantedBugs, InTheTwoLargeCoresChangeWhatScenariosSay) {
  const auto scenarios = test::scenarios();
  const auto is_seen = [&] {
    return std::ranges::any_of(scenarios, [](const auto& scenario) {
      return test::replayed_scenario(scenario.second) != scenario.second;
    });
  };
  EXPECT_FALSE(is_seen()) << "without a bug";
  for (const std::string_view bug : kBugs) {
    if (bug.starts_with("Shell") || bug.starts_with("Etcd") || bug.starts_with("Hang")) continue;
    planted_bug = bug;
    EXPECT_NE(is_seen(), kNotInScenarios.contains(bug)) << bug;
    planted_bug = {};
  }
}

TEST(PlantedBugs, AreManyAndAreOffOtherwise) {
  EXPECT_GE(std::size(kBugs), 45U);
  for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
    ASSERT_EQ(simulate(seed).violation, "") << "seed " << seed;
    ASSERT_EQ(simulate_etcd(seed).violation, "") << "seed " << seed;
    ASSERT_EQ(simulate_hangs(seed).violation, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace ddprun::sim
