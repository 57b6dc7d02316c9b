#include "rendezvous/round/hang_core.h"

#include <algorithm>
#include <utility>

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kStepsKept = 200;
constexpr std::size_t kRanksNamed = 6;

struct Member {
  int rank = 0;
  RankState state = RankState::kRuns;
  const GroupCalls* calls = nullptr;  // null: it says nothing of the group
};

// What both ranks say of it agrees. Zero, -1 and kNoType say nothing.
bool match(const record::Call& a, const record::Call& b) {
  const auto agree = [](auto one, auto other, auto nothing) {
    return one == nothing || other == nothing || one == other;
  };
  return a.operation == b.operation && agree(a.type, b.type, record::kNoType) &&
         agree(a.root, b.root, -1) && agree(a.signature, b.signature, std::uint64_t{0});
}

bool is_in_call(const Member& member, std::chrono::nanoseconds patience) {
  return member.calls != nullptr && member.calls->at && !member.calls->at->is_over &&
         member.calls->at->since > patience;
}

std::string text_of(const record::Call& call) {
  std::string text(name_of(call.operation));
  if (call.elements > 0) text += " of " + std::to_string(call.elements) + " elements";
  if (call.root >= 0) text += " with root " + std::to_string(call.root);
  return text;
}

std::vector<int> ranks_of(const std::vector<const Member*>& members) {
  std::vector<int> ranks;
  for (const Member* each : members) ranks.push_back(each->rank);
  return ranks;
}

// Those who are in call `number`, by what they call.
void compare(const std::string& name, std::uint64_t number,
             const std::vector<const Member*>& inside, HangFindings& findings) {
  std::vector<std::vector<const Member*>> kinds;
  for (const Member* each : inside) {
    const auto same = std::ranges::find_if(kinds, [each](const auto& kind) {
      return match(kind.front()->calls->at->call, each->calls->at->call);
    });
    if (same == kinds.end()) {
      kinds.push_back({each});
    } else {
      same->push_back(each);
    }
  }
  const bool is_traced = std::ranges::any_of(
      inside, [](const Member* each) { return each->state == RankState::kTraced; });
  if (kinds.size() < 2 || is_traced) return;
  std::size_t most = 0;
  for (const auto& kind : kinds) most = std::max(most, kind.size());
  const bool is_tie = std::ranges::count(kinds, most, &std::vector<const Member*>::size) > 1;
  Hung hung{.why = Hung::Why::kMismatch, .group = name, .number = number};
  for (const auto& kind : kinds) {
    if (!hung.what.empty()) hung.what += ", ";
    hung.what += text_of(kind.front()->calls->at->call) + " on " + ranks_in_words(ranks_of(kind));
    for (const Member* each : kind) {
      if (is_tie || kind.size() < most) hung.ranks.push_back(each->rank);
      hung.waited = std::max(hung.waited, each->calls->at->since);
    }
  }
  std::ranges::sort(hung.ranks);
  findings.hung.push_back(std::move(hung));
}

void look_at(const std::string& name, const std::vector<Member>& members,
             std::chrono::nanoseconds patience, HangFindings& findings) {
  std::map<std::uint64_t, std::vector<const Member*>> inside;
  for (const Member& each : members) {
    if (is_in_call(each, patience)) inside[each.calls->at->number].push_back(&each);
  }
  for (const auto& [number, waiting] : inside) {
    WaitingFor wait{.group = name, .number = number};
    wait.operation = waiting.front()->calls->at->call.operation;
    for (const Member* each : waiting) wait.waited = std::max(wait.waited, each->calls->at->since);
    for (const Member& each : members) {
      if (each.calls != nullptr && each.calls->calls >= number) continue;
      wait.missing.push_back(each.rank);
      if (each.state == RankState::kStopped) {
        findings.hung.push_back({.group = name,
                                 .number = number,
                                 .ranks = {each.rank},
                                 .what = std::string(name_of(wait.operation)),
                                 .waited = wait.waited});
      }
    }
    compare(name, number, waiting, findings);
    if (wait.missing.empty()) continue;
    wait.waiting = ranks_of(waiting);
    findings.waits.push_back(std::move(wait));
  }
}

}  // namespace

