// Deaths (death.h) in a job whose ranks are replaced in place: each comes when every rank has its standby.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/job.h"

namespace ddprun::test {

class DeathsInPlace {
 public:
  // POINT:STEP:RANK each, in their order.
  explicit DeathsInPlace(std::vector<std::string> deaths) : deaths_(std::move(deaths)) {
    for (const std::string& death : deaths_) text_ += (text_.empty() ? "" : ",") + death;
  }
  const std::string& text() const { return text_; }

  JobSetup setup() const {
    return {.environment = {{"DDPRUN_DEATHS", text_},
                            {"DDPRUN_DEATHS_IN_PLACE", marks_.path()},
                            {"DDPRUN_CONTROL_DIR", marks_ / "control"}}};
  }
  // Options that the job needs. Where there is a GPU a number of standbys is to be given.
  std::vector<std::string> options(const std::string& standbys = "auto") const {
    return {"--standby=" + standbys, "--events=" + marks_ / "events"};
  }
  std::string events() const { return read_file(marks_ / "events"); }

  // Each rank can be replaced, and has a standby.
  bool can_happen(Job& job, int ranks) const {
    return run_to_its_end(ddpctl({"status", "--json", std::to_string(job.pid())}), setup())
               .out.find("\"can_recover\":true,\"waiting\":" + std::to_string(ranks) + ",") !=
           std::string::npos;
  }

  // One after the other; returns when the last one is replaced. To be called in ASSERT_NO_FATAL_FAILURE.
  void let_happen(Job& job, int ranks, seconds limit) const {
    for (std::size_t i = 0; i < deaths_.size(); ++i) {
      const bool is_in_the_middle_of_the_one_before = is_in_recovery(i);
      if (!is_in_the_middle_of_the_one_before) {
        ASSERT_TRUE(job.reaches([&] { return can_happen(job, ranks); }, limit)) << job.err();
      }
      // Those that come in its middle may do so at once.
      allow(i);
      for (std::size_t next = i + 1; next < deaths_.size() && is_in_recovery(next); ++next) {
        allow(next);
      }
      if (is_in_the_middle_of_the_one_before) continue;  // a recovery of fewer calls is over before
      const std::string died = marks_ / ("died-" + std::to_string(i));
      ASSERT_TRUE(job.reaches([&] { return std::filesystem::exists(died); }, limit))
          << deaths_[i] << "\n"
          << job.err();
      // Until then the standby that takes the place counts as one that waits.
      ASSERT_TRUE(job.reaches([&] { return count_of("\"event\":\"restarted\"", events()) > i; }))
          << job.err();
    }
  }

 private:
  bool is_in_recovery(std::size_t i) const { return deaths_[i].starts_with("recovery"); }
  void allow(std::size_t i) const { marks_.write("may-die-" + std::to_string(i), ""); }

  std::vector<std::string> deaths_;
  std::string text_;
  TemporaryTree marks_;
};

}  // namespace ddprun::test
