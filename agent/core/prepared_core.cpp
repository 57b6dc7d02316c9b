#include "agent/core/prepared_core.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace ddprun::agent::prepared {

Core::Core(bool is_wanted, int local_world_size)
    : state_(is_wanted ? State::kIdle : State::kOff),
      waits_(static_cast<std::size_t>(local_world_size)) {}

std::vector<Action> Core::step(const Event& event) {
  Out out;
  if (state_ != State::kOff) std::visit([&](const auto& each) { on(out, each); }, event);
  return out;
}

int Core::waiting() const { return static_cast<int>(std::ranges::count(waits_, true)); }

void Core::on(Out& out, const AllCanRecover&) {
  if (state_ != State::kIdle) return;
  state_ = State::kSettling;
  out.emplace_back(ArmTimer{kSettle});
}

void Core::on(Out& out, const WorkerCannot& cannot) {
  is_given_up_ = is_given_up_ || cannot.nor_later;
  give_up(out, cannot.why);
}

void Core::on(Out& out, const TimerFired& fired) {
  if (is_making()) {
    return give_up(out, "a standby has not made the program's set-up in " +
                            std::to_string(kSetUpLimit / std::chrono::minutes(1)) + " minutes");
  }
  if (state_ != State::kSettling) return;
  if (fired.is_replacing) return make_later(out);
  make_next(out, fired.is_blank_coming);
}

void Core::on(Out& out, const Waits& waits) {
  if (!has_begun()) return;
  waits_[static_cast<std::size_t>(waits.local_rank)] = true;
  if (!is_making() || waits.local_rank != made_) return;
  kills_ = 0;
  make_next(out, waits.is_blank_coming);
}

void Core::on(Out& out, const Cannot& cannot) {
  if (has_begun()) give_up(out, cannot.why);
}

void Core::on(Out& out, const CannotStart& cannot) {
  if (is_making()) give_up(out, cannot.why);
}

void Core::on(Out& out, const Ended& ended) {
  if (!has_begun()) return;
  const std::string how = "ended with " + ended.status.to_string() +
                          (ended.last_words.empty() ? "" : ": " + ended.last_words);
  const auto index = static_cast<std::size_t>(ended.local_rank);
  if (waits_[index]) {
    waits_[index] = false;
    if (++lost_ > std::max(kLostMax, static_cast<int>(waits_.size()))) {
      return give_up(
          out,
          "standbys that had made the program's set-up ended while they waited; the last " + how);
    }
    if (is_full()) make_later(out);
    return;
  }
  if (!is_making() || ended.local_rank != made_) return;
  if (ended.status.signal == SIGKILL && ++kills_ < kKillsMax) return make_later(out);
  give_up(out, "a standby that made the program's set-up without the others " + how);
}

void Core::on(Out& out, const Taken& taken) {
  waits_[static_cast<std::size_t>(taken.local_rank)] = false;
  if (is_full()) make_later(out);
}

void Core::on(Out& out, const JobOver&) {
  end_all(out);
  state_ = State::kOff;
}

void Core::make_next(Out& out, bool is_blank_coming) {
  const auto lacking = std::ranges::find(waits_, false);
  if (lacking == waits_.end()) {
    state_ = State::kFull;
    out.emplace_back(DisarmTimer{});
    const std::string sentence = "workers are replaced in place when they die";
    if (std::exchange(told_, sentence) != sentence) out.emplace_back(Tell{sentence});
    return;
  }
  if (is_blank_coming && delay_ < kForkLimit) {
    delay_ += kRefill;
    return make_later(out);
  }
  state_ = State::kMaking;
  delay_ = {};
  made_ = static_cast<int>(lacking - waits_.begin());
  out.emplace_back(ArmTimer{kSetUpLimit});
  out.emplace_back(Make{made_});
}

void Core::make_later(Out& out) {
  state_ = State::kSettling;
  out.emplace_back(ArmTimer{kRefill});
}

void Core::end_all(Out& out) {
  if (!has_begun()) return;
  out.emplace_back(EndAll{});
  out.emplace_back(DisarmTimer{});
  waits_.assign(waits_.size(), false);
}

void Core::end_round(Out& out) {
  end_all(out);
  state_ = is_given_up_ ? State::kNone : State::kIdle;
  kills_ = lost_ = 0;
  delay_ = {};
  if (!is_given_up_) why_none_.clear();
}

void Core::give_up(Out& out, const std::string& why) {
  if (state_ == State::kNone) return;
  end_all(out);
  state_ = State::kNone;
  why_none_ = why;
  const std::string sentence = "workers cannot be replaced in place: " + why +
                               "; when one dies, all are restarted" +
                               (is_given_up_ ? ", to the end of this job" : "");
  if (std::exchange(told_, sentence) != sentence) out.emplace_back(Tell{sentence});
}

}  // namespace ddprun::agent::prepared
