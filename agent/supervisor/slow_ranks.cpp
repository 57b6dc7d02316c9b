#include "agent/supervisor/slow_ranks.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <ranges>
#include <utility>

#include "agent/supervisor/minute.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/limits.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

constexpr int kLooksPerMinute = 12;
constexpr auto kArrivalsPatience = 1s;
constexpr auto kSamplesPatience = StackSamples::kLimit + 2s;
// Calls of each group: fewer in a large job, so that the first node has as much to do.
constexpr int kCallsOfAll = 16'384;
constexpr int kCallsMin = 16;
constexpr int kCallsMax = 448;
constexpr std::size_t kPlacesMax = 8;  // slow ranks whose stacks are looked at
constexpr int kAgain = 10;             // minutes, after which a rank is told again

microseconds in_us(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<microseconds>(time);
}

}  // namespace

SlowRanks::SlowRanks(const AgentParts& parts, const Others& others)
    : parts_(parts), others_(others), minute_(minute_of(parts.job.environment)), timer_(parts.io) {
  others.job.answer_with(
      "arrivals", lifetime_.guard([this](std::string_view question, const JobQuery::Reply& reply) {
        reply(answer_arrivals(question));
      }));
  others.job.answer_with(
      "samples", lifetime_.guard([this](std::string_view question, const JobQuery::Reply& reply) {
        const auto read = samples_question_from(question);
        sample(read.value_or(SamplesQuestion()), [reply](std::vector<RankSamples> samples) {
          reply(to_json(std::move(samples), rdzv::limits::kMaxAnswerBytes));
        });
      }));
}

void SlowRanks::on(const WorkerEvent& event) {
  if (std::holds_alternative<worker_event::Started>(event.what)) round_began();
  if (std::holds_alternative<worker_event::Closed>(event.what)) {
    timer_.cancel();
    core_.reset();
    slow_.clear();
  }
}

void SlowRanks::round_began() {
  slow_.clear();
  told_.clear();
  nodes_of_ranks_.clear();
  core_.reset();
  const rdzv::RoundStart& round = others_.node.round;
  if (!parts_.job.finds_slow_ranks || round.node_rank != 0 || round.world_size < 2) return;
  core_.emplace(minute_);
  look_later();
}

void SlowRanks::look_later() {
  timer_.arm(minute_ / kLooksPerMinute, [this] { look(); });
}

std::size_t SlowRanks::calls_asked() const {
  const int world_size = std::max(others_.node.round.world_size, 1);
  return static_cast<std::size_t>(std::clamp(kCallsOfAll / world_size, kCallsMin, kCallsMax));
}

void SlowRanks::look() {
  if (!core_ || !others_.node.is_running()) return;
  look_later();
  const rdzv::RoundStart& round = others_.node.round;
  if (round.node_count == 1) return judge({here()});
  others_.job.ask(std::nullopt, to_json(ArrivalsQuestion{round.round, calls_asked()}),
                  lifetime_.guard([this, asked = round.round](const JobQuery::Outcome& outcome) {
                    if (core_ && others_.node.round.round == asked) take(outcome);
                  }),
                  kArrivalsPatience);
}

rdzv::NodeArrivals SlowRanks::here() const {
  return {.ranks = others_.node.arrivals(calls_asked())};
}

bool SlowRanks::is_here(int rank) const {
  const int local_rank = rank - others_.node.round.rank_offset;
  return local_rank >= 0 && local_rank < parts_.job.local_world_size;
}

std::string SlowRanks::answer_arrivals(std::string_view question) const {
  const auto read = arrivals_question_from(question);
  ArrivalsAnswer answer{.now = Clock::now().time_since_epoch(), .ranks = {}};
  if (read && runs(read->round)) {
    answer.ranks = others_.node.arrivals(std::min<std::size_t>(read->calls, kCallsMax));
  }
  return to_json(std::move(answer), rdzv::limits::kMaxAnswerBytes);
}

void SlowRanks::take(const JobQuery::Outcome& outcome) {
  std::vector<rdzv::NodeArrivals> nodes{here()};
  if (outcome.asked) {
    for (const auto& member : outcome.asked->view.members) hosts_[member.id] = member.host;
  }
  const int world_size = others_.node.round.world_size;
  for (const auto& [id, text] : outcome.answers) {
    auto answer = arrivals_answer_from(text);
    if (!answer || answer->ranks.empty()) continue;
    rdzv::ClockOffset& clock = clocks_[id];
    const auto received = outcome.answered_at.at(id).time_since_epoch();
    clock.answered(outcome.asked_at.time_since_epoch(), received, answer->now);
    std::erase_if(answer->ranks, [&](const rdzv::RankArrivals& each) {
      return each.rank < 0 || each.rank >= world_size || is_here(each.rank);
    });
    for (const rdzv::RankArrivals& each : answer->ranks) nodes_of_ranks_[each.rank] = id;
    const auto [offset, error] = clock.at(received);
    nodes.push_back({offset, error, std::move(answer->ranks)});
  }
  judge(nodes);
}

