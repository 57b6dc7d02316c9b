#include "ddprun/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "worker_lib/process/stderr_line.h"

namespace ddprun {
namespace {

constexpr auto kTerminalPeriod = std::chrono::milliseconds(100);
constexpr auto kPlainPeriod = std::chrono::seconds(5);
constexpr int kBarWidth = 24;

}  // namespace

ProgressBar::ProgressBar(bool is_shown, std::string label, std::int64_t total, std::int64_t done)
    : is_shown_(is_shown),
      is_terminal_(is_shown && ::isatty(STDERR_FILENO) == 1),
      label_(std::move(label)),
      total_(std::max<std::int64_t>(total, 1)),
      done_(done),
      begun_at_(done),
      begun_(Clock::now()),
      next_draw_(is_terminal_ ? begun_ : begun_ + kPlainPeriod) {}

ProgressBar::~ProgressBar() {
  if (is_terminal_) stderr_line::finish_live();
}

bool ProgressBar::is_due() const {
  return is_shown_ && (Clock::now() >= next_draw_ || (is_terminal_ && done_ + 1 >= total_));
}

void ProgressBar::advance(std::int64_t by, std::string_view note) {
  const bool is_due_now = is_due();
  done_ += by;
  if (!is_due_now) return;
  next_draw_ = Clock::now() + (is_terminal_ ? Clock::duration(kTerminalPeriod) : kPlainPeriod);
  if (is_terminal_) {
    stderr_line::set_live(text(note));
  } else {
    stderr_line::write(text(note) + "\n");
  }
}

std::string ProgressBar::text(std::string_view note) const {
  const double part = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const std::chrono::duration<double> passed = Clock::now() - begun_;
  const auto counted = static_cast<double>(done_ - begun_at_);
  const double left =
      counted > 0 ? passed.count() / counted * static_cast<double>(total_ - done_) : 0;

  std::string line = label_ + " ";
  if (is_terminal_) {
    const int full = static_cast<int>(part * kBarWidth);
    line += "[" + std::string(full, '#') + std::string(kBarWidth - full, '.') + "] ";
  }
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, "%3.0f %% %lld/%lld, %.0f s left", part * 100,
                static_cast<long long>(done_), static_cast<long long>(total_), left);
  line += numbers;
  if (!note.empty()) line.append(", ").append(note);
  return line;
}

}  // namespace ddprun
