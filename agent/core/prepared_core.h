// Decides about the prepared standbys of this node, which take the place of workers that die
// (agent/README.md, "Replacement in place"): when they are made, one after the other, and why there are
// none. A pure state machine: events in, actions out. The shell (agent/standby/prepared_standbys.h)
// performs them. Where none waits, the round is restarted, so every doubt ends in None.
//
// clang-format off
//
//   Idle ──all can recover──▶ Settling ──timer──▶ Making ──all wait──▶ Full        any ──▶ None, for this round
//                                 ▲                  │                   │
//                                 └── one is gone ───┴───────────────────┘
//
//   event \ state    Off      Idle         Settling        Making               Full          None
//   RoundRuns        ignore   ignore       EndAll; Idle    EndAll; Idle         EndAll; Idle  Idle
//   AllCanRecover    ignore   timer        ignore          ignore               ignore        ignore
//   WorkerCannot (6) ignore   None         None            None                 None          ignore
//   TimerFired       ignore   ignore       Make, or        None: too late       ignore        ignore
//                                          the timer (1)
//   Waits            ignore   ignore       count (2)       Make the next, the   count         ignore
//                                                          timer (5), or Full
//   Cannot           ignore   ignore       None            None                 None          ignore
//   CannotStart      ignore   ignore       ignore          None                 ignore        ignore
//   Ended, not yet   ignore   ignore       ignore          None, or timer (3)   ignore        ignore
//     waiting
//   Ended, waiting   ignore   ignore       count           count                timer, or     ignore
//                                                          or None (4)          None (4)
//   Taken            ignore   ignore       count           count                timer         ignore
//   RoundOver        ignore   ignore       EndAll; Idle    EndAll; Idle         EndAll; Idle  Idle
//   JobOver          ignore   Off          EndAll; Off     EndAll; Off          EndAll; Off   Off
//
//   None begins with EndAll and a line that says why.
//   (1) while a replacement is under way: what is made would take processors from the workers; and as (5)
//   (2) none is being made: it said so twice
//   (3) SIGKILL is no verdict (memory, or somebody): at most kKillsMax times in a row
//   (4) at most as often as there are ranks, and kLostMax times, in one round: what waits and ends by itself is no use
//   (5) while a blank standby is about to wait, from which it is forked (standby_core.h), at most kForkLimit: without
//       one it imports all that the zygote imports, and keeps that in memory of its own
//   (6) if it says so for the whole job, RoundRuns and RoundOver lead to None, too
//
// clang-format on
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/common/exit_status.h"

namespace ddprun::agent {

namespace prepared {

// ---- events

struct RoundRuns {};
struct AllCanRecover {};  // all workers of this node have said so
struct WorkerCannot {     // one has said why it cannot
  std::string why;
  bool nor_later = false;  // nor can any worker of this job from here on
};
struct TimerFired {
  bool is_replacing = false;     // a worker of the job has not committed its first step since
  bool is_blank_coming = false;  // a blank standby, which does not wait yet
};
struct Waits {  // it has made its set-up
  int local_rank = 0;
  bool is_blank_coming = false;
};
struct Cannot {  // a prepared standby has said why the program cannot recover
  std::string why;
};
struct CannotStart {
  std::string why;
};
struct Ended {
  int local_rank = 0;
  ExitStatus status;
  std::string last_words;  // its last line of stderr
};
struct Taken {  // it is a worker now
  int local_rank = 0;
};
struct RoundOver {};
struct JobOver {};

using Event = std::variant<RoundRuns, AllCanRecover, WorkerCannot, TimerFired, Waits, Cannot,
                           CannotStart, Ended, Taken, RoundOver, JobOver>;

// ---- actions

struct ArmTimer {  // replaces the one that is armed
  std::chrono::milliseconds after{};
  bool operator==(const ArmTimer&) const = default;
};
struct DisarmTimer {
  bool operator==(const DisarmTimer&) const = default;
};
struct Make {
  int local_rank = 0;
  bool operator==(const Make&) const = default;
};
struct EndAll {  // Ended does not follow
  bool operator==(const EndAll&) const = default;
};
struct Tell {
  std::string sentence;
  bool operator==(const Tell&) const = default;
};

using Action = std::variant<ArmTimer, DisarmTimer, Make, EndAll, Tell>;

// ---- limits

// The workers have just begun their loop of steps.
inline constexpr std::chrono::milliseconds kSettle{1'000};
inline constexpr std::chrono::milliseconds kRefill{200};
inline constexpr std::chrono::milliseconds kSetUpLimit{300'000};
inline constexpr std::chrono::milliseconds kForkLimit{10'000};
inline constexpr int kKillsMax = 3;
inline constexpr int kLostMax = 3;

class Core {
 public:
  // `is_wanted`: false: there are never any.
  Core(bool is_wanted, int local_world_size);

  std::vector<Action> step(const Event& event);

  bool is_wanted() const { return state_ != State::kOff; }
  bool waits(int local_rank) const { return waits_.at(static_cast<std::size_t>(local_rank)); }
  int waiting() const;
  // Why there are none, in this round; empty: they wait, are being made, or it is not known yet.
  const std::string& why_none() const { return why_none_; }
  // There will be none in this job.
  bool is_given_up() const { return is_given_up_; }

 private:
  using Out = std::vector<Action>;
  enum class State { kOff, kIdle, kSettling, kMaking, kFull, kNone };

  void on(Out& out, const RoundRuns&) { end_round(out); }
  void on(Out& out, const AllCanRecover&);
  void on(Out& out, const WorkerCannot& cannot);
  void on(Out& out, const TimerFired& fired);
  void on(Out& out, const Waits& waits);
  void on(Out& out, const Cannot& cannot);
  void on(Out& out, const CannotStart& cannot);
  void on(Out& out, const Ended& ended);
  void on(Out& out, const Taken& taken);
  void on(Out& out, const RoundOver&) { end_round(out); }
  void on(Out& out, const JobOver&);

  bool is_making() const { return state_ == State::kMaking; }
  bool has_begun() const { return state_ == State::kSettling || is_making() || is_full(); }
  bool is_full() const { return state_ == State::kFull; }
  void make_next(Out& out, bool is_blank_coming);
  void make_later(Out& out);
  void end_all(Out& out);
  void end_round(Out& out);
  void give_up(Out& out, const std::string& why);

  State state_;
  std::vector<bool> waits_;            // by local rank
  int made_ = 0;                       // the local rank of the one that is being made
  int kills_ = 0;                      // in a row
  int lost_ = 0;                       // in this round
  std::chrono::milliseconds delay_{};  // of the next one, for a blank standby
  bool is_given_up_ = false;           // for the whole job
  std::string why_none_;
  std::string told_;  // the last sentence
};

}  // namespace prepared

}  // namespace ddprun::agent
