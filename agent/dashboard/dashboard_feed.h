// What the live page receives: everything once, then only changes, made of successive JobStatus
// values. Pure. A rank without a new step costs nothing, so a page with 1,024 ranks stays cheap.
//
// Messages are JSON objects with the fields that agent/dashboard/page/index.html lists at the top
// of its script. A change has `at` and the fields that differ; lists are changed row by row; `loss`
// has the points to add after those from `loss_from` on were removed. A page that has missed a
// change must get whole() again.
#pragma once

#include <algorithm>
#include <boost/json/value.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/status/job_status.h"

namespace ddprun::agent {

// A curve with at most kPointsMax points: when it is full, every second point is removed, and from
// then on only every second value is kept, and so on.
class Curve {
 public:
  static constexpr std::size_t kPointsMax = 1000;  // even
  struct Point {
    std::int64_t step = 0;
    double value = 0;
    bool operator==(const Point&) const = default;
  };

  // A lower step (a restart from a checkpoint) replaces the points after it.
  void add(Point point);

  const std::vector<Point>& points() const { return points_; }
  // What has changed since settle(): nothing, or everything from this point on.
  std::optional<std::size_t> changed_from() const { return changed_from_; }
  void settle() { changed_from_.reset(); }

 private:
  void changes_from(std::size_t index) {
    changed_from_ = std::min(changed_from_.value_or(index), index);
  }

  std::vector<Point> points_;
  std::optional<std::size_t> changed_from_;
  std::size_t stride_ = 1;
  std::size_t skipped_ = 0;
};

// How long a step of each rank takes, computed from its progress at some moments. Workers report
// when they did their last step, so the mean between two moments is exact however far apart they
// are, and no polling in between is needed.
class StepTimes {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Seconds = std::chrono::duration<double>;

  // `rank` of `round` has done `step` at that time. Returns the mean time of a step since the last
  // call with a lower step; nothing if there was none.
  std::optional<Seconds> look(Round round, int rank, std::int64_t step, TimePoint done_at) {
    if (round != round_) {
      ranks_.clear();
      round_ = round;
    }
    Rank& seen = ranks_.try_emplace(rank, Rank{step, done_at, {}}).first->second;
    if (step < seen.step) seen = {step, done_at, {}};
    if (step > seen.step && done_at > seen.done_at) {
      const auto count = static_cast<double>(step - seen.step);
      seen = {step, done_at, Seconds(done_at - seen.done_at) / count};
    }
    return seen.time;
  }

 private:
  struct Rank {
    std::int64_t step = 0;
    TimePoint done_at;
    std::optional<Seconds> time;
  };

  Round round_{};
  std::map<int, Rank> ranks_;
};

class DashboardFeed {
 public:
  // While no page is open: continues the curve of the loss, if rank 0 is on this node.
  void sample(const NodeStatus& own);

  void look(const JobStatus& status, std::chrono::steady_clock::time_point now);

  // The job has ended; `sentence` is the last message. `own` has this node alone, with how its ranks have ended: other
  // nodes do not answer any more.
  void end(std::string_view sentence, const JobStatus& own,
           std::chrono::steady_clock::time_point now);

  std::string whole() const;
  std::string change() const;  // made by the last look(), or by end()

 private:
  struct Rank {  // does not change during a round
    int rank = 0;
    int node_rank = 0;
    int local_rank = 0;
    int pid = 0;
    std::string device;
    std::int64_t total_steps = 0;
    bool operator==(const Rank&) const = default;
  };
  struct Live {  // changes during a round
    WorkerState state = WorkerState::kNotStarted;
    WorkerPhase phase = WorkerPhase::kUnknown;
    std::optional<std::int64_t> step;
    std::int64_t stepped_at_ms = 0;
    std::int64_t step_us = 0;  // duration of a step; 0: not known yet
    bool operator==(const Live&) const = default;
  };

  void look_at_ranks(const JobStatus& status, std::chrono::steady_clock::time_point now);
  bool note_loss(const NodeStatus& node);
  void look_at_failures(const JobStatus& status);
  void look_at_leader(const JobStatus& status);
  void look_at_hangs(const JobStatus& status);
  Live live_of(const WorkerStatus& worker, const NodeStatus& node,
               std::chrono::steady_clock::time_point now);
  void set(std::string_view field, boost::json::value value);
  std::string object(bool is_whole) const;

  std::optional<Round> round_;
  std::int64_t at_ms_ = 0;
  std::map<std::string, std::int64_t> hung_since_;  // by sentence
  std::int64_t began_at_ms_ = 0;
  std::optional<std::int64_t> decides_at_ms_;  // the leader, whether it goes on to wait for nodes
  std::map<int, std::pair<Rank, Live>> ranks_;
  std::vector<int> changed_ranks_;  // whose Rank has changed
  std::vector<int> changed_lives_;
  bool are_ranks_new_ = false;
  // Every other field of the page, and the fields that the last look() has changed.
  std::map<std::string, boost::json::value, std::less<>> fields_;
  std::set<std::string, std::less<>> changed_fields_;
  std::string failure_time_;  // of the last failure of a worker
  StepTimes step_times_;
  Curve loss_;
};

}  // namespace ddprun::agent
