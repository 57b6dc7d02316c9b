// The example that shows what it takes to make a program distributed: it trains, alone and on two
// ranks, and its diff from the original program is the one in the README.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/job.h"
#include "tests/support/source_difference.h"

namespace ddprun::test {
namespace {

// What the examples' header comments promise.
double accuracy_in(const std::string& output) {
  static const std::regex line("test accuracy: ([0-9.]+) %\n");
  const std::string last = output.substr(output.rfind('\n', output.size() - 2) + 1);
  std::smatch match;
  return std::regex_match(last, match, line) ? std::stod(match[1]) : 0;
}

Command on_two_ranks(const std::string& program) {
  return ddprun({"--nproc-per-node=2"}, {program});
}

TEST(ManualLoop, TrainsAloneAndOnTwoRanksAsTheSingleProgramDoes) {
  for (const Command& command : {Command{DDPRUN_TRAIN_SINGLE}, Command{DDPRUN_TRAIN_MANUAL_LOOP},
                                 on_two_ranks(DDPRUN_TRAIN_MANUAL_LOOP)}) {
    // One thread: several spend their time on each other where the machine is busy.
    Job job(command, {.environment = {{"OMP_NUM_THREADS", "1"}}});
    ASSERT_EQ(job.wait(seconds(180)), exited(0)) << job.err();
    EXPECT_GT(accuracy_in(job.out()), 84) << job.out();
    EXPECT_LT(accuracy_in(job.out()), 89) << job.out();
  }
}

std::vector<std::string> diff_in(const std::string& readme) {
  std::ifstream file(readme);
  std::vector<std::string> lines;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line == "```diff") {
      is_inside = true;
    } else if (line == "```") {
      is_inside = false;
    } else if (is_inside) {
      lines.push_back(line);
    }
  }
  return lines;
}

TEST(ManualLoop, TheReadmeShowsTheDifferenceAsItIs) {
  const std::string source = DDPRUN_SOURCE_DIR "/worker_lib/";
  const auto lines = difference(code_of(source + "examples/train_single.cpp"),
                                code_of(source + "examples/train_manual_loop.cpp"));
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(diff_in(source + "README.md"), lines);
}

}  // namespace
}  // namespace ddprun::test
