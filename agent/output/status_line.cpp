#include "agent/output/status_line.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace ddprun::agent {
namespace {

constexpr std::chrono::seconds kInterval{1};
constexpr std::size_t kUsualColumns = 80;

// "1:02:03"
std::string clock_text(std::chrono::seconds wall) {
  const auto two_digits = [](std::int64_t value) {
    return (value < 10 ? ":0" : ":") + std::to_string(value);
  };
  const std::int64_t seconds = wall.count();
  return std::to_string(seconds / 3600) + two_digits(seconds / 60 % 60) + two_digits(seconds % 60);
}

// One less than the terminal has: some begin a new row after a character in the last column.
std::size_t columns_of(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return kUsualColumns - 1;
  return size.ws_col - 1U;
}

}  // namespace

std::string progress_text(const std::vector<WorkerProgress>& workers) {
  std::optional<std::int64_t> first;
  std::optional<std::int64_t> last;
  std::int64_t total = 0;
  for (const WorkerProgress& worker : workers) {
    if (!worker.step) continue;
    first = std::min(first.value_or(*worker.step), *worker.step);
    last = std::max(last.value_or(*worker.step), *worker.step);
    total = std::max(total, worker.total_steps);
  }
  if (!first) return "";
  std::string text = *first == *last
                         ? "step " + std::to_string(*first)
                         : "steps " + std::to_string(*first) + " to " + std::to_string(*last);
  if (total > 0) text += " of " + std::to_string(total);
  const auto speaker = std::ranges::find_if(
      workers, [](const WorkerProgress& worker) { return worker.step && !worker.values.empty(); });
  if (speaker == workers.end()) return text;
  for (const NamedValue& value : speaker->values) {
    text += ", " + value.name + " " + number_text(value.value);
  }
  return text;
}

std::string situation_text(const Status& status) {
  if (status.is_waiting) return "waiting for the next round";
  const std::string workers =
      std::to_string(status.workers) + (status.workers == 1 ? " worker" : " workers");
  const std::string running = std::to_string(status.running);
  std::string text = "round " + std::to_string(number(status.round)) + ", ";
  if (status.is_stopping) {
    text += "waiting for the end of " + running + " of " + workers;
  } else {
    text += status.running == status.workers ? workers : running + " of " + workers + " left";
  }
  if (!status.progress.empty()) text += ", " + status.progress;
  if (status.restarts > 0) {
    text += ", restart " + std::to_string(status.restarts) + " of " +
            std::to_string(status.max_restarts);
  }
  return text;
}

std::string status_text(const Status& status, std::size_t columns) {
  const std::string text = "ddprun: " + clock_text(status.wall) + ", " + situation_text(status);
  return text.substr(0, columns);
}

StatusLine::StatusLine(boost::asio::any_io_executor executor, Console& console,
                       std::function<Status()> status)
    : console_(console), status_(std::move(status)), timer_(executor) {}

void StatusLine::start() {
  timer_.arm(kInterval, [this] { show(); });
}

void StatusLine::show() {
  console_.set_live_line(Stream::kStderr,
                         status_text(status_(), columns_of(console_.fd(Stream::kStderr))));
  start();
}

void StatusLine::hide() {
  timer_.cancel();
  console_.set_live_line(Stream::kStderr, "");
}

}  // namespace ddprun::agent
