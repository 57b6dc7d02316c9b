// The scenarios lead to the decisions that their files say. DDPRUN_REWRITE=1 writes the files anew: commit only what you
// understand.
#include "tests/scenarios/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "agent/events/core_record.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;

TEST(Scenario, IsDecidedAsItsFileSays) {
  const auto files = scenarios();
  EXPECT_GT(files.size(), 20U);
  for (const auto& [path, text] : files) {
    const std::string now = replayed_scenario(text);
    if (std::getenv("DDPRUN_REWRITE") != nullptr) {
      std::ofstream(path) << now;
    } else {
      EXPECT_EQ(now, text) << path;
    }
  }
}

TEST(Scenario, ALineOfARecordingIsAnEvent) {
  rdzv::RoundStart start;
  start.round = Round{3};
  const std::string began = agent::record_line({0, agent::NodeBegan{}});
  const std::string started = agent::record_line({0, agent::NodeInput{start}});
  EXPECT_THAT(replayed_scenario(began + started),
              HasSubstr("[running (round 3)] start the workers of round 3\n"));
  EXPECT_THROW(replayed_scenario("leader\n" + started), std::invalid_argument);
}

TEST(Scenario, AnEventThatIsMisspelledIsRefusedWithItsLine) {
  for (const std::string line : {"worker_endet 1", "worker_ended 1 exitt=3", "worker_ended 1 gone",
                                 "worker_ended one", "can_recover: yes", "timer"}) {
    try {
      replayed_scenario("node running\n" + line + "\n");
      ADD_FAILURE() << line << " was accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("line 2, " + line)) << error.what();
    }
  }
}

}  // namespace
}  // namespace ddprun::test
