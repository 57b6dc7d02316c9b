#include "agent/output/status_line.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "rendezvous/common/text/lists.h"

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

std::string progress_text(const std::vector<std::optional<WorkerProgress>>& workers) {
  std::optional<std::int64_t> first;
  std::optional<std::int64_t> last;
  std::int64_t total = 0;
  std::string values;
  for (const auto& worker : workers) {
    if (!worker || !worker->step) continue;
    first = std::min(first.value_or(*worker->step), *worker->step);
    last = std::max(last.value_or(*worker->step), *worker->step);
    total = std::max(total, worker->total_steps);
    if (!values.empty()) continue;
    for (const auto& [name, value] : worker->values) {
      values += ", " + name + " " + number_text(value);
    }
  }
  if (!first) return "";
  std::string text = *first == *last
                         ? "step " + std::to_string(*first)
                         : "steps " + std::to_string(*first) + " to " + std::to_string(*last);
  if (total > 0) text += " of " + std::to_string(total);
  return text + values;
}

std::string situation_text(const NodeSnapshot& node) {
  if (node.state == NodeState::kLooking || node.state == NodeState::kWaiting) {
    return "waiting for the next round";
  }
  const auto count = static_cast<int>(node.progress.size());
  const std::string workers = counted(count, "worker");
  const std::string running = std::to_string(node.running);
  std::string text = "round " + to_string(node.round.round) + ", ";
  if (node.state == NodeState::kStopping) {
    text += "waiting for the end of " + running + " of " + workers;
  } else {
    text += node.running == count ? workers : running + " of " + workers + " left";
  }
  if (const std::string progress = progress_text(node.progress); !progress.empty()) {
    text += ", " + progress;
  }
  if (node.round.restarts > 0) {
    text += ", restart " + std::to_string(node.round.restarts) + " of " +
            std::to_string(node.round.max_restarts);
  }
  return text;
}

std::string status_text(const NodeSnapshot& node, std::size_t columns) {
  const auto wall = std::chrono::duration_cast<std::chrono::seconds>(node.wall);
  return ("ddprun: " + clock_text(wall) + ", " + situation_text(node)).substr(0, columns);
}

StatusLine::StatusLine(boost::asio::any_io_executor executor, Console& console,
                       std::function<NodeSnapshot()> snapshot)
    : console_(console), snapshot_(std::move(snapshot)), timer_(executor) {}

void StatusLine::start() {
  timer_.arm(kInterval, [this] { show(); });
}

void StatusLine::show() {
  console_.set_live_line(Stream::kStderr,
                         status_text(snapshot_(), columns_of(console_.fd(Stream::kStderr))));
  start();
}

void StatusLine::hide() {
  timer_.cancel();
  console_.set_live_line(Stream::kStderr, "");
}

}  // namespace ddprun::agent
