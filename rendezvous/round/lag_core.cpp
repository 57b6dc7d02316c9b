#include "rendezvous/round/lag_core.h"

#include <algorithm>
#include <ranges>
#include <tuple>
#include <utility>

#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::rdzv {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

constexpr double kLeastShareOfStep = 0.05;
constexpr double kOverShare = 0.5;
// Parts of a step: late calls that are closer to each other are one event.
constexpr double kOneEvent = 0.75;
// Parts of the window.
constexpr double kWholeWindow = 0.8;
constexpr double kRecently = 0.25;
constexpr double kRecentlyEnough = 0.5;
constexpr std::size_t kLagsKept = 64;
constexpr std::size_t kClockSamples = 12;
constexpr Nanoseconds kClockJump = std::chrono::milliseconds(10);
// Clocks go apart by one in so many: as fast as a clock is set right.
constexpr int kClockDrift = 2000;

struct Interval {
  Nanoseconds begin{};
  Nanoseconds end{};
};

// How much of [begin, end] they cover together.
Nanoseconds covered(std::vector<Interval> intervals, Interval within) {
  std::ranges::sort(intervals, {}, &Interval::begin);
  Nanoseconds sum{};
  Nanoseconds until = within.begin;
  for (const Interval& each : intervals) {
    const Nanoseconds begin = std::max(each.begin, until);
    const Nanoseconds end = std::min(each.end, within.end);
    if (end <= begin) continue;
    sum += end - begin;
    until = end;
  }
  return sum;
}

Nanoseconds median(std::vector<Nanoseconds> values) {
  if (values.empty()) return {};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

double share_of(Nanoseconds part, Nanoseconds whole) {
  return whole.count() <= 0
             ? 0
             : static_cast<double>(part.count()) / static_cast<double>(whole.count());
}

}  // namespace

std::string sentence(const SlowRank& slow, const std::string& host, const std::string& where) {
  return "rank " + std::to_string(slow.rank) + " on " + host + " comes last in " +
         percent(slow.share) + (slow.has_steps ? " of steps, " : " of calls, ") +
         time_in_words(slow.lag) + " late (" + percent(share_of(slow.lag, slow.step)) +
         (slow.has_steps ? " of a step)" : " of the time between two)") +
         (where.empty() ? "" : ": " + where);
}

// ---- clocks

ClockOffset::Estimate ClockOffset::at(Nanoseconds now) const {
  Estimate best;
  for (const Sample& each : samples_) {
    const Nanoseconds error = each.error + std::chrono::abs(now - each.at) / kClockDrift;
    if (error < best.error) best = {each.offset, error};
  }
  return best;
}

void ClockOffset::answered(Nanoseconds asked, Nanoseconds received, Nanoseconds other) {
  const Sample sample{received, asked + (received - asked) / 2 - other, (received - asked) / 2};
  if (!samples_.empty()) {
    const Estimate known = at(received);
    const Nanoseconds apart = std::chrono::abs(sample.offset - known.offset);
    if (apart > sample.error + known.error + kClockJump) samples_.clear();
  }
  samples_.push_back(sample);
  if (samples_.size() > kClockSamples) samples_.pop_front();
}

// ---- what nodes say

