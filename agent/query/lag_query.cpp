#include "agent/query/lag_query.h"

#include <algorithm>
#include <functional>
#include <map>
#include <ranges>
#include <tuple>
#include <utility>

#include "agent/text/json_fields.h"

namespace ddprun::agent {
namespace {

using std::chrono::nanoseconds;

constexpr std::int64_t kUnknown = -1;
constexpr std::size_t kNumbersOfCall = 4;
// Ages of calls beyond it are of no use: one day.
constexpr std::int64_t kAgeMaxUs = std::int64_t{86'400} * 1'000'000;
constexpr double kMuchMore = 0.15;  // a share of all looks
// … and more than chance: so many standard deviations of the difference.
constexpr double kDeviations = 2.5;
constexpr int kCountMax = 1000;  // looks at a stack, more than any agent makes

}  // namespace

static void fields(auto& json, Is<ArrivalsQuestion> auto& question) {
  json.constant("ask", "arrivals");
  json("round", question.round);
  json("calls", question.calls);
}

// A call is four numbers: its own, how many microseconds ago the rank came to it, how long ago it was over (-1: it is in it; as
// long ago as it came: not known), and the root.
struct GroupLine {
  std::uint64_t id = 0;
  std::uint32_t size = 1;
  std::uint32_t rank = 0;
  bool is_channel = false;
  std::uint64_t entered = 0;
  std::vector<std::int64_t> calls;
};
static void fields(auto& json, Is<GroupLine> auto& group) {
  json("id", group.id);
  json("size", group.size);
  json("rank", group.rank);
  json("is_channel", group.is_channel);
  json("entered", group.entered);
  json("calls", group.calls);
}

struct RankLine {
  int rank = 0;
  std::optional<std::int64_t> steps;
  std::vector<GroupLine> groups;
};
static void fields(auto& json, Is<RankLine> auto& rank) {
  json("rank", rank.rank);
  json("steps", rank.steps);
  json("groups", rank.groups);
}

struct ArrivalsLine {
  nanoseconds now{};
  std::vector<RankLine> ranks;
};
static void fields(auto& json, Is<ArrivalsLine> auto& line) {
  json("now_us", line.now);
  json("ranks", line.ranks);
}

static void fields(auto& json, Is<SamplesQuestion> auto& question) {
  json.constant("ask", "samples");
  json("round", question.round);
  json("ranks", question.ranks);
}

static void fields(auto& json, Is<SeenStack> auto& stack) {
  json("frames", Whole{stack.frames});
  json("count", stack.count);
}

static void fields(auto& json, Is<RankSamples> auto& samples) {
  json("rank", samples.rank);
  json("stacks", samples.stacks);
}

// ---- arrivals

std::string to_json(const ArrivalsQuestion& question) {
  return boost::json::serialize(JsonWriter::of(question));
}

Result<ArrivalsQuestion> arrivals_question_from(std::string_view text) {
  return parse_json<ArrivalsQuestion>(text, "the question when ranks came to their calls");
}

static ArrivalsLine line_of(const ArrivalsAnswer& answer) {
  ArrivalsLine line{.now = answer.now, .ranks = {}};
  const std::int64_t now_us = answer.now.count() / 1000;
  for (const rdzv::RankArrivals& rank : answer.ranks) {
    RankLine& made = line.ranks.emplace_back(RankLine{rank.rank, rank.steps, {}});
    for (const record::GroupArrivals& group : rank.groups) {
      GroupLine& its = made.groups.emplace_back(
          GroupLine{group.id, group.size, group.rank, group.is_channel, group.entered, {}});
      for (const record::Arrival& call : group.calls) {
        its.calls.push_back(
            static_cast<std::int64_t>(std::min<std::uint64_t>(call.number, INT64_MAX)));
        its.calls.push_back(now_us - call.entered_ns / 1000);
        its.calls.push_back(call.left_ns ? std::max(now_us - *call.left_ns / 1000, kUnknown + 1)
                                         : kUnknown);
        its.calls.push_back(call.root);
      }
    }
  }
  return line;
}

std::string to_json(ArrivalsAnswer answer, std::size_t bytes_max) {
  for (;;) {
    std::string text = boost::json::serialize(JsonWriter::of(line_of(answer)));
    if (text.size() <= bytes_max || answer.ranks.empty()) return text;
    bool has_cut = false;
    for (rdzv::RankArrivals& rank : answer.ranks) {
      for (record::GroupArrivals& group : rank.groups) {
        const auto half = static_cast<std::ptrdiff_t>((group.calls.size() + 1) / 2);
        group.calls.erase(group.calls.begin(), group.calls.begin() + half);
        has_cut |= half > 0;
      }
    }
    if (!has_cut) answer.ranks.clear();
  }
}

Result<ArrivalsAnswer> arrivals_answer_from(std::string_view text) {
  auto line = parse_json<ArrivalsLine>(text, "the answer when ranks came to their calls");
  if (!line) return fail(std::move(line.error()));
  const std::int64_t now_us =
      std::clamp<std::int64_t>(line->now.count() / 1000, 0, INT64_MAX / 4000);
  ArrivalsAnswer answer{.now = std::chrono::microseconds(now_us), .ranks = {}};
  for (RankLine& rank : line->ranks) {
    rdzv::RankArrivals& made = answer.ranks.emplace_back();
    made.rank = rank.rank;
    if (rank.steps) made.steps = std::clamp<std::int64_t>(*rank.steps, 0, INT64_MAX / 2);
    for (const GroupLine& group : rank.groups | std::views::take(record::kGroupsMax)) {
      record::GroupArrivals& its = made.groups.emplace_back();
      its.id = group.id;
      its.size = group.size;
      its.rank = group.rank;
      its.is_channel = group.is_channel;
      its.entered = group.entered;
      const std::size_t count = std::min(group.calls.size() / kNumbersOfCall, record::kEntries);
      for (std::size_t at = 0; at < count * kNumbersOfCall; at += kNumbersOfCall) {
        const auto at_ns = [now_us](std::int64_t age_us) {
          return (now_us - std::clamp<std::int64_t>(age_us, -kAgeMaxUs, kAgeMaxUs)) * 1000;
        };
        record::Arrival call{static_cast<std::uint64_t>(std::max<std::int64_t>(group.calls[at], 0)),
                             at_ns(group.calls[at + 1]), std::nullopt};
        if (group.calls[at + 2] != kUnknown) call.left_ns = at_ns(group.calls[at + 2]);
        call.root =
            static_cast<std::int32_t>(std::clamp<std::int64_t>(group.calls[at + 3], -1, INT32_MAX));
        its.calls.push_back(call);
      }
      std::ranges::stable_sort(its.calls, {}, &record::Arrival::number);
      const auto same = std::ranges::unique(its.calls, {}, &record::Arrival::number);
      its.calls.erase(same.begin(), same.end());
    }
  }
  return answer;
}

// ---- samples

std::string to_json(const SamplesQuestion& question) {
  return boost::json::serialize(JsonWriter::of(question));
}

Result<SamplesQuestion> samples_question_from(std::string_view text) {
  return parse_json<SamplesQuestion>(text, "the question what ranks do");
}

std::string to_json(std::vector<RankSamples> samples, std::size_t bytes_max) {
  std::size_t most = 0;  // stacks of a rank
  for (RankSamples& each : samples) {
    std::ranges::stable_sort(each.stacks, std::ranges::greater{}, &SeenStack::count);
    most = std::max(most, each.stacks.size());
  }
  for (;;) {
    std::string text = boost::json::serialize(JsonWriter::of(samples));
    if (text.size() <= bytes_max || samples.empty()) return text;
    if (most == 0) samples.clear();
    most /= 2;
    for (RankSamples& each : samples) each.stacks.resize(std::min(each.stacks.size(), most));
  }
}

Result<std::vector<RankSamples>> samples_from(std::string_view text) {
  auto samples = parse_json<std::vector<RankSamples>>(text, "the answer what ranks do");
  if (!samples) return samples;
  for (RankSamples& each : *samples) {
    std::erase_if(each.stacks, [](const SeenStack& stack) { return stack.count < 1; });
    for (SeenStack& stack : each.stacks) stack.count = std::min(stack.count, kCountMax);
  }
  return samples;
}

void add(RankSamples& samples, std::string frames) {
  const auto known = std::ranges::find(samples.stacks, frames, &SeenStack::frames);
  if (known == samples.stacks.end()) {
    samples.stacks.push_back({std::move(frames), 1});
  } else {
    known->count += 1;
  }
}

static std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return lines;
}

int answers_of(const RankSamples& samples) {
  int all = 0;
  for (const SeenStack& stack : samples.stacks) all += stack.count;
  return all;
}

// The variance of a share of so many looks; a few looks say little, also where all or none have it.
double variance_of(double share, int looks) {
  const double smoothed = (share * looks + 1) / (looks + 2);
  return smoothed * (1 - smoothed) / (looks + 2);
}

// Each stack counts a frame once, however deep it recurses.
std::string where_it_is_slow(const RankSamples& slow, const RankSamples& other) {
  const auto shares_of = [](const RankSamples& samples) {
    std::map<std::string, double> shares;
    for (const SeenStack& stack : samples.stacks) {
      std::vector<std::string> frames = lines_of(stack.frames);
      std::ranges::sort(frames);
      const auto same = std::ranges::unique(frames);
      frames.erase(same.begin(), same.end());
      for (const std::string& frame : frames) shares[frame] += stack.count;
    }
    for (auto& [frame, share] : shares) share /= answers_of(samples);
    return shares;
  };
  if (slow.stacks.empty() || other.stacks.empty()) return {};
  const std::map<std::string, double> in_slow = shares_of(slow);
  std::map<std::string, double> in_other = shares_of(other);
  std::map<std::string, double> more;
  for (const auto& [frame, share] : in_slow) more[frame] = share - in_other[frame];
  const auto& [at_most, most] =
      *std::ranges::max_element(more, {}, &std::pair<const std::string, double>::second);
  const double variance = variance_of(in_slow.at(at_most), answers_of(slow)) +
                          variance_of(in_other.at(at_most), answers_of(other));
  if (most < kMuchMore || most * most < kDeviations * kDeviations * variance) return {};
  // What a frame calls has at most as much more as it has itself.
  constexpr double kNearlyAll = 0.75;
  std::string innermost;
  double its = 0;
  for (const SeenStack& stack : slow.stacks) {
    for (const std::string& frame : lines_of(stack.frames)) {
      if (more[frame] < most * kNearlyAll) continue;
      if (more[frame] > its) std::tie(innermost, its) = std::pair(frame, more[frame]);
      break;
    }
  }
  constexpr std::size_t kBytesMax = 200;  // a peer may say anything
  return innermost.substr(0, kBytesMax);
}

}  // namespace ddprun::agent
