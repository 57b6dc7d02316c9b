// The example `train`, its steps noted (record_steps.cpp), with settings for tests, which need steps and not samples; and
// functions to inspect its checkpoints.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "tests/support/job.h"

namespace ddprun::test {

inline Command training(const std::string& checkpoints, int epochs = 2) {
  return {"ddprun_recorded_train",
          "--epochs=" + std::to_string(epochs),
          "--limit=500",
          "--batch-size=4",
          "--seed=3",
          "--checkpoint-every=10",
          "--checkpoint-dir=" + checkpoints};
}

// Sorted by step; without links.
inline std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-") && name.ends_with(".safetensors")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// -1 if there is none yet.
inline int last_step_in(const std::string& folder) {
  const auto names = checkpoints_in(folder);
  return names.empty() ? -1 : std::stoi(names.back().substr(names.back().find('-') + 1));
}

// Not EXPECT_EQ, because that prints megabytes if they differ.
inline bool end_with_the_same_bytes(const std::string& one, const std::string& other) {
  const auto a = checkpoints_in(one);
  const auto b = checkpoints_in(other);
  return !a.empty() && !b.empty() && a.back() == b.back() &&
         read_file(one + "/" + a.back()) == read_file(other + "/" + b.back());
}

}  // namespace ddprun::test
