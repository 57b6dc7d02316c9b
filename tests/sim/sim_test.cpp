// Seeded schedules of a whole job (simulation.h). The usual run takes the seeds 1 to 15,000, that of
// DDPRUN_TEST_FULL=1 those to 100,000;
//   DDPRUN_SIM_SCHEDULES=5000000 sim_test      more of them
//   DDPRUN_SIM_FIRST=100001 sim_test           others
//   DDPRUN_SIM_SEED=4711 sim_test              one, with its trace
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/sim/simulation.h"

namespace ddprun::sim {
namespace {

// A sanitizer makes it ten times slower and finds other bugs, so fewer schedules are run.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kUsual = 10'000;
constexpr std::uint64_t kFull = 10'000;
#else
constexpr std::uint64_t kUsual = 15'000;
constexpr std::uint64_t kFull = 100'000;
#endif

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::uint64_t schedules() {
  return number_from("DDPRUN_SIM_SCHEDULES",
                     std::getenv("DDPRUN_TEST_FULL") != nullptr ? kFull : kUsual);
}

// `replay`: further options of a replay.
void hold_invariants(std::uint64_t count, const std::string& replay, Simulate simulate_one) {
  if (const std::uint64_t seed = number_from("DDPRUN_SIM_SEED", 0); seed != 0) {
    const Result result = simulate_one(seed, /*with_trace=*/true);
    std::cout << result.trace;
    EXPECT_EQ(result.violation, "");
    return;
  }
  const ManyResults all = simulate_seeds(number_from("DDPRUN_SIM_FIRST", 1), count, simulate_one);
  ASSERT_EQ(all.violation, "") << simulate_one(all.violating_seed, /*with_trace=*/true).trace
                               << "seed " << all.violating_seed
                               << "; replay it with DDPRUN_SIM_SEED=" << all.violating_seed
                               << replay;
  std::cout << count << " schedules, " << all.rounds << " rounds, " << all.events << " events\n";
}

TEST(Simulation, HoldsItsInvariantsInEverySchedule) { hold_invariants(schedules(), "", simulate); }

TEST(SimulationUnderEtcd, HoldsItsInvariantsInEverySchedule) {
  hold_invariants(schedules() / 5, " --gtest_filter=*UnderEtcd*", simulate_etcd);
}

TEST(SimulationOfHangs, HoldsItsInvariantsInEverySchedule) {
  hold_invariants(schedules(), " --gtest_filter=*OfHangs*", simulate_hangs);
}

}  // namespace
}  // namespace ddprun::sim
