// Does the simulator bite? Each bug of planted_bugs.cmake is found within the schedules of the
// usual run; and with none of them the same copies of the cores hold every invariant.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>

#include "tests/sim/etcd_simulation.h"
#include "tests/sim/planted.h"
#include "tests/sim/simulation.h"

namespace ddprun::sim {
namespace {

constexpr std::uint64_t kSchedules = 500'000;  // the rarest is found after 400,000
constexpr const char* kBugs[] = {DDPRUN_PLANTED_BUGS};

class PlantedBug : public ::testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { planted_bug = {}; }
};

// A bug whose name says so is one of the election under etcd.
Result simulate_for(std::string_view bug, std::uint64_t seed) {
  return bug.starts_with("Etcd") ? simulate_etcd(seed) : simulate(schedule_of(seed));
}

TEST_P(PlantedBug, IsFound) {
  planted_bug = GetParam();
  for (std::uint64_t seed = 1; seed <= kSchedules; ++seed) {
    const Result result = simulate_for(GetParam(), seed);
    if (result.violation.empty()) continue;
    std::cout << "found after " << seed << " schedules: " << result.violation << "\n";
    return;
  }
  FAIL() << "not found in " << kSchedules << " schedules";
}

INSTANTIATE_TEST_SUITE_P(Simulation, PlantedBug, ::testing::ValuesIn(kBugs),
                         [](const auto& bug) { return std::string(bug.param); });

TEST(PlantedBugs, AreAtLeastTwelveAndAreOffOtherwise) {
  EXPECT_GE(std::size(kBugs), 12U);
  for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
    ASSERT_EQ(simulate(schedule_of(seed)).violation, "") << "seed " << seed;
    ASSERT_EQ(simulate_etcd(seed).violation, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace ddprun::sim