LagCore::Groups LagCore::complete_calls(const std::vector<NodeArrivals>& nodes) {
  struct Part {
    int rank = 0;
    const NodeArrivals* node = nullptr;
    const record::GroupArrivals* group = nullptr;
  };
  std::map<Key, std::vector<Part>> parts;
  for (const NodeArrivals& node : nodes) {
    for (const RankArrivals& rank : node.ranks) {
      for (const record::GroupArrivals& group : rank.groups) {
        if (group.is_channel || group.size < 2 || group.calls.empty()) continue;
        parts[{group.id, group.size}].push_back({rank.rank, &node, &group});
      }
    }
  }
  Groups groups;
  for (auto& [key, its] : parts) {
    std::ranges::sort(its, {}, &Part::rank);
    const bool is_complete =
        its.size() == key.second && std::ranges::adjacent_find(its, {}, &Part::rank) == its.end();
    if (!is_complete) continue;
    Group group;
    const bool has_one_clock =
        std::ranges::all_of(its, [&](const Part& each) { return each.node == its.front().node; });
    Nanoseconds largest{};
    Nanoseconds second{};
    for (const Part& each : its) {
      group.ranks.push_back(each.rank);
      if (has_one_clock) continue;
      // Two clocks may differ from this one in two directions.
      const Nanoseconds error =
          std::min<Nanoseconds>(each.node->clock_error, std::chrono::hours(1));
      second = std::max(second, std::min(error, largest));
      largest = std::max(largest, error);
    }
    group.clock_error = largest + second;
    for (const record::Arrival& first : its.front().group->calls) {
      Call call{.number = first.number};
      if (!group.calls.empty() && group.calls.back().number == first.number) continue;
      for (std::size_t place = 0; place < its.size(); ++place) {
        const Part& each = its[place];
        const auto found =
            std::ranges::lower_bound(each.group->calls, first.number, {}, &record::Arrival::number);
        if (found == each.group->calls.end() || found->number != first.number) break;
        const auto on_clock = [&](std::int64_t ns) { return Nanoseconds(ns) + each.node->clock; };
        Member member{.rank = each.rank, .entered = on_clock(found->entered_ns), .left = {}};
        member.has_end = found->left_ns != found->entered_ns;
        if (member.has_end && found->left_ns) member.left = on_clock(*found->left_ns);
        if (first.root >= 0 && std::cmp_equal(each.group->rank, first.root)) call.root = place;
        call.members.push_back(member);
      }
      if (call.members.size() != its.size()) continue;
      std::vector<Nanoseconds> entered;
      for (const Member& each : call.members) entered.push_back(each.entered);
      call.last = call.root ? entered[*call.root] : std::ranges::max(entered);
      call.middle = median(std::move(entered));
      group.calls.push_back(std::move(call));
    }
    if (!group.calls.empty()) groups.all.emplace(key, std::move(group));
  }
  groups.waits = waits_of(groups.all);
  return groups;
}

std::map<int, LagCore::Waits> LagCore::waits_of(const std::map<Key, Group>& groups) {
  std::map<int, Waits> all;
  std::map<int, std::vector<Interval>> intervals;
  for (const auto& [key, group] : groups) {
    for (const int rank : group.ranks) {
      Waits& its = all[rank];
      its.groups += 1;
      const Call& first = group.calls.front();
      if (first.number > 1) its.known_since = std::max(its.known_since, first.last);
    }
  }
  for (const auto& [key, group] : groups) {
    for (const Call& call : group.calls) {
      for (const Member& each : call.members) {
        // It is of use only where a rank has several groups.
        Waits& its = all[each.rank];
        if (its.groups < 2) continue;
        // To carry the data of a call takes time, too, which is not the rank's own.
        if (!each.has_end) its.known_since = Nanoseconds::max();
        const Nanoseconds end = std::max(call.last, each.left.value_or(call.last));
        if (each.entered < end) intervals[each.rank].push_back({each.entered, end});
      }
    }
  }
  for (auto& [rank, its] : intervals) {
    std::ranges::sort(its, {}, &Interval::begin);
    Waits& waits = all[rank];
    Nanoseconds sum{};
    for (const Interval& each : its) {
      if (!waits.ends.empty() && each.begin <= waits.ends.back()) {
        waits.ends.back() = std::max(waits.ends.back(), each.end);
        continue;
      }
      if (!waits.ends.empty()) sum += waits.ends.back() - waits.begins.back();
      waits.begins.push_back(each.begin);
      waits.ends.push_back(each.end);
      waits.sums.push_back(sum);
    }
  }
  return all;
}

