// Decides about the standbys of this node. A standby has a slot: a blank one can take any rank at a restart; one for a rank
// has made the program's set-up, and takes the place of that worker when it dies (worker_abi/worker_link.h). A pure state
// machine: events in, actions out. The shell (agent/standby/standby_pool.h) performs them. A worker for whom no standby waits
// is started by exec, and without a standby for its rank all are restarted; so nothing here can stop a job, and every doubt
// ends in Off or None, with a sentence that says why.
//
// clang-format off
//
// The zygote, which forks the blank ones:
//
//   Idle ──RoundRuns, Settled──▶ Trying ──held──▶ Loading ──ready──▶ Ready
//     ▲                                                                │
//     └────────── the zygote was killed: until the next round ─────────┘        any ──▶ Off, for good
//
//   event \ state      Idle             Trying (3)            Loading                Ready               Off
//   RoundBegins        StartTrial (9)   ignore                ignore                 ignore              ignore
//   RoundRuns          timer            ignore                ignore                 EndBlanks, timer    ignore
//   AllCanRecover      timer (8)        ignore                ignore                 ignore              ignore
//   ZygoteTimer        StartTrial (1)   Off                   less, or Off (2)       ForkBlank           ignore
//   ZygoteHeld         ignore           EndZygote             LoadModules            ignore              ignore
//   ZygoteReady        ignore           ignore                ForkBlank              ignore              ignore
//   ZygoteUnfit        ignore           ignore                less, or Off (2)       ignore              ignore
//   ZygoteEnded        ignore           StartZygote, Off (2)  less, or Off (2)       Idle (4)            ignore
//   ZygoteCannotStart  ignore           Off                   Off                    ignore              ignore
//   Waits, blank       count            count                 count                  count               EndBlanks
//   Taken, blank       count            count                 count                  count, timer (7)    count
//   Lost, blank        count            count                 count                  count, timer (5)    count
//   StartedAnew        Off              Off                   Off                    Idle, or Off (6)    ignore
//   ProgramChanged     EndBlanks        Idle                  Idle                   Idle                ignore
//   JobOver            Off              Off                   Off                    Off                 ignore
//
//   (1) if the workers have joined each other, as far as this is known; else the timer again, for twice as long. Where
//       the program itself is the zygote there is no trial: a worker has said that it can be one, or the timer again
//   (2) without the module that is to blame; if none is known, or it is needed, with the first of the list alone (torch);
//       else Off. A process that was killed (SIGKILL) is no verdict: Idle; while it loads, at most kKillsMax times in a
//       row
//   (3) the same interpreter with an empty program. It shows that the zygote will be held: otherwise it would run the
//       user's program beside the workers
//   (4) the standbys that wait remain
//   (5) as often as there are blank standbys, in one round; then Off, if none waits: the zygote may be the process too many
//   (6) Idle, timer, if a module other than the first is to blame: the next zygote loads all but that module. Nothing
//       where it is left out already: each rank says the same
//   (7) it may have been taken in the middle of a round, for one that is made for a rank
//   (8) if one is armed, for Python: standbys for ranks are wanted now, and each would import what the zygote imports
//   (9) of the first round, if its workers shall come from the zygote (StandbySpec::starts_first): their start waits
//       until all do. Whatever else happens in Loading or Ready before that, or kFirstLimit, is Idle: the workers are
//       started by exec, and what is to be said about the zygote is said when it is made again
//
// Blank standbys that a round has not used end when the next one runs: they wait in its control group.
//
// Those for ranks, in one round:
//
//   Idle ──AllCanRecover──▶ Settling ──timer──▶ Making ──waits, of all──▶ Full          any ──▶ None, for this round
//                              ▲                  │                        │
//                              └── one is gone ───┴────────────────────────┘
//
//   event \ state      Idle    Settling       Making               Full          None     Off
//   RoundBegins,       Idle    EndForRanks    EndForRanks          EndForRanks   Idle     ignore
//   RoundOver
//   AllCanRecover      timer   ignore         ignore               ignore        ignore   ignore
//   WorkerCannot (15)  None    None           None                 None          ignore   ignore
//   RankTimer          ignore  Make, or       None: too late       ignore        ignore   ignore
//                              the timer (10)
//   Waits, for a rank  ignore  count (11)     Make the next, the   count         ignore   ignore
//                                             timer (14), or Full
//   StandbyCannot      ignore  None           None                 None          ignore   ignore
//   CannotMake         ignore  ignore         None                 ignore        ignore   ignore
//   Lost, not yet      ignore  ignore         None, or timer (12)  ignore        ignore   ignore
//     waiting
//   Lost, waiting      ignore  count          count                timer, or     ignore   ignore
//                              or None (13)   or None (13)         None (13)
//   Taken, for a rank  ignore  count          count                timer         ignore   ignore
//   JobOver            Off     EndForRanks    EndForRanks          EndForRanks   Off      ignore
//
//   EndForRanks leads to Idle, at JobOver to Off. None begins with it, and with a line that says why.
//   (10) while a replacement is under way: what is made would take processors from the workers; and as (14)
//   (11) none is being made: it said so twice
//   (12) SIGKILL is no verdict (memory, or somebody): at most kKillsMax times in a row
//   (13) at most as often as there are ranks, and kLostMax times, in one round: what waits and ends by itself is no use
//   (14) while a blank standby is about to wait, from which it is made, at most kForkLimit: without one it imports all
//        that the zygote imports, and keeps that in memory of its own; and while its worker has not said what it takes of
//        its GPU, which decides how far this standby is prepared (gpu_room.h)
//   (15) if it says so for the whole job, RoundBegins and RoundOver lead to None, too
//
// clang-format on
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/core/gpu_room.h"
#include "agent/job.h"
#include "rendezvous/common/exit_status.h"