HangFindings find_hangs(const std::vector<RankCalls>& ranks, int world_size,
                        std::chrono::nanoseconds patience) {
  std::vector<RankCalls> ordered = ranks;
  std::ranges::sort(ordered, {}, &RankCalls::rank);
  std::map<std::uint64_t, std::vector<Member>> groups;
  std::map<std::uint64_t, const GroupCalls*> first;
  for (const RankCalls& rank : ordered) {
    for (const GroupCalls& calls : rank.groups) {
      groups[calls.id].push_back({rank.rank, rank.state, &calls});
      first.try_emplace(calls.id, &calls);
    }
  }
  HangFindings findings;
  for (auto& [id, members] : groups) {
    const GroupCalls& calls = *first[id];
    // A member that has not made the group yet; of smaller ones nobody knows who that would be.
    if (calls.size == static_cast<std::uint32_t>(world_size)) {
      for (const RankCalls& rank : ordered) {
        if (rank.groups.empty()) continue;  // it keeps no record
        const bool is_known = std::ranges::count(members, rank.rank, &Member::rank) > 0;
        if (!is_known) members.push_back({rank.rank, rank.state, nullptr});
      }
      std::ranges::sort(members, {}, &Member::rank);
    }
    // One of two ranks that exchange messages may not have begun to.
    if (calls.peer && members.size() == 1) {
      const auto peer = std::ranges::find(ordered, static_cast<int>(*calls.peer), &RankCalls::rank);
      if (peer != ordered.end() && !peer->groups.empty()) {
        members.push_back({peer->rank, peer->state, nullptr});
      }
    }
    look_at(calls.name, members, patience, findings);
  }
  std::ranges::stable_sort(findings.waits, std::ranges::greater{}, &WaitingFor::waited);
  std::ranges::stable_sort(findings.hung, std::ranges::greater{}, &Hung::waited);
  return findings;
}

std::string ranks_in_words(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t named = std::min(ranks.size(), kRanksNamed);
  for (std::size_t i = 0; i < named; ++i) {
    const bool is_last = i + 1 == ranks.size();
    if (i > 0) text += is_last ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > named) text += " and " + std::to_string(ranks.size() - named) + " more";
  return text;
}

std::string sentence(const WaitingFor& wait) {
  return ranks_in_words(wait.missing) + (wait.missing.size() == 1 ? " has" : " have") +
         " not come to " + std::string(name_of(wait.operation)) + " (call " +
         std::to_string(wait.number) + " of " + wait.group + "), where " +
         ranks_in_words(wait.waiting) + (wait.waiting.size() == 1 ? " waits" : " wait");
}

std::string sentence(const Hung& hung) {
  const std::string call = "call " + std::to_string(hung.number) + " of " + hung.group;
  if (hung.why == Hung::Why::kMismatch) {
    return "the ranks make different calls (" + call + "): " + hung.what;
  }
  return ranks_in_words(hung.ranks) + " is stopped by a signal, and others wait for it in " +
         hung.what + " (" + call + ")";
}

void WaitPatience::stepped(int rank, std::int64_t step, Time at) {
  const auto [place, is_new] = last_.try_emplace(rank, Last{step, at});
  Last& last = place->second;
  if (is_new || step == last.step) return;
  if (step > last.step && at > last.at) {
    const auto each = std::chrono::nanoseconds(at - last.at) / (step - last.step);
    if (steps_.size() < kStepsKept) {
      steps_.push_back(each);
    } else {
      steps_[next_++ % kStepsKept] = each;
    }
  }
  last = {step, at};
}

std::chrono::nanoseconds WaitPatience::patience() const {
  if (steps_.empty()) return 1s;
  std::vector<std::chrono::nanoseconds> sorted = steps_;
  const auto place = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) * 99 / 100);
  std::ranges::nth_element(sorted, place);
  return std::max<std::chrono::nanoseconds>(1s, 5 * *place);
}

}  // namespace ddprun::rdzv