// How long it had waited then, since the first wait that is known.
Nanoseconds LagCore::Waits::until(Nanoseconds at) const {
  const auto after = std::ranges::upper_bound(begins, at);
  if (after == begins.begin()) return {};
  const auto place = static_cast<std::size_t>(after - begins.begin()) - 1;
  return sums[place] + std::min(at, ends[place]) - begins[place];
}

void LagCore::note_ranks(const std::vector<NodeArrivals>& nodes) {
  for (const NodeArrivals& node : nodes) {
    for (const RankArrivals& rank : node.ranks) {
      std::uint64_t messages = 0;
      for (const record::GroupArrivals& group : rank.groups) {
        if (group.is_channel) messages += group.entered;
      }
      Messages& known = messages_[rank.rank];
      if (std::exchange(known.calls, messages) < messages) known.at = now_;
      if (!rank.steps) continue;
      const std::int64_t steps = std::max<std::int64_t>(*rank.steps, 0);
      auto& counts = step_counts_[rank.rank];
      if (!counts.empty() && steps < counts.back().steps) counts.clear();  // it began anew
      // One that stands still has the time at which it came there, and that of now_.
      const bool stands = counts.size() > 1 && counts.back().steps == steps &&
                          counts[counts.size() - 2].steps == steps;
      if (stands) counts.pop_back();
      counts.push_back({now_, steps});
      // Slow ones need more than a window for one.
      while (counts.size() > 2 && counts[1].at < now_ - window_ &&
             counts[1].steps < counts.back().steps) {
        counts.pop_front();
      }
    }
  }
}

bool LagCore::is_messenger(int rank) const {
  const auto found = messages_.find(rank);
  return found != messages_.end() && found->second.at && *found->second.at > now_ - window_;
}

std::optional<Nanoseconds> LagCore::step_time() const {
  std::vector<Nanoseconds> times;
  for (const auto& [rank, counts] : step_counts_) {
    const std::int64_t steps = counts.back().steps - counts.front().steps;
    if (steps > 0) times.push_back((counts.back().at - counts.front().at) / steps);
  }
  if (times.empty()) return std::nullopt;
  return median(std::move(times));
}

// ---- late

// How late its members were in that call. Of less than `least` nothing is said.
std::optional<std::map<int, Nanoseconds>> LagCore::late_in(const Groups& groups, const Group& group,
                                                           std::size_t index,
                                                           Nanoseconds least) const {
  const Call& call = group.calls[index];
  std::map<int, Nanoseconds> late;
  if (call.last - call.middle < least) return late;
  const Member& middle = *std::ranges::find(call.members, call.middle, &Member::entered);
  for (std::size_t place = 0; place < call.members.size(); ++place) {
    const Member& each = call.members[place];
    Nanoseconds lag = each.entered - call.middle;
    if (lag < least || is_messenger(each.rank) || (call.root && call.root != place)) continue;
    const Waits& its = groups.waits.at(each.rank);
    if (its.groups > 1) {
      const Waits& usual = groups.waits.at(middle.rank);
      if (index == 0) return std::nullopt;
      const Nanoseconds since = group.calls[index - 1].last;
      if (since < its.known_since || since < usual.known_since) return std::nullopt;
      const auto waited = [since](const Waits& waits, Nanoseconds until) {
        return until <= since ? Nanoseconds{} : waits.until(until) - waits.until(since);
      };
      lag -= std::max(Nanoseconds{}, waited(its, each.entered) - waited(usual, middle.entered));
    }
    // A record may have any times, and lags are summed.
    if (lag >= least) late[each.rank] = std::min(lag, kWindowsKept * window_);
  }
  if (late.empty()) return late;
  const Nanoseconds most =
      std::ranges::max_element(late, {}, [](const auto& each) { return each.second; })->second;
  std::erase_if(late, [most](const auto& each) { return each.second < most / 2; });
  return late;
}

