// Decides about the standbys of this node: when a zygote is made, what it loads, how many standbys
// wait, and why there are none. A pure state machine: events in, actions out. The shell
// (agent/standby/standbys.h) performs them. A worker for whom no standby waits is started by exec,
// so nothing here can stop a job, and every doubt ends in Off.
//
// clang-format off
//
//   Idle ──RoundRuns, Settled──▶ Trying ──held──▶ Loading ──ready──▶ Ready
//     ▲                                                                │
//     └────────── the zygote was killed: until the next round ─────────┘        any ──▶ Off, for good
//
//   event \ state    Idle             Trying (3)            Loading                Ready               Off
//   RoundBegins      StartTrial (9)   ignore                ignore                 ignore              ignore
//   RoundRuns        timer            ignore                ignore                 EndStandbys, timer  ignore
//   WorkersStep      timer (8)        ignore                ignore                 ignore              ignore
//   TimerFired       StartTrial (1)   Off                   less, or Off (2)       ForkStandby         ignore
//   ZygoteHeld       ignore           EndZygote             LoadModules            ignore              ignore
//   ZygoteReady      ignore           ignore                ForkStandby            ignore              ignore
//   ZygoteUnfit      ignore           ignore                less, or Off (2)       ignore              ignore
//   ZygoteEnded      ignore           StartZygote, Off (2)  less, or Off (2)       Idle (4)            ignore
//   CannotStart      ignore           Off                   Off                    ignore              ignore
//   StandbyWaits     count            count                 count                  count               EndStandbys
//   StandbyTaken     count            count                 count                  count, timer (7)    count
//   StandbyLost      count            count                 count                  count, timer (5)    count
//   StartedAnew      Off              Off                   Off                    Idle, or Off (6)    ignore
//   ProgramChanged   EndStandbys      Idle                  Idle                   Idle                ignore
//   JobOver          Off              Off                   Off                    Off                 ignore
//
//   (1) if the workers have joined each other, as far as this is known; else the timer again, for twice as long. Where
//       the program itself is the zygote there is no trial: a worker has said that it can be one, or the timer again
//   (2) without the module that is to blame; if none is known, or it is needed, with the first of the list alone (torch);
//       else Off. A process that was killed (SIGKILL) is no verdict: Idle; while it loads, at most kKillsMax times in a
//       row
//   (3) the same interpreter with an empty program. It shows that the zygote will be held: otherwise it would run the
//       user's program beside the workers
//   (4) the standbys that wait remain
//   (5) as often as there are standbys, in one round; then Off, if none waits: the zygote may be the process too many
//   (6) Idle, timer, if a module other than the first is to blame: the next zygote loads all but that module. Nothing
//       where it is left out already: each rank says the same
//   (7) it may have been taken in the middle of a round, for a prepared standby (prepared_core.h)
//   (8) if one is armed, for Python: prepared standbys are wanted now, and each would import what the zygote imports
//   (9) of the first round, if its workers shall come from the zygote (StandbySpec::starts_first): their start waits
//       until all do. Whatever else happens in Loading or Ready before that, or kFirstLimit, is Idle: the workers are
//       started by exec, and what is to be said about the zygote is said when it is made again
//
// Standbys that a round has not used end when the next one runs: they wait in its control group.
//
// clang-format on
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/job.h"
#include "rendezvous/common/exit_status.h"

