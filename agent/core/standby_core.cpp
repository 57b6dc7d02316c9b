#include "agent/core/standby_core.h"

#include <csignal>

#include <algorithm>
#include <utility>

#include "rendezvous/common/text/durations.h"

namespace ddprun::agent::standby {

Core::Core(StandbySpec spec, int local_world_size)
    : spec_(std::move(spec)), modules_(spec_.modules), why_none_(spec_.why_none) {
  if (spec_.wanted == 0) state_ = State::kOff;
  if (spec_.prepares) ranks_.state = RanksState::kIdle;
  const auto ranks = static_cast<std::size_t>(local_world_size);
  ranks_.waits.resize(ranks);
  ranks_.preparations.resize(ranks);
  ranks_.gpus.resize(ranks);
}

std::vector<Action> Core::step(const Event& event) {
  Out out;
  std::visit([&](const auto& each) { on(out, each); }, event);
  return out;
}

// ---- events of both kinds

void Core::on(Out& out, const AllCanRecover&) {
  if (!spec_.is_program && state_ == State::kIdle && looks_) look_in(out, kSettleInSteps);
  if (ranks_.state != RanksState::kIdle) return;
  ranks_.state = RanksState::kSettling;
  out.emplace_back(ArmTimer{kSettleInSteps, TimerOf::kRanks});
}

void Core::on(Out& out, const Waits& waits) {
  waits.local_rank ? rank_waits(out, *waits.local_rank) : blank_waits(out);
}

void Core::on(Out& out, const Taken& taken) {
  if (taken.local_rank) {
    const auto index = static_cast<std::size_t>(*taken.local_rank);
    ranks_.waits[index] = false;
    ranks_.preparations[index].reset();
    if (are_ranks_full()) make_later(out);
    return;
  }
  waiting_ = std::max(0, waiting_ - 1);
  if (state_ == State::kReady) out.emplace_back(ArmTimer{kRefill});
}

void Core::on(Out& out, const Lost& lost) {
  lost.local_rank ? rank_lost(out, *lost.local_rank, lost) : blank_lost(out, lost.has_waited);
}

void Core::on(Out& out, const JobOver&) {
  end_for_ranks(out);
  ranks_.state = RanksState::kOff;
  out.emplace_back(EndZygote{});
  end_blanks(out);
  out.emplace_back(DisarmTimer{});
  state_ = State::kOff;
  delays_start_ = false;
}

// ---- blank ones, and the zygote

void Core::on(Out& out, const RoundBegins&) {
  end_round_of_ranks(out);
  if (std::exchange(has_begun_, true) || !spec_.starts_first || state_ != State::kIdle) return;
  delays_start_ = true;
  try_python(out);
}

void Core::on(Out& out, const RoundRuns&) {
  lost_ = 0;
  if (state_ == State::kIdle) look_in(out, kSettle);
  if (waiting_ + coming_ > 0) end_blanks(out);
  if (state_ == State::kReady) out.emplace_back(ArmTimer{kRefill});
}

void Core::on(Out& out, const ZygoteTimer& fired) {
  switch (state_) {
    case State::kIdle:
      why_none_ = fired.why_no_zygote;
      if (fired.are_workers_starting || !why_none_.empty()) return look_later(out, fired);
      if (spec_.is_program) return start_zygote(out);
      return try_python(out);
    case State::kTrying:
      out.emplace_back(EndZygote{});
      return turn_off(out, "its Python does not start in " + duration_text(kTrialLimit));
    case State::kLoading:
      if (delays_start_) return start_late(out);
      out.emplace_back(EndZygote{});
      return load_less(out, "",
                       (spec_.is_program ? "the program has not come to its Context in "
                                         : "loading modules did not end in ") +
                           duration_text(kLoadLimit));
    case State::kReady:
      if (delays_start_) return start_late(out);
      return fork_missing(out);
    case State::kOff:
      return;
  }
}

void Core::on(Out& out, const ZygoteHeld&) {
  if (state_ == State::kTrying) {
    was_held_ = true;
    out.emplace_back(EndZygote{});
  }
  if (state_ == State::kLoading) out.emplace_back(LoadModules{modules_, left_out_});
}

void Core::on(Out& out, const ZygoteReady& ready) {
  if (state_ != State::kLoading) return;
  state_ = State::kReady;
  kills_ = 0;
  for (const std::string& sentence : ready.left_out) {
    out.emplace_back(Tell{"standbys: " + sentence, /*is_warning=*/true});
  }
  if (!delays_start_) out.emplace_back(DisarmTimer{});
  fork_missing(out);
}

void Core::on(Out& out, const ZygoteUnfit& unfit) {
  if (state_ != State::kLoading) return;
  if (delays_start_) return start_without(out);
  out.emplace_back(EndZygote{});
  load_less(out, unfit.module, unfit.why);
}

void Core::on(Out& out, const ZygoteCannotStart& cannot) {
  if (delays_start_ && state_ == State::kLoading) return start_without(out);
  turn_off(out, cannot.why);
}

void Core::on(Out& out, const ZygoteEnded& ended) {
  if (delays_start_ && (state_ == State::kLoading || state_ == State::kReady)) {
    return start_without(out);
  }
  switch (state_) {
    case State::kIdle:
    case State::kOff:
      return;
    case State::kTrying:
      if (was_held_) return start_zygote(out);
      if (ended.status.signal == SIGKILL) break;
      return turn_off(out, "its Python does not import a sitecustomize module at its start");
    case State::kLoading:
      if (ended.status.signal != SIGKILL) {
        return load_less(
            out, "",
            (spec_.is_program ? "the program, started to wait in its Context, ended with "
                              : "the process that loads modules ended with ") +
                ended.status.to_string());
      }
      if (++kills_ >= kKillsMax) {
        return turn_off(out, "the process that makes them was killed " + std::to_string(kKillsMax) +
                                 " times while it loaded its " + what_they_load());
      }
      break;
    case State::kReady:
      break;
  }
  state_ = State::kIdle;
  looks_ = delays_start_ = false;
  out.emplace_back(DisarmTimer{});
}

void Core::blank_waits(Out& out) {
  if (state_ == State::kOff) return end_blanks(out);
  ++waiting_;
  coming_ = std::max(0, coming_ - 1);
  if (delays_start_) {  // they do not wait for a restart
    delays_start_ = waiting_ < spec_.wanted;
    if (!delays_start_) out.emplace_back(DisarmTimer{});
    return;
  }
  if (waiting_ < spec_.wanted || std::exchange(was_told_, true)) return;
  out.emplace_back(Tell{"standbys: " + std::to_string(waiting_) +
                        (waiting_ == 1 ? " waits" : " wait") + " for a restart, with their " +
                        what_they_load() + " loaded"});
}

void Core::blank_lost(Out& out, bool has_waited) {
  int& count = has_waited ? waiting_ : coming_;
  count = std::max(0, count - 1);
  if (delays_start_ && state_ == State::kReady) return start_without(out);
  if (state_ != State::kReady) return;
  if (++lost_ <= spec_.wanted) return out.push_back(ArmTimer{kRefill});
  if (waiting_ + coming_ > 0) return;
  out.emplace_back(EndZygote{});
  turn_off(out, "processes forked for them end at once, or cannot be had (ulimit -u, memory)");
}

// Every other worker would do the same, and the program's first lines would run twice each time.
void Core::on(Out& out, const StartedAnew& anew) {
  if (state_ == State::kOff || std::ranges::count(left_out_, anew.module) > 0) return;
  out.emplace_back(EndZygote{});
  end_blanks(out);
  if (!leave_out(anew.module)) return turn_off(out, anew.why);
  state_ = State::kIdle;
  look_in(out, kSettle);
  out.emplace_back(Tell{"standbys load " + anew.module + " no longer: " + anew.why});
}

// The next round's workers are started from the new file, and say what that one can.
void Core::on(Out& out, const ProgramChanged& changed) {
  if (state_ == State::kOff) return;
  if (state_ != State::kIdle) out.emplace_back(EndZygote{});
  end_blanks(out);
  out.emplace_back(DisarmTimer{});
  out.emplace_back(Tell{"standbys end, because " + changed.file + " has changed"});
  state_ = State::kIdle;
  looks_ = false;
}

void Core::try_python(Out& out) {
  state_ = State::kTrying;
  was_held_ = false;
  out.emplace_back(StartTrial{});
  out.emplace_back(ArmTimer{kTrialLimit});
}

void Core::start_late(Out& out) {
  out.emplace_back(
      Tell{"the workers start one by one: loading their modules once for all did not end in " +
               duration_text(kFirstLimit),
           /*is_warning=*/true});
  start_without(out);
}

void Core::start_without(Out& out) {
  delays_start_ = looks_ = false;
  state_ = State::kIdle;
  out.emplace_back(EndZygote{});
  end_blanks(out);
  out.emplace_back(DisarmTimer{});
}

bool Core::is_blank_coming() const {
  if (spec_.is_program || waiting_ > 0) return false;
  switch (state_) {
    case State::kIdle:
      return looks_;
    case State::kTrying:
    case State::kLoading:
      return true;
    case State::kReady:
      return lost_ <= spec_.wanted;
    case State::kOff:
      return false;
  }
  return false;
}

void Core::look_in(Out& out, std::chrono::milliseconds settle) {
  settle_ = settle;
  looks_ = true;
  out.emplace_back(ArmTimer{settle});
}

void Core::look_later(Out& out, const ZygoteTimer& fired) {
  look_in(out, std::min(settle_ * 2, kSettleMax));
  if (why_none_.empty() || fired.are_workers_starting || std::exchange(was_told_why_, true)) return;
  out.emplace_back(Tell{"no standbys: " + why_none_});
}

void Core::end_blanks(Out& out) {
  out.emplace_back(EndBlanks{});
  waiting_ = coming_ = 0;
}

void Core::fork_missing(Out& out) {
  for (; waiting_ + coming_ < spec_.wanted; ++coming_) out.emplace_back(ForkBlank{});
}

void Core::start_zygote(Out& out) {
  state_ = State::kLoading;
  out.emplace_back(StartZygote{});
  out.emplace_back(ArmTimer{delays_start_ ? kFirstLimit : kLoadLimit});
}

// False: this one is needed.
bool Core::leave_out(const std::string& module) {
  if (module.empty() || modules_.empty() || module == modules_.front()) return false;
  std::erase(modules_, module);
  left_out_.push_back(module);
  return true;
}

void Core::load_less(Out& out, const std::string& module, const std::string& why) {
  const bool was_asked_for = std::ranges::count(modules_, module) > 0;
  if (leave_out(module)) {
    out.emplace_back(Tell{"standbys load " + module + " no longer: " + why, was_asked_for});
    return start_zygote(out);
  }
  const bool is_alone = std::ranges::count(left_out_, "*") > 0;
  if (spec_.is_program || is_alone) return turn_off(out, why);
  out.emplace_back(
      Tell{"standbys load " + modules_.front() + " alone: " + why, /*is_warning=*/true});
  modules_.resize(1);
  left_out_.emplace_back("*");
  start_zygote(out);
}

void Core::turn_off(Out& out, const std::string& why) {
  state_ = State::kOff;
  delays_start_ = false;
  why_none_ = why;
  out.emplace_back(DisarmTimer{});
  out.emplace_back(
      Tell{"no standbys: " + why + "; workers start as without them", /*is_warning=*/true});
}

// ---- those for ranks

int Core::waiting_for_ranks() const {
  return static_cast<int>(std::ranges::count(ranks_.waits, true));
}

void Core::end_round_of_ranks(Out& out) {
  if (ranks_.state == RanksState::kOff) return;
  end_for_ranks(out);
  ranks_.state = ranks_.is_given_up ? RanksState::kNone : RanksState::kIdle;
  ranks_.kills = ranks_.lost = 0;
  ranks_.delay = {};
  ranks_.gpus.assign(ranks_.gpus.size(), {});
  if (!ranks_.is_given_up) ranks_.why_none.clear();
}

void Core::on(Out& out, const WorkerCannot& cannot) {
  if (ranks_.state == RanksState::kOff) return;
  ranks_.is_given_up = ranks_.is_given_up || cannot.nor_later;
  give_up(out, cannot.why);
}

void Core::on(Out& out, const RankTimer& fired) {
  if (is_making()) {
    return give_up(out, "a standby has not made the program's set-up in " +
                            std::to_string(kSetUpLimit / std::chrono::minutes(1)) + " minutes");
  }
  if (ranks_.state != RanksState::kSettling) return;
  for (std::size_t rank = 0; rank < fired.gpus.size(); ++rank) {
    link::GpuUse& its = ranks_.gpus.at(rank);
    if (!its.is_on_gpu() || !its.is_known()) its = fired.gpus[rank];
  }
  if (fired.is_replacing) return make_later(out);
  make_next(out);
}

void Core::on(Out& out, const StandbyCannot& cannot) {
  if (ranks_have_begun()) give_up(out, cannot.why);
}

void Core::on(Out& out, const CannotMake& cannot) {
  if (is_making()) give_up(out, cannot.why);
}

void Core::rank_waits(Out& out, int local_rank) {
  if (!ranks_have_begun()) return;
  ranks_.waits[static_cast<std::size_t>(local_rank)] = true;
  if (!is_making() || local_rank != ranks_.made) return;
  ranks_.kills = 0;
  make_next(out);
}

void Core::rank_lost(Out& out, int local_rank, const Lost& lost) {
  if (!ranks_have_begun()) return;
  const std::string how = "ended with " + lost.status.to_string() +
                          (lost.last_words.empty() ? "" : ": " + lost.last_words);
  const auto index = static_cast<std::size_t>(local_rank);
  ranks_.preparations[index].reset();
  if (ranks_.waits[index]) {
    ranks_.waits[index] = false;
    if (++ranks_.lost > std::max(kLostMax, static_cast<int>(ranks_.waits.size()))) {
      return give_up(
          out,
          "standbys that had made the program's set-up ended while they waited; the last " + how);
    }
    if (are_ranks_full()) make_later(out);
    return;
  }
  if (!is_making() || local_rank != ranks_.made) return;
  if (lost.status.signal == SIGKILL && ++ranks_.kills < kKillsMax) return make_later(out);
  give_up(out, "a standby that made the program's set-up without the others " + how);
}

void Core::make_next(Out& out) {
  const auto lacking = std::ranges::find(ranks_.waits, false);
  if (lacking == ranks_.waits.end()) {
    ranks_.state = RanksState::kFull;
    out.emplace_back(DisarmTimer{TimerOf::kRanks});
    tell_of_ranks(out, "workers are replaced in place when they die" +
                           (ranks_.why_unprepared.empty()
                                ? ""
                                : "; the program's set-up is made then: " + ranks_.why_unprepared));
    return;
  }
  const auto index = static_cast<std::size_t>(lacking - ranks_.waits.begin());
  const link::GpuUse& gpu = ranks_.gpus[index];
  if (!gpu.is_known()) return make_later(out);
  if (is_blank_coming() && ranks_.delay < kForkLimit) {
    ranks_.delay += kRefill;
    return make_later(out);
  }
  ranks_.state = RanksState::kMaking;
  ranks_.delay = {};
  ranks_.made = static_cast<int>(index);
  const link::Preparation preparation = preparation_of(index, ranks_.gpus, ranks_.preparations);
  ranks_.preparations[index] = preparation;
  if (preparation != link::Preparation::kWhole && ranks_.why_unprepared.empty()) {
    ranks_.why_unprepared = why_not_whole(gpu);
  }
  out.emplace_back(ArmTimer{kSetUpLimit, TimerOf::kRanks});
  out.emplace_back(MakeForRank{ranks_.made, preparation, gpu});
}

void Core::make_later(Out& out) {
  ranks_.state = RanksState::kSettling;
  out.emplace_back(ArmTimer{kRefill, TimerOf::kRanks});
}

void Core::end_for_ranks(Out& out) {
  if (!ranks_have_begun()) return;
  out.emplace_back(EndForRanks{});
  out.emplace_back(DisarmTimer{TimerOf::kRanks});
  ranks_.waits.assign(ranks_.waits.size(), false);
  ranks_.preparations.assign(ranks_.preparations.size(), std::nullopt);
  ranks_.why_unprepared.clear();
}

void Core::give_up(Out& out, const std::string& why) {
  if (ranks_.state == RanksState::kNone) return;
  end_for_ranks(out);
  ranks_.state = RanksState::kNone;
  ranks_.why_none = why;
  tell_of_ranks(out, "workers cannot be replaced in place: " + why +
                         "; when one dies, all are restarted" +
                         (ranks_.is_given_up ? ", to the end of this job" : ""));
}

// They are asked for by --standby, so this is said as a warning is, but a sentence not twice in a row.
void Core::tell_of_ranks(Out& out, const std::string& sentence) {
  if (std::exchange(ranks_.told, sentence) == sentence) return;
  out.emplace_back(Tell{sentence, /*is_warning=*/true});
}

}  // namespace ddprun::agent::standby