void LagCore::take(const Groups& groups, const Key& key, Judged& judged) {
  const Group& group = groups.all.at(key);
  const auto& calls = group.calls;
  judged.ranks = group.ranks;
  if (calls.back().number < judged.seen) judged = {.ranks = group.ranks};  // it was made anew
  if (calls.size() > 1) {
    judged.call_time =
        (calls.back().middle - calls.front().middle) / static_cast<std::int64_t>(calls.size() - 1);
  }
  const auto step = step_time();
  const auto part_of = [](Nanoseconds time, double part) {
    return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double, std::nano>(time) *
                                                   part);
  };
  const Nanoseconds least = std::max({part_of(step.value_or(judged.call_time), kLeastShareOfStep),
                                      Nanoseconds(kLeast), group.clock_error});
  Look look{.at = now_};
  for (std::size_t index = 0; index < calls.size(); ++index) {
    const Call& call = calls[index];
    if (call.number <= judged.seen) continue;
    const auto late = late_in(groups, group, index, least);
    if (!late) continue;
    if (!step) {
      look.steps += 1;
    } else if (index > 0 && calls[index - 1].number + 1 == call.number) {
      // A pause is not as many steps as it is long.
      const Nanoseconds gap = call.middle - calls[index - 1].middle;
      look.steps += share_of(std::clamp(gap, Nanoseconds{}, *step), *step);
    }
    Nanoseconds most{};
    for (const auto& [rank, lag] : *late) {
      most = std::max(most, lag);
      Late& its = look.late[rank];
      its.sum += lag;
      const auto last = judged.last_event.find(rank);
      const bool is_event = !step || last == judged.last_event.end() ||
                            call.middle - last->second >= part_of(*step, kOneEvent);
      if (!is_event) {
        if (!its.lags.empty()) its.lags.back() = std::max(its.lags.back(), lag);
        continue;
      }
      its.events += 1;
      judged.last_event[rank] = call.middle;
      if (its.lags.size() < kLagsKept) its.lags.push_back(lag);
    }
    look.waited += most;
  }
  const bool has_new = calls.back().number > judged.seen;
  judged.seen = calls.back().number;
  if (has_new) judged.looks.push_back(std::move(look));
}

// ---- verdicts

std::vector<SlowRank> LagCore::look(Nanoseconds now, const std::vector<NodeArrivals>& nodes) {
  now_ = now;
  note_ranks(nodes);
  const Groups groups = complete_calls(nodes);
  for (const auto& [key, group] : groups.all) take(groups, key, judged_[key]);
  for (auto& [key, judged] : judged_) {
    while (!judged.looks.empty() && judged.looks.front().at < now_ - kWindowsKept * window_) {
      judged.looks.pop_front();
    }
  }
  std::erase_if(judged_, [](const auto& each) { return each.second.looks.empty(); });
  note_times(groups);
  const std::map<int, SlowRank> before = slow_;
  judge();
  std::vector<SlowRank> added;
  for (const auto& [rank, slow] : slow_) {
    if (!before.contains(rank)) added.push_back(slow);
  }
  return added;
}