void SlowRanks::judge(const std::vector<rdzv::NodeArrivals>& nodes) {
  const auto now = Clock::now();
  std::vector<rdzv::SlowRank> news;
  for (const rdzv::SlowRank& slow : core_->look(now.time_since_epoch(), nodes)) {
    // A rank that is slow, waits for an evaluation, and is slow again, is no news.
    const auto told = told_.find(slow.rank);
    const bool is_news = told == told_.end() || now - told->second.at > kAgain * minute_;
    slow_[slow.rank] = status_of(slow, is_news ? "" : told->second.where);
    if (is_news) news.push_back(slow);
  }
  const auto slow = core_->slow();
  for (auto known = slow_.begin(); known != slow_.end();) {
    const auto found = std::ranges::find(slow, known->first, &rdzv::SlowRank::rank);
    if (found != slow.end()) {
      const std::string where = known->second.where;
      (known++)->second = status_of(*found, where);
      continue;
    }
    parts_.log.write(Log::Level::kInfo,
                     "rank " + std::to_string(known->first) + " does not come last any more");
    known = slow_.erase(known);
  }
  for (const rdzv::SlowRank& each : news) told_[each.rank] = {now, ""};
  if (!news.empty()) find_places(std::move(news));
}

// ---- where

void SlowRanks::find_places(std::vector<rdzv::SlowRank> slow) {
  struct Found {
    std::vector<RankSamples> samples;
    int awaited = 1;
  };
  SamplesQuestion question{others_.node.round.round, {}};
  for (const rdzv::SlowRank& each : slow | std::views::take(kPlacesMax)) {
    question.ranks.insert(question.ranks.end(), {each.rank, each.reference});
  }
  std::ranges::sort(question.ranks);
  const auto same = std::ranges::unique(question.ranks);
  question.ranks.erase(same.begin(), same.end());
  const auto found = std::make_shared<Found>();
  const auto take = [this, found, slow = std::move(slow),
                     round = question.round](std::vector<RankSamples> samples) {
    std::ranges::move(samples, std::back_inserter(found->samples));
    if (--found->awaited > 0) return;
    if (!core_ || others_.node.round.round != round) return;
    const auto samples_of = [&](int rank) {
      const auto its = std::ranges::find(found->samples, rank, &RankSamples::rank);
      return its == found->samples.end() ? RankSamples{} : *its;
    };
    for (const rdzv::SlowRank& each : slow) {
      tell(each, where_it_is_slow(samples_of(each.rank), samples_of(each.reference)));
    }
  };
  const bool is_alone = others_.node.round.node_count == 1;
  if (!is_alone) {
    found->awaited = 2;
    others_.job.ask(std::nullopt, to_json(question),
                    lifetime_.guard([this, take](const JobQuery::Outcome& outcome) {
                      std::vector<RankSamples> all;
                      for (const auto& [id, text] : outcome.answers) {
                        const auto samples = samples_from(text);
                        if (!samples) continue;
                        std::ranges::copy_if(*samples, std::back_inserter(all),
                                             [&, id = id](const RankSamples& each) {
                                               const auto node = nodes_of_ranks_.find(each.rank);
                                               return node != nodes_of_ranks_.end() &&
                                                      node->second == id;
                                             });
                      }
                      take(std::move(all));
                    }),
                    kSamplesPatience);
  }
  sample(question, lifetime_.guard(take));
}

void SlowRanks::sample(const SamplesQuestion& question,
                       std::function<void(std::vector<RankSamples>)> done) {
  others_.node.sample(runs(question.round) ? question.ranks : std::vector<int>(), std::move(done));
}

// ---- telling

std::string SlowRanks::host_of(int rank) const {
  const auto node = nodes_of_ranks_.find(rank);
  if (node == nodes_of_ranks_.end()) return parts_.host;
  const auto host = hosts_.find(node->second);
  return host == hosts_.end() ? "another node" : printable(host->second);
}

SlowStatus SlowRanks::status_of(const rdzv::SlowRank& slow, const std::string& where) const {
  return {slow.rank,        slow.share, in_us(slow.lag),
          in_us(slow.step), where,      sentence(slow, host_of(slow.rank), where)};
}

void SlowRanks::tell(const rdzv::SlowRank& slow, const std::string& where) {
  const auto known = slow_.find(slow.rank);
  if (known != slow_.end()) known->second = status_of(slow, where);
  told_[slow.rank].where = where;
  parts_.log.warn(printable(sentence(slow, host_of(slow.rank), where)));
  others_.events.write(SlowSeen{others_.node.round.round, slow, host_of(slow.rank), where});
}

void SlowRanks::fill(NodeStatus& status) const {
  if (!core_) return;
  for (const auto& [rank, slow] : slow_) status.slow.push_back(slow);
  for (const auto& [rank, times] : core_->times()) {
    RankTimesStatus its{.rank = rank,
                        .in_calls = times.in_calls,
                        .waiting = times.waiting,
                        .outside = {},
                        .late = times.late,
                        .lag = in_us(times.lag)};
    if (times.in_calls) its.outside = 1 - *times.in_calls;
    status.rank_times.push_back(its);
  }
}

}  // namespace ddprun::agent
