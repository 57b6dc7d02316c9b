#include "agent/core/hang_response_core.h"

#include <algorithm>
#include <utility>

#include "rendezvous/common/text/ranks.h"

namespace ddprun::agent::hang_response {
namespace {

// The ranks whose stacks are taken first.
std::vector<int> culprits_of(const rdzv::Hung& hung) {
  std::vector<int> ranks = hung.ranks;
  if (ranks.size() > kRanksMax) ranks.resize(kRanksMax);
  return ranks;
}

}  // namespace

std::vector<Action> Core::step(const Event& event) {
  Out out;
  std::visit([&](const auto& each) { on(out, each); }, event);
  begin_next(out);
  return out;
}

// None: it is gone, or what came is no answer to what was asked last.
Core::Case* Core::find(CaseId id, Stage stage) {
  const auto found = cases_.find(id);
  return found != cases_.end() && found->second.stage == stage ? &found->second : nullptr;
}

void Core::add(Out& out, CaseId id, Case added) {
  if (cases_.size() >= kCasesMax) return out.push_back(Forget{id});
  cases_.emplace(id, std::move(added));
}

void Core::begin_next(Out& out) {
  const auto takes_stacks = [](const auto& each) {
    return each.second.stage == Stage::kFirst || each.second.stage == Stage::kOthers;
  };
  if (std::ranges::any_of(cases_, takes_stacks)) return;
  const auto next = std::ranges::find_if(
      cases_, [](const auto& each) { return each.second.stage == Stage::kQueued; });
  if (next == cases_.end()) return;
  next->second.stage = Stage::kFirst;
  out.push_back(TakeStacks{next->first, culprits_of(next->second.hung), {}});
}

void Core::remove(Out& out, CaseId id) {
  cases_.erase(id);
  out.push_back(Forget{id});
}

void Core::on(Out& out, const Waits& waits) {
  if (waits.wait.missing.empty()) {
    out.push_back(ReportWait{waits.id, waits.wait});
    return out.push_back(Forget{waits.id});
  }
  Case added;
  added.hung.ranks = {waits.wait.missing.front()};
  added.wait = waits.wait;
  add(out, waits.id, std::move(added));
}

void Core::on(Out& out, const StacksTaken& taken) {
  if (Case* const first = find(taken.id, Stage::kFirst)) {
    if (first->wait) {
      out.push_back(ReportWait{taken.id, *first->wait});
      return remove(out, taken.id);
    }
    first->stage = Stage::kOthers;
    out.push_back(TakeStacks{taken.id, {}, culprits_of(first->hung)});
  } else if (const Case* const others = find(taken.id, Stage::kOthers)) {
    out.push_back(Report{taken.id, others->hung});
  }
}

void Core::on(Out& out, const Reported& reported) {
  Case* const its = find(reported.id, Stage::kOthers);
  if (its == nullptr) return;
  if (!ends_ || !its->hung.is_verdict()) return remove(out, reported.id);
  its->stage = Stage::kConfirming;
  its->culprits = reported.culprits;
  if (its->culprits.size() > kStacksMax) its->culprits.resize(kStacksMax);
  for (auto& ranks : its->culprits) {
    if (ranks.size() > kRanksMax) ranks.resize(kRanksMax);
  }
  out.push_back(Confirm{reported.id, its->hung});
}

void Core::on(Out& out, const Confirmed& confirmed) {
  Case* const its = find(confirmed.id, Stage::kConfirming);
  if (its == nullptr) return;
  const std::string ranks = ranks_in_words(its->hung.ranks);
  if (confirmed.is_so.value_or(false)) {
    its->stage = Stage::kEnding;
    its->attempts = 0;
    return out.push_back(End{confirmed.id, its->culprits});
  }
  if (!confirmed.is_so && ++its->attempts < kAttempts) {
    return out.push_back(ArmTimer{confirmed.id, kAgain});
  }
  out.push_back(Warn{!confirmed.is_so
                         ? "a debugger holds a rank: " + ranks + " will not be killed"
                         : ranks + " went on by " +
                               (its->hung.ranks.size() == 1 ? "itself" : "themselves") +
                               " meanwhile: nothing is done"});
  remove(out, confirmed.id);
}

void Core::on(Out& out, const EndAnswered& answered) {
  Case* const its = find(answered.id, Stage::kEnding);
  if (its == nullptr) return;
  for (const auto& [ranks, why] : answered.refused) {
    out.push_back(Warn{ranks_in_words(ranks) + " will not be killed: " + why});
  }
  for (auto& ranks : its->culprits) {
    std::erase_if(ranks, [&](int rank) { return std::ranges::count(answered.known, rank) > 0; });
  }
  std::erase_if(its->culprits, [](const auto& ranks) { return ranks.empty(); });
  if (its->culprits.empty()) return remove(out, answered.id);
  if (++its->attempts < kAttempts) return out.push_back(ArmTimer{answered.id, kAgain});
  out.push_back(Warn{ranks_in_words(its->culprits.front()) +
                     " will not be killed: no node says that it has them"});
  remove(out, answered.id);
}

void Core::on(Out& out, const TimerExpired& expired) {
  if (const Case* const confirming = find(expired.id, Stage::kConfirming)) {
    out.push_back(Confirm{expired.id, confirming->hung});
  } else if (const Case* const ending = find(expired.id, Stage::kEnding)) {
    out.push_back(End{expired.id, ending->culprits});
  }
}

void Core::on(Out& out, const RoundOver&) {
  for (const auto& [id, its] : std::exchange(cases_, {})) out.push_back(Forget{id});
}

}  // namespace ddprun::agent::hang_response
