#include "rendezvous/round/hang_core.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "rendezvous/common/text/ranks.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

constexpr std::size_t kStepsKept = 200;

struct Member {
  const RankCalls* rank = nullptr;
  const GroupCalls* calls = nullptr;  // null: it says nothing of the group
};

struct Group {
  std::string name;
  std::uint32_t size = 0;
  std::vector<Member> members;  // by rank
  std::string reason;           // why its call may never end
};

// One call of a group that some are in and others, perhaps, have not entered.
struct Wait {
  WaitingFor seen;
  std::vector<const Member*> inside;
  std::vector<const Member*> passed;  // they have left it, and may be in a later one
  bool is_all_known = true;           // what those have called there
  bool is_complete = false;           // all are in it, or have been
};

// Ranks by their number.
template <typename T>
using OfRank = std::map<int, T>;

// What both ranks say of it agrees. Zero, -1 and kNoType say nothing.
bool match(const record::Call& a, const record::Call& b) {
  const auto agree = [](auto one, auto other, auto nothing) {
    return one == nothing || other == nothing || one == other;
  };
  return a.operation == b.operation && agree(a.type, b.type, record::kNoType) &&
         agree(a.root, b.root, -1) && agree(a.signature, b.signature, std::uint64_t{0});
}

nanoseconds limit_of(const HangRules& rules) { return rules.patience + rules.gap; }

bool is_in_call(const Member& member, const HangRules& rules) {
  return member.calls != nullptr && member.calls->at && !member.calls->at->is_over &&
         member.calls->at->since > limit_of(rules);
}

// It has entered and left no call since then.
nanoseconds idle_for(const RankCalls& rank) {
  nanoseconds idle = nanoseconds::max();
  for (const GroupCalls& group : rank.groups) {
    if (!group.at) continue;
    idle = std::min(idle, group.since_entry);
    if (group.at->is_over) idle = std::min(idle, group.at->since);
  }
  return idle == nanoseconds::max() ? nanoseconds(0) : idle;
}

// What this member called there, as far as its record tells.
const record::Call* call_of(const Member& member, std::uint64_t number) {
  if (member.calls->at && member.calls->at->number == number) return &member.calls->at->call;
  const auto& before = member.calls->before;
  const auto found = std::ranges::find(before, number, &EarlierCall::number);
  return found == before.end() ? nullptr : &found->call;
}

std::string text_of(const record::Call& call) {
  std::string text(name_of(call.operation));
  if (call.elements > 0) text += " of " + std::to_string(call.elements) + " elements";
  if (call.root >= 0) text += " with root " + std::to_string(call.root);
  return text;
}

std::vector<int> ranks_of(const std::vector<const Member*>& members) {
  std::vector<int> ranks;
  for (const Member* each : members) ranks.push_back(each->rank->rank);
  return ranks;
}

std::string call_in_words(const WaitingFor& wait) {
  return ddprun::call_in_words(wait.operation, wait.number, wait.group) +
         (wait.reason.empty() ? "" : " (" + wait.reason + ")");
}

Hung verdict_of(Hung::Why why, const WaitingFor& wait) {
  return {.why = why,
          .group = wait.group,
          .number = wait.number,
          .what = call_in_words(wait),
          .waited = wait.waited,
          .waiting = wait.waiting};
}

// The proof that this rank, for which others wait, cannot go on by itself.
std::optional<Hung::Why> why_held(const RankCalls& rank, const HangRules& rules) {
  switch (rank.state) {
    case RankState::kStopped:
      return Hung::Why::kStopped;
    case RankState::kFrozen:
      return Hung::Why::kFrozen;
    case RankState::kUninterruptible:
      if (rank.held_for > std::max<nanoseconds>(kInKernelForGood, rules.patience) + rules.gap) {
        return Hung::Why::kUninterruptible;
      }
      return std::nullopt;
    case RankState::kTraced:
    case RankState::kRuns:
      break;
  }
  return std::nullopt;
}

bool keeps_record(const RankCalls& rank) { return rank.keeps_record || !rank.groups.empty(); }

