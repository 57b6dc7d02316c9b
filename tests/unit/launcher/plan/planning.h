// A machine with 6 CPUs and no GPU, and a program called "prog", to plan jobs for.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher/plan/plan.h"
#include "tests/support/temporary_tree.h"

namespace ddprun::cli {

class Planning : public testing::Test {
 protected:
  Planning() {
    tree_.write("cwd/prog", "#!/bin/sh\n", 0755);
    tree_.write("sys/devices/system/cpu/online", "0-5\n");
    surroundings_.places = {tree_ / "cwd", [this] { return tree_ / "bin"; }};
    surroundings_.machine = {tree_.path(), "", std::vector<int>{0, 1, 2, 3, 4, 5}};
    surroundings_.random_run_id = "random-id";
  }

  Result<Plan> plan(std::vector<std::string> words, const Environment& environment = {}) {
    words.push_back("prog");
    const auto line = parse_command_line(words);
    if (!line) return fail(line.error());
    return make_plan(resolve(*line, environment, {}, find_site(environment, tree_.path())), line->command,
                     environment, surroundings_);
  }
  agent::Job job(const std::vector<std::string>& words, const Environment& environment = {}) {
    const auto made = plan(words, environment);
    EXPECT_TRUE(made) << made.error().to_string();
    return made ? made->job : agent::Job{};
  }
  std::string refusal(const std::vector<std::string>& words, const Environment& environment = {}) {
    const auto made = plan(words, environment);
    EXPECT_FALSE(made) << testing::PrintToString(words);
    if (made) return {};
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    return made.error().to_string();
  }

  void add_gpus(int count) {
    for (int i = 0; i < count; ++i) tree_.write("dev/nvidia" + std::to_string(i), "");
  }

  TemporaryTree tree_;
  Surroundings surroundings_;
};

}  // namespace ddprun::cli
