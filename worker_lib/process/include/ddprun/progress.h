// ProgressBar: how far a pass over the data is, on the main process' stderr: one live line on a
// terminal, else a plain line every few seconds. On other ranks it does nothing, so calls need no
// `if`. Owned by the loop that counts; one thread.
//
//   ddprun::ProgressBar bar(context.is_main_process(), "epoch 1", /*total=*/steps);
//   for (...) bar.advance(1, "loss 0.31");
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun {

// A number with a name: {"loss", 0.41}. ddprun shows eight of them, with names of 24 bytes.
struct ProgressValue {
  std::string_view name;
  double value = 0;
};

class ProgressBar {
 public:
  // `done` is where to begin, for a pass that is resumed in its middle.
  ProgressBar(bool is_shown, std::string label, std::int64_t total, std::int64_t done = 0);
  ~ProgressBar();  // leaves the last state as a finished line on a terminal
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Cheap when nothing is due to be drawn; `is_due()` tells whether building a note is worth it.
  void advance(std::int64_t by, std::string_view note = {});
  bool is_due() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::string text(std::string_view note) const;

  bool is_shown_;
  bool is_terminal_;
  std::string label_;
  std::int64_t total_;
  std::int64_t done_;
  std::int64_t begun_at_;
  Clock::time_point begun_;
  Clock::time_point next_draw_;
};

}  // namespace ddprun