void LagCore::judge() {
  const auto step = step_time();
  std::map<int, SlowRank> slow;
  for (const auto& [key, judged] : judged_) {
    // Backwards, until there are steps enough and the window is over.
    double steps = 0;
    Nanoseconds waited{};
    std::map<int, Late> late;
    Nanoseconds since = now_;
    for (const Look& each : judged.looks | std::views::reverse) {
      if (each.at < now_ - window_ && steps >= kSteps) break;
      since = each.at;
      steps += each.steps;
      waited += each.waited;
      for (const auto& [rank, its] : each.late) {
        Late& sum = late[rank];
        sum.events += its.events;
        sum.sum += its.sum;
        sum.lags.insert(sum.lags.end(), its.lags.begin(), its.lags.end());
      }
    }
    const Nanoseconds step_length = step.value_or(judged.call_time);
    // A rank that was named stays so for longer than it takes until more is known of it.
    const auto is_recent = [&](double part) {
      const auto since_then = std::chrono::duration_cast<Nanoseconds>(window_ * part);
      return judged.looks.back().at >= now_ - std::max(since_then, 3 * step_length);
    };
    if (!is_recent(kRecentlyEnough)) continue;
    const bool is_known =
        steps >= kSteps && is_recent(kRecently) &&
        since <= now_ - std::chrono::duration_cast<Nanoseconds>(window_ * kWholeWindow);
    const auto share_with = [&](int rank) {
      const auto found = late.find(rank);
      if (found == late.end() || steps <= 0) return 0.0;
      return std::min(1.0, found->second.events / steps);
    };
    for (auto& [rank, its] : late) {
      RankTimes& times = times_[rank];
      const double share = share_with(rank);
      if (share > times.late) std::tie(times.late, times.lag) = std::pair(share, median(its.lags));
      const bool was_slow = slow_.contains(rank);
      const bool is_slow =
          is_known && share >= kSlowShare && share_of(its.sum, waited) >= kSlowPart;
      if (was_slow ? share < kOverShare : !is_slow) continue;
      const SlowRank found{.rank = rank,
                           .share = share,
                           .lag = median(its.lags),
                           .step = step_length,
                           .has_steps = step.has_value(),
                           .reference = *std::ranges::min_element(judged.ranks, {}, share_with)};
      const auto [known, is_new] = slow.try_emplace(rank, found);
      if (!is_new && known->second.share < share) known->second = found;
    }
  }
  slow_ = std::move(slow);
}

std::vector<SlowRank> LagCore::slow() const {
  std::vector<SlowRank> all;
  for (const auto& [rank, slow] : slow_) all.push_back(slow);
  return all;
}

// ---- where the time goes

void LagCore::note_times(const Groups& groups) {
  struct Seen {
    std::vector<Interval> in_calls;
    std::vector<Interval> waits;
    Interval span;
    Nanoseconds open = Nanoseconds::max();  // the first call that it has not left
    bool has_ends = true;
  };
  std::map<int, Seen> seen;
  for (const auto& [key, group] : groups.all) {
    for (const Call& call : group.calls) {
      for (const Member& member : call.members) {
        Seen& its = seen[member.rank];
        its.has_ends &= member.has_end;
        if (member.has_end && !member.left) its.open = std::min(its.open, member.entered);
        its.waits.push_back({member.entered, call.last});
        its.in_calls.push_back({member.entered, member.left.value_or(call.last)});
        its.span.end = std::max(its.span.end, its.in_calls.back().end);
      }
    }
    // Not every group says something of the time before.
    for (const int rank : group.ranks) {
      Nanoseconds& begin = seen[rank].span.begin;
      begin = std::max(begin, group.calls.front().middle);
    }
  }
  for (auto& [rank, its] : seen) {
    auto& shares = shares_[rank];
    its.span.begin = std::max(its.span.begin, now_ - window_);
    if (!shares.empty()) its.span.begin = std::max(its.span.begin, shares.back().until);
    its.span.end = std::min(its.span.end, its.open);
    if (its.span.end <= its.span.begin) continue;
    shares.push_back({.at = now_,
                      .until = its.span.end,
                      .span = its.span.end - its.span.begin,
                      .in_calls = covered(std::move(its.in_calls), its.span),
                      .waiting = covered(std::move(its.waits), its.span),
                      .has_ends = its.has_ends});
  }
  times_.clear();
  for (auto& [rank, shares] : shares_) {
    while (!shares.empty() && shares.front().at < now_ - window_) shares.pop_front();
    if (shares.empty()) continue;
    Share sum;
    for (const Share& each : shares) {
      sum.span += each.span;
      sum.in_calls += each.in_calls;
      sum.waiting += each.waiting;
      sum.has_ends &= each.has_ends;
    }
    RankTimes& its = times_[rank];
    its.waiting = share_of(sum.waiting, sum.span);
    if (sum.has_ends) its.in_calls = share_of(sum.in_calls, sum.span);
  }
  std::erase_if(shares_, [](const auto& each) { return each.second.empty(); });
}

}  // namespace ddprun::rdzv