std::vector<Group> groups_of(const std::vector<const RankCalls*>& ranks, int world_size,
                             const HangRules& rules) {
  std::map<std::uint64_t, Group> by_id;
  for (const RankCalls* rank : ranks) {
    for (const GroupCalls& calls : rank->groups) {
      Group& group = by_id[calls.id];
      if (group.members.empty()) {
        group.name = calls.name;
        group.size = calls.size;
      }
      // A rank that has made the group anew may still have the earlier one; the one in use is the first.
      const bool is_known = !group.members.empty() && group.members.back().rank == rank;
      if (!is_known) group.members.push_back({rank, &calls});
      const bool asks_for_more = calls.at &&
                                 calls.at->call.operation == record::Operation::kInitProcessGroup &&
                                 std::cmp_greater(calls.size, world_size);
      if (!asks_for_more) continue;
      group.size = static_cast<std::uint32_t>(world_size);
      group.reason = "the program asks for world size " + std::to_string(calls.size) +
                     ", this job has " + std::to_string(world_size) +
                     (world_size == 1 ? " rank" : " ranks") +
                     "; leave world_size to the environment";
    }
  }
  std::vector<Group> groups;
  for (auto& [id, group] : by_id) {
    // A member that has not made the group yet; of smaller ones nobody knows who that would be.
    if (std::cmp_equal(group.size, world_size)) {
      std::vector<Member> all;
      auto known = group.members.begin();
      for (const RankCalls* rank : ranks) {
        if (known != group.members.end() && known->rank == rank) {
          all.push_back(*known++);
        } else if (keeps_record(*rank) || why_held(*rank, rules)) {
          all.push_back({rank, nullptr});
        }
      }
      group.members = std::move(all);
    }
    // One of two ranks that exchange messages may not have begun to.
    if (group.members.size() == 1 && group.members.front().calls->peer) {
      const auto other =
          std::ranges::find(ranks, static_cast<int>(*group.members.front().calls->peer),
                            [](const RankCalls* each) { return each->rank; });
      if (other != ranks.end() && keeps_record(**other)) {
        group.members.push_back({*other, nullptr});
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// By number, whether somebody is missing or not.
std::vector<Wait> waits_of(const Group& group, const HangRules& rules) {
  std::map<std::uint64_t, Wait> by_number;
  for (const Member& each : group.members) {
    if (is_in_call(each, rules)) by_number[each.calls->at->number].inside.push_back(&each);
  }
  std::vector<Wait> waits;
  for (auto& [number, wait] : by_number) {
    wait.seen.group = group.name;
    wait.seen.number = number;
    wait.seen.reason = group.reason;
    wait.seen.operation = wait.inside.front()->calls->at->call.operation;
    for (const Member* each : wait.inside) {
      wait.seen.waited = std::max(wait.seen.waited, each->calls->at->since);
    }
    wait.seen.waiting = ranks_of(wait.inside);
    for (const Member& each : group.members) {
      if (each.calls == nullptr || each.calls->calls < number) {
        wait.seen.missing.push_back(each.rank->rank);
        continue;
      }
      if (is_in_call(each, rules) && each.calls->at->number == number) continue;
      // A record may have nothing but the number of a quick call, at first or for ever.
      const record::Call* const call = call_of(each, number);
      const bool is_known = call != nullptr && call->operation != record::Operation::kOther;
      if (is_known) wait.passed.push_back(&each);
      wait.is_all_known = wait.is_all_known && is_known;
    }
    wait.is_complete =
        wait.seen.missing.empty() && std::cmp_equal(group.members.size(), group.size);
    waits.push_back(std::move(wait));
  }
  return waits;
}

// ---- the verdicts

// The ranks that are in one call or have left it, by what they call.
void compare(const Wait& wait, std::vector<Hung>& hung) {
  struct Kind {
    record::Call call;
    std::vector<const Member*> members;
  };
  std::vector<Kind> kinds;
  const auto add = [&](const Member* member) {
    const record::Call& call = *call_of(*member, wait.seen.number);
    const auto same =
        std::ranges::find_if(kinds, [&](const Kind& kind) { return match(kind.call, call); });
    Kind& kind = same == kinds.end() ? kinds.emplace_back(Kind{call, {}}) : *same;
    kind.members.push_back(member);
  };
  for (const Member* each : wait.inside) add(each);
  for (const Member* each : wait.passed) add(each);
  const bool is_traced = std::ranges::any_of(kinds, [](const Kind& kind) {
    return std::ranges::any_of(
        kind.members, [](const Member* each) { return each->rank->state == RankState::kTraced; });
  });
  if (kinds.size() < 2 || is_traced) return;
  const auto size_of = [](const Kind& kind) { return kind.members.size(); };
  const std::size_t most = std::ranges::max(kinds, {}, size_of).members.size();
  const bool is_tie = std::ranges::count(kinds, most, size_of) > 1;
  if (is_tie && !wait.is_all_known && wait.seen.waited < kForGood) return;  // it may be decided yet
  Hung found = verdict_of(Hung::Why::kMismatch, wait.seen);
  found.what.clear();
  found.waiting.clear();
  for (const Kind& kind : kinds) {
    const std::vector<int> ranks = ranks_of(kind.members);
    if (!found.what.empty()) found.what += ", ";
    found.what += text_of(kind.call) + " on " + ranks_in_words(ranks);
    if (!is_tie && kind.members.size() == most) continue;
    found.ranks.insert(found.ranks.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(found.ranks);
  hung.push_back(std::move(found));
}

// Of those that have not come, and, where it is not alone, of those that are in the call.
void find_held(const Wait& wait, const OfRank<const RankCalls*>& ranks, const HangRules& rules,
               std::vector<Hung>& hung) {
  std::vector<int> awaited = wait.seen.missing;
  if (wait.inside.size() > 1) {
    awaited.insert(awaited.end(), wait.seen.waiting.begin(), wait.seen.waiting.end());
    std::ranges::sort(awaited);
  }
  std::map<Hung::Why, Hung> found;
  for (const int rank : awaited) {
    const auto why = why_held(*ranks.at(rank), rules);
    if (!why) continue;
    Hung& each = found.try_emplace(*why, verdict_of(*why, wait.seen)).first->second;
    each.ranks.push_back(rank);
    std::erase(each.waiting, rank);
  }
  for (auto& [why, each] : found) {
    if (!each.waiting.empty()) hung.push_back(std::move(each));
  }
}

std::size_t open_calls(const RankCalls& rank) {
  return static_cast<std::size_t>(std::ranges::count_if(
      rank.groups, [](const GroupCalls& group) { return group.at && !group.at->is_over; }));
}

// Ranks that wait for each other: from all waiting ranks, ranks without a wait for a rank of the set, and ranks for which
// no rank of the set waits, are removed until none is left to remove. Without a proof they may also only have begun their
// calls.
void find_cycle(const std::vector<const Wait*>& waits, nanoseconds for_longer, Hung::Basis basis,
                std::vector<Hung>& hung) {
  const bool is_proof = basis == Hung::Basis::kProof;
  OfRank<std::vector<const Wait*>> waits_of;
  for (const Wait* wait : waits) {
    for (const Member* each : wait->inside) {
      const RankCalls& rank = *each->rank;
      const bool is_stuck = each->calls->at->since > for_longer && idle_for(rank) > for_longer &&
                            rank.state != RankState::kTraced && (rank.all_wait || !is_proof);
      if (is_stuck) waits_of[rank.rank].push_back(wait);
    }
  }
  // It may wait for another of its calls, which may end.
  if (is_proof) {
    for (const Wait* wait : waits) {
      for (const Member* each : wait->inside) {
        const auto its = waits_of.find(each->rank->rank);
        if (its != waits_of.end() && its->second.size() != open_calls(*each->rank)) {
          waits_of.erase(its);
        }
      }
    }
  }
  const auto is_left = [&](int rank) { return waits_of.contains(rank); };
  for (std::size_t before = waits_of.size() + 1; before != waits_of.size();) {
    before = waits_of.size();
    std::set<const Wait*> stuck;  // somebody who is left has not come to it
    std::set<int> awaited;
    for (const Wait* wait : waits) {
      const auto waits_here = [&](int rank) {
        return is_left(rank) && std::ranges::count(waits_of[rank], wait) > 0;
      };
      if (std::ranges::any_of(wait->seen.missing, is_left)) stuck.insert(wait);
      if (std::ranges::any_of(wait->seen.waiting, waits_here)) {
        awaited.insert(wait->seen.missing.begin(), wait->seen.missing.end());
      }
    }
    const auto may_go_on = [&](const Wait* wait) { return !stuck.contains(wait); };
    for (auto& [rank, its] : waits_of) {
      if (is_proof && std::ranges::any_of(its, may_go_on)) its.clear();
      std::erase_if(its, may_go_on);
    }
    std::erase_if(waits_of, [&](const auto& each) {
      return each.second.empty() || !awaited.contains(each.first);
    });
  }
  if (waits_of.empty()) return;
  const Wait* const first = waits_of.begin()->second.front();
  Hung found = verdict_of(Hung::Why::kCycle, first->seen);
  found.basis = basis;
  found.what.clear();
  found.waiting.clear();
  for (const auto& [rank, its] : waits_of) {
    std::vector<int> missing;
    std::ranges::copy_if(its.front()->seen.missing, std::back_inserter(missing), is_left);
    if (found.ranks.size() < kRanksNamed) {
      found.what += (found.what.empty() ? "rank " : ", rank ") + std::to_string(rank) + " in " +
                    call_in_words(its.front()->seen) + " for " + ranks_in_words(missing);
    }
    found.ranks.push_back(rank);
    found.waited = std::max(found.waited, its.front()->seen.waited);
  }
  hung.push_back(std::move(found));
}

bool has(const std::vector<Hung>& hung, Hung::Why why) {
  return std::ranges::count(hung, why, &Hung::why) > 0;
}

void find_overdue(const std::vector<Wait>& waits, const std::vector<const Wait*>& incomplete,
                  const OfRank<const RankCalls*>& ranks, const HangRules& rules,
                  std::vector<Hung>& hung) {
  if (!rules.timeout) return;
  const bool is_traced = std::ranges::any_of(
      ranks, [](const auto& each) { return each.second->state == RankState::kTraced; });
  if (is_traced) return;
  const nanoseconds limit = *rules.timeout + rules.gap;
  const auto basis = rules.needs_step ? Hung::Basis::kAutomatic : Hung::Basis::kSeconds;
  std::set<int> excluded;  // they wait themselves, or there is a proof
  for (const Wait& wait : waits) {
    excluded.insert(wait.seen.waiting.begin(), wait.seen.waiting.end());
  }
  for (const Hung& each : hung) excluded.insert(each.ranks.begin(), each.ranks.end());
  std::vector<Hung> overdue;
  if (!has(hung, Hung::Why::kCycle)) find_cycle(incomplete, limit, basis, overdue);
  for (const Wait& wait : waits) {
    if (wait.seen.waited <= limit) continue;
    Hung found = verdict_of(Hung::Why::kTimeout, wait.seen);
    found.basis = basis;
    if (wait.is_complete) {
      if (has(hung, Hung::Why::kMismatch)) continue;
      found.ranks = std::exchange(found.waiting, {});
      const bool is_stuck = std::ranges::all_of(
          found.ranks, [&](int rank) { return idle_for(*ranks.at(rank)) > limit; });
      if (!is_stuck) continue;
    } else {
      std::ranges::copy_if(wait.seen.missing, std::back_inserter(found.ranks),
                           [&](int rank) { return !excluded.contains(rank); });
    }
    if (!found.ranks.empty()) overdue.push_back(std::move(found));
  }
  for (Hung& each : overdue) {
    const bool is_too_early = rules.needs_step && std::ranges::any_of(each.ranks, [&](int rank) {
                                return !ranks.at(rank)->since_step.has_value();
                              });
    if (!is_too_early) hung.push_back(std::move(each));
  }
}

std::string who_waits(const Hung& hung) {
  return ranks_in_words(hung.waiting) + (hung.waiting.size() == 1 ? " waits" : " wait") + " for " +
         (hung.ranks.size() == 1 ? "it" : "them") + " in " + hung.what;
}

}  // namespace

std::optional<nanoseconds> HangTimeout::limit(nanoseconds longest_wait) const {
  if (is_automatic) return std::max<nanoseconds>(1min, 10 * longest_wait);
  return fixed > 0ms ? std::optional<nanoseconds>(fixed) : std::nullopt;
}

std::string_view name_of(Hung::Why why) {
  constexpr std::string_view kNames[] = {"stopped",         "mismatch", "frozen",
                                         "uninterruptible", "cycle",    "timeout"};
  return kNames[static_cast<std::size_t>(why)];
}

HangFindings find_hangs(const std::vector<RankCalls>& ranks, int world_size,
                        const HangRules& rules) {
  OfRank<const RankCalls*> by_rank;
  for (const RankCalls& each : ranks) by_rank.try_emplace(each.rank, &each);
  std::vector<const RankCalls*> ordered;
  for (const auto& [rank, calls] : by_rank) ordered.push_back(calls);
  const std::vector<Group> groups = groups_of(ordered, world_size, rules);
  std::vector<Wait> waits;
  for (const Group& group : groups) {
    std::ranges::move(waits_of(group, rules), std::back_inserter(waits));
  }
  HangFindings findings;
  std::vector<const Wait*> incomplete;
  for (const Wait& wait : waits) {
    compare(wait, findings.hung);
    find_held(wait, by_rank, rules, findings.hung);
    if (!wait.seen.missing.empty()) incomplete.push_back(&wait);
    if (wait.is_complete) findings.slow.push_back(wait.seen);
  }
  find_cycle(incomplete, std::max<nanoseconds>(kForGood, rules.patience) + rules.gap,
             Hung::Basis::kProof, findings.hung);
  find_overdue(waits, incomplete, by_rank, rules, findings.hung);
  for (const Wait* wait : incomplete) findings.waits.push_back(wait->seen);
  std::ranges::stable_sort(findings.waits, std::ranges::greater{}, &WaitingFor::waited);
  std::ranges::stable_sort(findings.slow, std::ranges::greater{}, &WaitingFor::waited);
  std::ranges::stable_sort(findings.hung, std::ranges::greater{}, &Hung::waited);
  return findings;
}

std::string sentence(const WaitingFor& wait) {
  if (wait.missing.empty()) {
    return call_in_words(wait) + " has not ended: " + ranks_in_words(wait.waiting) +
           (wait.waiting.size() == 1 ? " is" : " are") + " in it";
  }
  return ranks_in_words(wait.missing) + (wait.missing.size() == 1 ? " has" : " have") +
         " not come to " + call_in_words(wait) + ", where " + ranks_in_words(wait.waiting) +
         (wait.waiting.size() == 1 ? " waits" : " wait");
}

std::string sentence(const Hung& hung) {
  const std::string who = ranks_in_words(hung.ranks);
  const bool is_one = hung.ranks.size() == 1;
  const std::string longer = hung.is_verdict()
                                 ? " for longer than --hang-timeout allows"
                                 : " for much longer than any wait of this job before";
  switch (hung.why) {
    case Hung::Why::kMismatch:
      return "the ranks make different calls (call " + std::to_string(hung.number) + " of " +
             hung.group + "): " + hung.what;
    case Hung::Why::kCycle:
      return who +
             (hung.basis == Hung::Basis::kProof ? " wait for each other"
                                                : " have waited for each other" + longer) +
             ": " + hung.what;
    case Hung::Why::kStopped:
      return who + (is_one ? " is" : " are") + " stopped by a signal, and " + who_waits(hung);
    case Hung::Why::kFrozen:
      return who + (is_one ? " is" : " are") + " frozen by " + (is_one ? "its" : "their") +
             " control group, and " + who_waits(hung);
    case Hung::Why::kUninterruptible:
      return who + (is_one ? " does" : " do") + " not return from the kernel, and " +
             who_waits(hung);
    case Hung::Why::kTimeout:
      break;
  }
  if (!hung.waiting.empty()) {
    return who + (is_one ? " has" : " have") + " not come" + longer + ", and " + who_waits(hung);
  }
  return hung.what + " does not end" + longer + ": " + who + (is_one ? " is" : " are") +
         " still in it";
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

std::optional<WaitingFor> WaitLines::due(const HangFindings& found) {
  std::vector<WaitingFor> waits;
  std::set<int> waiting;
  for (const auto* each : {&found.waits, &found.slow}) {
    for (const WaitingFor& wait : *each) {
      waiting.insert(wait.waiting.begin(), wait.waiting.end());
      if (wait.waited >= minute_) waits.push_back(wait);
    }
  }
  if (waits.empty()) {
    told_ = 0;
    return std::nullopt;
  }
  const nanoseconds longest = std::ranges::max(waits, {}, &WaitingFor::waited).waited;
  constexpr int kMinutes[] = {1, 5, 15, 60};
  const auto passed = static_cast<std::size_t>(
      std::ranges::count_if(kMinutes, [&](int minutes) { return longest >= minutes * minute_; }));
  if (passed <= told_) return std::nullopt;
  told_ = passed;
  const auto place = std::ranges::find_if(waits, [&](const WaitingFor& wait) {
    return std::ranges::any_of(wait.missing, [&](int rank) { return !waiting.contains(rank); });
  });
  return place == waits.end() ? waits.front() : *place;
}

nanoseconds HeldFor::looked(RankState state, std::uint64_t switches, Time now) {
  if (state == RankState::kRuns || state != state_ || switches != switches_) since_ = now;
  state_ = state;
  switches_ = switches;
  return now - since_;
}

}  // namespace ddprun::rdzv
