// Each bug of planted_bugs.cmake is found within a number of schedules; without a bug, the same
// copies of cores and shells hold every invariant.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <string>

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

TEST_P(PlantedBug, IsFound) {
  planted_bug = GetParam();
  const bool is_under_etcd = planted_bug.starts_with("Etcd");
  const ManyResults all = simulate_seeds(1, kSchedules, is_under_etcd ? simulate_etcd : simulate);
  ASSERT_NE(all.violation, "") << "not found in " << kSchedules << " schedules";
  std::cout << "found after " << all.violating_seed << " schedules: " << all.violation << "\n";
}

INSTANTIATE_TEST_SUITE_P(Simulation, PlantedBug, ::testing::ValuesIn(kBugs),
                         [](const auto& bug) { return std::string(bug.param); });

TEST(PlantedBugs, AreManyAndAreOffOtherwise) {
  EXPECT_GE(std::size(kBugs), 45U);
  for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
    ASSERT_EQ(simulate(seed).violation, "") << "seed " << seed;
    ASSERT_EQ(simulate_etcd(seed).violation, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace ddprun::sim
