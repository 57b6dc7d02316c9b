#include "agent/core/health_core.h"

#include <utility>

#include "rendezvous/common/text/lists.h"

namespace ddprun::agent::health {
namespace {

constexpr std::size_t kWarningsRemembered = 256;

// What speaks against the node; empty: nothing.
std::string unfit_in(const std::vector<Finding>& findings) {
  std::vector<std::string> sentences;
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::kUnfit) sentences.push_back(finding.sentence);
  }
  return joined(sentences, "; ");
}

}  // namespace

std::vector<Action> Core::step(const Event& event) {
  Out out;
  if (is_on_) {
    std::visit([&](const auto& each) { on(out, each); }, event);
  } else if (std::holds_alternative<JoinWanted>(event)) {
    out.push_back(LetJoin{});
  } else if (std::holds_alternative<RestartWanted>(event)) {
    out.push_back(LetRestart{});
  }
  return out;
}

void Core::on(Out& out, const JoinWanted&) { begin(out, Check::kFirst); }

void Core::on(Out& out, const CheckIsDue&) {
  if (check_ == Check::kNone) begin(out, Check::kBackground);
}

void Core::on(Out& out, const NodeSuspected&) {
  if (has_joined_ && check_ != Check::kSuspicion) begin(out, Check::kSuspicion);
}

void Core::on(Out& out, const RestartWanted&) {
  if (check_ != Check::kSuspicion) return out.push_back(LetRestart{});
  is_restart_held_ = true;
  out.push_back(HoldRestart{});
}

void Core::on(Out& out, const HoldOver&) {
  if (check_ == Check::kSuspicion) check_ = Check::kBackground;
  let_restart(out);
}

void Core::on(Out& out, const CheckAnswered& answered) {
  const Check check = std::exchange(check_, Check::kNone);
  if (check == Check::kNone) return;
  if (warned_of_.size() >= kWarningsRemembered) warned_of_.clear();
  for (const Finding& finding : answered.findings) {
    if (finding.severity == Severity::kWarning && warned_of_.insert(finding.sentence).second) {
      out.push_back(Warn{finding.sentence});
    }
  }
  const std::string unfit = unfit_in(answered.findings);
  if (check == Check::kBackground && !unfit.empty() && unfit_before_.empty()) {
    return begin(out, Check::kAgain);
  }
  const std::string before = std::exchange(unfit_before_, unfit);
  if (check == Check::kFirst) {
    if (!unfit.empty()) return out.push_back(RefuseJoin{unfit});
    has_joined_ = true;
    out.push_back(ArmTimer{});
    return out.push_back(LetJoin{});
  }
  if (!unfit.empty() && (unfit != before || check == Check::kSuspicion)) {
    out.push_back(Evict{unfit});
  }
  if (unfit.empty() && !before.empty()) out.push_back(TakeBack{});
  let_restart(out);
  out.push_back(ArmTimer{});
}

void Core::begin(Out& out, Check check) {
  check_ = check;
  out.push_back(RunCheck{});
}

void Core::let_restart(Out& out) {
  if (std::exchange(is_restart_held_, false)) out.push_back(LetRestart{});
}

bool Suspicion::arises(const NodeEvent& event, bool is_running) {
  if (std::holds_alternative<rdzv::RoundStart>(event)) is_peer_gone_ = false;
  if (std::holds_alternative<rdzv::GroupBroken>(event)) is_peer_gone_ = true;
  if (!is_running || is_peer_gone_) return false;
  if (std::holds_alternative<WorkerHung>(event)) return true;
  const auto* ended = std::get_if<WorkerEnded>(&event);
  return ended != nullptr && ended->failure && !ended->has_left &&
         !ended->failure->was_told_to_stop && ended->failure->asked_by.empty();
}

}  // namespace ddprun::agent::health