namespace ddprun::agent {

namespace standby {

// ---- events

struct RoundBegins {};  // its workers are about to be started
struct RoundRuns {};    // they were
struct RoundOver {};    // no worker is replaced from now on
struct AllCanRecover {
};  // all workers of this node have begun their loops of steps, and said that they can recover
struct WorkerCannot {  // one has said why it cannot
  std::string why;
  bool nor_later = false;  // nor can any worker of this job from here on
};
struct ZygoteTimer {
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
struct ZygoteCannotStart {
  std::string why;
};
struct RankTimer {
  bool is_replacing = false;  // a worker of the job has not committed its first step since
  std::vector<link::GpuUse> gpus =
      {};  // what the workers say, by local rank; empty: all are on the CPU
};
struct Waits {                         // that for a rank has made the set-up
  std::optional<int> local_rank = {};  // none: it is blank
};
struct Taken {                         // it is a worker now
  std::optional<int> local_rank = {};  // likewise
};
struct Lost {                          // it has ended by itself
  std::optional<int> local_rank = {};  // likewise
  bool has_waited = true;              // a blank one; those for ranks are known
  ExitStatus status = {};              // one for a rank
  std::string last_words = {};         // likewise: its last line of stderr
};
struct StandbyCannot {  // one for a rank has said why the program cannot recover
  std::string why;
};
struct CannotMake {  // the one for a rank that is being made
  std::string why;
};
struct StartedAnew {   // a worker that had been a blank standby
  std::string module;  // that is to blame: LoadModules has it, or the zygote found it; may be empty
  std::string why;
};
struct ProgramChanged {  // since the zygote was started
  std::string file;
};
struct JobOver {};

using Event = std::variant<RoundBegins, RoundRuns, RoundOver, AllCanRecover, WorkerCannot,
                           ZygoteTimer, ZygoteHeld, ZygoteReady, ZygoteUnfit, ZygoteEnded,
                           ZygoteCannotStart, RankTimer, Waits, Taken, Lost, StandbyCannot,
                           CannotMake, StartedAnew, ProgramChanged, JobOver>;

// ---- actions

enum class TimerOf { kZygote, kRanks };
struct ArmTimer {  // replaces the one that is armed
  std::chrono::milliseconds after{};
  TimerOf timer = TimerOf::kZygote;
  bool operator==(const ArmTimer&) const = default;
};
struct DisarmTimer {
  TimerOf timer = TimerOf::kZygote;
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
struct EndZygote {  // ZygoteEnded does not follow, except in Trying
  bool operator==(const EndZygote&) const = default;
};
struct ForkBlank {
  bool operator==(const ForkBlank&) const = default;
};
struct EndBlanks {  // Lost does not follow
  bool operator==(const EndBlanks&) const = default;
};
struct MakeForRank {
  int local_rank = 0;
  link::Preparation preparation = link::Preparation::kWhole;
  link::GpuUse gpu = {};
  bool operator==(const MakeForRank&) const = default;
};
struct EndForRanks {  // Lost does not follow
  bool operator==(const EndForRanks&) const = default;
};
struct Tell {  // the user: that standbys wait, or why there are none
  std::string sentence;
  bool is_warning = false;
  bool operator==(const Tell&) const = default;
};

using Action = std::variant<ArmTimer, DisarmTimer, StartTrial, StartZygote, LoadModules, EndZygote,
                            ForkBlank, EndBlanks, MakeForRank, EndForRanks, Tell>;

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
inline constexpr std::chrono::milliseconds kSetUpLimit{300'000};
inline constexpr std::chrono::milliseconds kForkLimit{10'000};
inline constexpr int kKillsMax = 3;
inline constexpr int kLostMax = 3;

class Core {
 public:
  Core(StandbySpec spec, int local_world_size);

  std::vector<Action> step(const Event& event);

  // ---- blank ones
  int waiting() const { return waiting_; }
  int wanted() const { return spec_.wanted; }
  // The workers of this round are to come from standbys that do not wait yet.
  bool delays_start() const { return delays_start_; }
  // None waits yet, and one will, as far as this is known. Of Python: a program of worker_lib starts as soon.
  bool is_blank_coming() const;
  // Modules that no zygote loads any more.
  const std::vector<std::string>& left_out() const { return left_out_; }
  // Why none waits, or will; empty: they wait, or are being made.
  const std::string& why_none() const { return why_none_; }

  // ---- those for ranks
  bool prepares() const { return ranks_.state != RanksState::kOff; }
  bool waits_for(int local_rank) const {
    return ranks_.waits.at(static_cast<std::size_t>(local_rank));
  }
  int waiting_for_ranks() const;
  // The one that waits for this rank makes its set-up when it has its place, where it waits for its predecessor's memory.
  bool is_unprepared(int local_rank) const {
    return ranks_.preparations.at(static_cast<std::size_t>(local_rank))
               .value_or(link::Preparation::kWhole) != link::Preparation::kWhole;
  }
  // Why there are none, in this round; empty: they wait, are being made, or it is not known yet.
  const std::string& why_none_for_ranks() const { return ranks_.why_none; }
  // Why they make their set-ups only when they take their places; empty: they have made them, or there are none.
  const std::string& why_unprepared() const { return ranks_.why_unprepared; }
  // There will be none in this job.
  bool are_ranks_given_up() const { return ranks_.is_given_up; }

 private:
  using Out = std::vector<Action>;
  enum class State { kIdle, kTrying, kLoading, kReady, kOff };
  enum class RanksState { kIdle, kSettling, kMaking, kFull, kNone, kOff };

  void on(Out& out, const RoundBegins&);
  void on(Out& out, const RoundRuns&);
  void on(Out& out, const RoundOver&) { end_round_of_ranks(out); }
  void on(Out& out, const AllCanRecover&);
  void on(Out& out, const WorkerCannot& cannot);
  void on(Out& out, const ZygoteTimer& fired);
  void on(Out& out, const ZygoteHeld&);
  void on(Out& out, const ZygoteReady& ready);
  void on(Out& out, const ZygoteUnfit& unfit);
  void on(Out& out, const ZygoteEnded& ended);
  void on(Out& out, const ZygoteCannotStart& cannot);
  void on(Out& out, const RankTimer& fired);
  void on(Out& out, const Waits& waits);
  void on(Out& out, const Taken& taken);
  void on(Out& out, const Lost& lost);
  void on(Out& out, const StandbyCannot& cannot);
  void on(Out& out, const CannotMake& cannot);
  void on(Out& out, const StartedAnew& anew);
  void on(Out& out, const ProgramChanged& changed);
  void on(Out& out, const JobOver&);

  // ---- blank ones
  void try_python(Out& out);
  void start_late(Out& out);
  void start_without(Out& out);
  void look_in(Out& out, std::chrono::milliseconds settle);
  void look_later(Out& out, const ZygoteTimer& fired);
  void blank_waits(Out& out);
  void blank_lost(Out& out, bool has_waited);
  void end_blanks(Out& out);
  void fork_missing(Out& out);
  bool leave_out(const std::string& module);
  void load_less(Out& out, const std::string& module, const std::string& why);
  void start_zygote(Out& out);
  void turn_off(Out& out, const std::string& why);
  const char* what_they_load() const { return spec_.is_program ? "libraries" : "modules"; }

  // ---- those for ranks
  bool is_making() const { return ranks_.state == RanksState::kMaking; }
  bool are_ranks_full() const { return ranks_.state == RanksState::kFull; }
  bool ranks_have_begun() const {
    return ranks_.state == RanksState::kSettling || is_making() || are_ranks_full();
  }
  void rank_waits(Out& out, int local_rank);
  void rank_lost(Out& out, int local_rank, const Lost& lost);
  void make_next(Out& out);
  void make_later(Out& out);
  void end_for_ranks(Out& out);
  void end_round_of_ranks(Out& out);
  void give_up(Out& out, const std::string& why);
  void tell_of_ranks(Out& out, const std::string& sentence);

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

  struct Ranks {
    RanksState state = RanksState::kOff;
    std::vector<bool> waits;  // by local rank, as the next two
    // Waits, or is made.
    std::vector<std::optional<link::Preparation>> preparations;
    std::vector<link::GpuUse>
        gpus;       // as each has said first in this round, before there were standbys
    int made = 0;   // the local rank of the one that is being made
    int kills = 0;  // in a row
    int lost = 0;   // in this round
    std::chrono::milliseconds delay{};  // the next one waits so long for a blank standby
    bool is_given_up = false;           // for the whole job
    std::string why_none;
    std::string why_unprepared;
    std::string told;  // the last sentence
  };
  Ranks ranks_;
};

}  // namespace standby

}  // namespace ddprun::agent