namespace ddprun::agent {

namespace standby {

// ---- events

struct RoundBegins {};  // its workers are about to be started
struct RoundRuns {};    // they were
struct WorkersStep {};  // all of this node have begun their loops of steps
struct TimerFired {
  bool are_workers_starting = false;  // one waits for the other ranks to join
  std::string why_no_zygote = {};     // empty: the program can be one, as far as this is asked
};
struct ZygoteHeld {};  // it waits before the program's first line
struct ZygoteReady {
  std::vector<std::string> left_out = {};  // sentences
};
struct ZygoteUnfit {
  std::string module;  // that is to blame; empty: it is not known
  std::string why;
};
struct ZygoteEnded {
  ExitStatus status;
};
struct CannotStart {  // the zygote
  std::string why;
};
struct StandbyWaits {};
struct StandbyTaken {};  // it was given a rank
struct StandbyLost {     // it has ended by itself
  bool has_waited = true;
};
struct StartedAnew {   // a worker that had been a standby
  std::string module;  // that is to blame: LoadModules has it, or the zygote found it; may be empty
  std::string why;
};
struct ProgramChanged {  // since the zygote was started
  std::string file;
};
struct JobOver {};

using Event = std::variant<RoundBegins, RoundRuns, WorkersStep, TimerFired, ZygoteHeld, ZygoteReady,
                           ZygoteUnfit, ZygoteEnded, CannotStart, StandbyWaits, StandbyTaken,
                           StandbyLost, StartedAnew, ProgramChanged, JobOver>;

// ---- actions

struct ArmTimer {  // replaces the one that is armed
  std::chrono::milliseconds after{};
  bool operator==(const ArmTimer&) const = default;
};
struct DisarmTimer {
  bool operator==(const DisarmTimer&) const = default;
};
struct StartTrial {
  bool operator==(const StartTrial&) const = default;
};
struct StartZygote {
  bool operator==(const StartZygote&) const = default;
};
struct LoadModules {
  std::vector<std::string> names;
  std::vector<std::string> left_out = {};  // though the zygote would load them; "*": only `names`
  bool operator==(const LoadModules&) const = default;
};
struct ForkStandby {
  bool operator==(const ForkStandby&) const = default;
};
struct EndZygote {  // ZygoteEnded does not follow, except in Trying
  bool operator==(const EndZygote&) const = default;
};
struct EndStandbys {  // StandbyLost does not follow
  bool operator==(const EndStandbys&) const = default;
};
struct Tell {  // the user: that standbys wait, or why there are none
  std::string sentence;
  bool is_bad = false;
  bool operator==(const Tell&) const = default;
};

using Action = std::variant<ArmTimer, DisarmTimer, StartTrial, StartZygote, LoadModules,
                            ForkStandby, EndZygote, EndStandbys, Tell>;

// ---- limits

// A job's first seconds are its own; doubled while its workers are still joining.
inline constexpr std::chrono::milliseconds kSettle{3'000};
inline constexpr std::chrono::milliseconds kSettleMax{60'000};
inline constexpr std::chrono::milliseconds kSettleInSteps{1'000};
inline constexpr std::chrono::milliseconds kRefill{200};  // after a round's start
inline constexpr std::chrono::milliseconds kTrialLimit{20'000};
inline constexpr std::chrono::milliseconds kLoadLimit{
    300'000};  // from a cold disk, beside busy workers
inline constexpr std::chrono::milliseconds kFirstLimit{30'000};
inline constexpr int kKillsMax = 3;

class Core {
 public:
  explicit Core(StandbySpec spec);

  std::vector<Action> step(const Event& event);

  int waiting() const { return waiting_; }
  int wanted() const { return spec_.wanted; }
  // The workers of this round are to come from standbys that do not wait yet.
  bool delays_start() const { return delays_start_; }
  // None waits yet, and one will, as far as this is known. Of Python: a program of worker_lib starts as soon.
  bool is_one_coming() const;
  // Modules that no zygote loads any more.
  const std::vector<std::string>& left_out() const { return left_out_; }
  // Why none waits, or will; empty: they wait, or are being made.
  const std::string& why_none() const { return why_none_; }

 private:
  using Out = std::vector<Action>;
  enum class State { kIdle, kTrying, kLoading, kReady, kOff };

  void on(Out& out, const RoundBegins&);
  void on(Out& out, const RoundRuns&);
  void on(Out& out, const WorkersStep&);
  void on(Out& out, const TimerFired& fired);
  void on(Out& out, const ZygoteHeld&);
  void on(Out& out, const ZygoteReady& ready);
  void on(Out& out, const ZygoteUnfit& unfit);
  void on(Out& out, const ZygoteEnded& ended);
  void on(Out& out, const CannotStart& cannot);
  void on(Out& out, const StandbyWaits&);
  void on(Out& out, const StandbyTaken&);
  void on(Out& out, const StandbyLost& lost);
  void on(Out& out, const StartedAnew& anew);
  void on(Out& out, const ProgramChanged& changed);
  void on(Out& out, const JobOver&);

  void try_python(Out& out);
  void start_late(Out& out);
  void start_without(Out& out);
  void look_in(Out& out, std::chrono::milliseconds settle);
  void look_later(Out& out, const TimerFired& fired);
  void end_standbys(Out& out);
  void fork_missing(Out& out);
  bool leave_out(const std::string& module);
  void load_less(Out& out, const std::string& module, const std::string& why);
  void start_zygote(Out& out);
  void turn_off(Out& out, const std::string& why);
  const char* what_they_load() const { return spec_.is_program ? "libraries" : "modules"; }

  StandbySpec spec_;
  State state_ = State::kIdle;
  std::vector<std::string> modules_;   // that the next zygote loads
  std::vector<std::string> left_out_;  // and does not, though it would
  bool has_begun_ = false;             // the first round
  bool delays_start_ = false;          // its
  std::string why_none_;
  std::chrono::milliseconds settle_ = kSettle;
  bool looks_ = false;     // in Idle: a timer is armed
  bool was_held_ = false;  // the zygote of Trying
  int waiting_ = 0;
  int coming_ = 0;  // were asked for and do not wait yet
  int lost_ = 0;    // in this round
  int kills_ = 0;
  bool was_told_ = false;      // that they wait
  bool was_told_why_ = false;  // there is no zygote yet
};

}  // namespace standby

}  // namespace ddprun::agent
