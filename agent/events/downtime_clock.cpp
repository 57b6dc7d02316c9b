#include "agent/events/downtime_clock.h"

#include <algorithm>

namespace ddprun::agent {
namespace {

std::chrono::microseconds microseconds_in(DowntimeClock::Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(
      std::max(duration, DowntimeClock::Duration::zero()));
}

}  // namespace

// The moments are nothing as long as one awaited rank has not come that far.
struct DowntimeClock::Reached {
  bool knows_steps = false;
  bool is_complete = true;  // every rank that may be awaited is among them
  bool is_comparable = true;
  std::optional<TimePoint> first_step;
  std::optional<TimePoint> step_after;
  std::int64_t steps_repeated = 0;
};

void DowntimeClock::failed(TimePoint now) {
  if (failed_at_) return;
  settle(now);
  failed_at_ = now;
}

void DowntimeClock::all_ended(TimePoint now) {
  if (failed_at_ && !stopped_at_) stopped_at_ = now;
}

DowntimeClock::Duration DowntimeClock::round_runs(TimePoint now) {
  const TimePoint since = failed_at_.value_or(started_);
  settle(now);
  if (!first_ran_at_) {
    first_ran_at_ = now;
  } else {
    if (outage_) settled_ = settled_ + latest(now);
    outage_ = Outage{since, stopped_at_.value_or(since), now, {}, {}};
    was_taken_ = false;
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& each = ranks_[i];
    each.has_reported |= each.step.has_value() || each.marks.first_step_at.has_value();
    each.wanted = wanted_step(static_cast<int>(i));
    each.marks = {};
    each.done_at.reset();
  }
  failed_at_.reset();
  stopped_at_.reset();
  return now - since;
}

DowntimeClock::Duration DowntimeClock::replaced(std::uint32_t generation, TimePoint now) {
  const TimePoint since = failed_at_.value_or(now);
  settle(now);
  if (outage_) settled_ = settled_ + latest(now);
  outage_ = Outage{since, now, now, {}, generation};
  in_place_ += 1;
  was_taken_ = false;
  for (Rank& each : ranks_) {
    each.regrouped_at.reset();
    each.committed_at.reset();
  }
  failed_at_.reset();
  stopped_at_.reset();
  return now - since;
}

void DowntimeClock::regrouped(int local_rank, std::uint32_t generation, TimePoint now) {
  auto& at = rank(local_rank).regrouped_at;
  if (outage_ && outage_->generation == generation && !at) at = now;
}

void DowntimeClock::committed(int local_rank, std::uint32_t generation, TimePoint now) {
  regrouped(local_rank, generation, now);
  auto& at = rank(local_rank).committed_at;
  if (outage_ && outage_->generation == generation && !at) at = now;
}

// Rounds may fail again before they have repeated everything: the latest step of all counts.
void DowntimeClock::worker_ended(int local_rank, std::optional<std::int64_t> step, StepKind kind,
                                 bool has_succeeded, TimePoint now) {
  Rank& ended = rank(local_rank);
  if (has_succeeded) ended.done_at = now;
  if (!step) return;
  ended.step = ended.step && ended.kind == kind ? std::max(*ended.step, *step) : *step;
  ended.kind = kind;
}

void DowntimeClock::finished(TimePoint now) { settle(now); }

// From here on the current round's steps end no outage.
void DowntimeClock::settle(TimePoint now) {
  if (first_ran_at_ && !start_) start_ = until_first_step(now);
  if (outage_ && !outage_->over_at) outage_->over_at = now;
}

// Data parallel ranks take a step together: one that was killed before it could say so has done it.
std::optional<DowntimeClock::WantedStep> DowntimeClock::wanted_step(int local_rank) const {
  const Rank& own = ranks_[static_cast<std::size_t>(local_rank)];
  if (!own.step || own.kind == StepKind::kCounted) return std::nullopt;
  std::int64_t latest = *own.step;
  for (const Rank& each : ranks_) {
    if (each.step && each.kind == own.kind) latest = std::max(latest, *each.step);
  }
  return WantedStep{own.kind, latest + 1};
}

// After a replacement in place: ranks reach their first step when they have regrouped.
DowntimeClock::Reached DowntimeClock::reached_in_place(const Outage& outage, TimePoint now) const {
  const TimePoint end = outage.over_at.value_or(now);
  const auto later = [end](std::optional<TimePoint> a, std::optional<TimePoint> b) {
    return a && b && *b <= end ? std::max(a, b) : std::nullopt;
  };
  Reached all;
  all.knows_steps = true;
  all.first_step = all.step_after = outage.ran_at;
  for (const Rank& each : ranks_) {
    const auto or_done = [&each](std::optional<TimePoint> at) { return at ? at : each.done_at; };
    all.first_step = later(all.first_step, or_done(each.regrouped_at));
    all.step_after = later(all.step_after, or_done(each.committed_at));
  }
  return all;
}

DowntimeClock::Reached DowntimeClock::reached(const Outage& outage, TimePoint now) const {
  if (outage.generation) return reached_in_place(outage, now);
  const TimePoint end = outage.over_at.value_or(now);
  // A worker writes its marks itself, and may write anything.
  const auto within = [&](std::optional<TimePoint> at) {
    if (at) at = std::max(*at, outage.ran_at);
    return at && *at <= end ? at : std::nullopt;
  };
  const auto later = [](std::optional<TimePoint> a, std::optional<TimePoint> b) {
    return a && b ? std::max(a, b) : std::nullopt;
  };
  Reached all;
  all.first_step = all.step_after = outage.ran_at;
  const bool had_steps_before = std::ranges::any_of(ranks_, &Rank::has_reported);
  for (const Rank& each : ranks_) {
    const bool is_awaited =
        had_steps_before ? each.has_reported : each.marks.first_step_at.has_value();
    // The first steps of the job: more ranks may follow.
    if (!is_awaited && !had_steps_before) all.is_complete = false;
    if (!is_awaited) continue;
    all.knows_steps = true;
    const auto done = within(each.done_at);
    const auto first = each.marks.first_step_at ? within(each.marks.first_step_at) : done;
    all.first_step = later(all.first_step, first);
    const bool is_comparable = each.wanted && each.marks.step_kind == each.wanted->kind;
    if (!each.marks.first_step_at) {  // not yet, or it had nothing left to do
      all.step_after = later(all.step_after, done);
    } else if (!is_comparable) {
      all.is_comparable = false;
    } else if (each.marks.first_step >= each.wanted->step) {
      all.step_after = later(all.step_after, first);
    } else {
      const auto after = within(each.marks.wanted_step_at);
      all.step_after = later(all.step_after, after ? after : done);
      all.steps_repeated = std::max(all.steps_repeated, each.wanted->step - each.marks.first_step);
    }
  }
  return all;
}

Downtime DowntimeClock::latest(TimePoint now) const {
  if (!outage_) return no_downtime();
  const Reached all = reached(*outage_, now);
  const TimePoint end = outage_->over_at.value_or(now);
  Downtime downtime;
  downtime.stopped = microseconds_in(outage_->stopped_at - outage_->failed_at);
  // The parts add up to the microsecond.
  downtime.started = microseconds_in(outage_->ran_at - outage_->failed_at) - downtime.stopped;
  if (!all.knows_steps) {
    downtime.until = DowntimeEnd::kWorkersRun;
    return downtime;
  }
  downtime.joined = microseconds_in(all.first_step.value_or(end) - outage_->ran_at);
  if (!all.first_step) return downtime;
  if (!all.is_comparable) {
    downtime.until = DowntimeEnd::kFirstStep;
    return downtime;
  }
  downtime.repeated = microseconds_in(all.step_after.value_or(end) - *all.first_step);
  downtime.steps_repeated = all.steps_repeated;
  if (all.step_after) downtime.until = DowntimeEnd::kStepAfter;
  return downtime;
}

std::optional<Downtime> DowntimeClock::take_recovered(TimePoint now) {
  if (was_taken_ || !outage_ || !reached(*outage_, now).is_complete) return std::nullopt;
  const Downtime downtime = latest(now);
  if (!downtime.until || downtime.until == DowntimeEnd::kWorkersRun) return std::nullopt;
  was_taken_ = true;
  return downtime;
}

Downtime DowntimeClock::all(TimePoint now) const {
  return outage_ ? settled_ + latest(now) : settled_;
}

DowntimeClock::Duration DowntimeClock::until_first_step(TimePoint now) const {
  if (start_) return *start_;
  if (!first_ran_at_) return now - started_;
  TimePoint first = *first_ran_at_;
  for (const Rank& each : ranks_) {
    if (each.marks.first_step_at)
      first = std::clamp(*each.marks.first_step_at, first, std::max(first, now));
  }
  return first - started_;
}

std::optional<double> DowntimeClock::goodput(TimePoint now) const {
  using Seconds = std::chrono::duration<double>;
  const bool has_stepped = std::ranges::any_of(ranks_, [](const Rank& each) {
    return each.has_reported || each.step || each.marks.first_step_at;
  });
  if (!has_stepped) return std::nullopt;
  const double whole = Seconds(wall(now) - until_first_step(now)).count();
  if (whole <= 0) return 1;
  Duration down = all(now).total();
  if (failed_at_) down += now - *failed_at_;
  return std::clamp(1 - Seconds(down).count() / whole, 0.0, 1.0);
}

}  // namespace ddprun::agent
