// The decisions of one rank in a training whose dead ranks are replaced in place (agent/README.md): a pure state
// machine. step() takes the state and what happened, and returns the next state, what the shell must do, in this order,
// and why, if it is a refusal or a failure. The shells: worker_lib/group/recovery.h, worker_lib/python/ddprun/recovery.py
// (by worker_lib/in_place/in_place.h), and the workers of the tests.
//
// clang-format off
//
//   SetUp ──Joined──▶ Between ──StepBegins──▶ InStep ──StepOver──▶ Between
//   Prepared ──Placed──▶ Regrouping ──Met──▶ Taking ──Took──▶ Entering, Between or InStep
//   Entering, Between, InStep, Regrouping, Taking ──Regroup──▶ Regrouping            any ──▶ Off
//
//   event \ state  SetUp        Prepared         Entering     Between        InStep       Regrouping   Taking      Off
//   Joined         Between      TakePlace        refuse (1)   refuse (1)     refuse (1)   -            -           ignore
//   Placed         -            Regrouping       -            -              -            -            -           -
//   CallBegins     MakeCall     ReplaySetUpCall  Fail (2)     ReplayCall or  -            -            -           -
//                                                             MakeCall (3)
//   CallOver       ignore       -                -            count          -            -            -           ignore
//   StepBegins     -            -                InStep or    InStep or      -            -            -           -
//                                                Between (4)  Fail (5)
//   StepOver       -            -                -            -              Between (6)  -            -           ignore
//   StepThrew      -            -                -            -              Off          -            -           ignore
//   Regroup        -            -                Regrouping   Regrouping     Regrouping   stays        Regrouping  -
//                                                                            or Off (7)
//   Met            -            -                -            -              -            Taking (8)   -           -
//   Took           -            -                -            -              -            -            (9)         -
//   Refused        refuse       refuse, Fail     refuse       refuse         refuse       refuse       refuse      ignore
//   Left           Withdraw     Withdraw         Withdraw     Withdraw       Withdraw     Withdraw     Withdraw    ignore
//   Ended          Off          Off              Off          Off            Off          Off          Off         ignore
//
//   -: never. A bug of the shell or of this file: step() throws Bug
//   refuse: TellRefused, Off. After Withdraw: Off
//   (1) the program has a second loop of steps
//   (2) a newcomer goes on at the entry of a step: it knows nothing of a call before it
//   (3) ReplayCall as long as the other ranks know the result of a call that this rank has not made; else MakeCall
//   (4) at the entry of the step that the other ranks make: Restore its entry, InStep. The entry is in the mirror and is
//       not written once more: if this rank died while it did that, the mirror might have no whole state left. One step
//       before: that step is committed, so its effect is restored, and all calls since are replayed: Between
//   (5) NoteEntry, InStep; Fail if this rank has not made the calls that the other ranks made before the step
//   (6) committed: ForgetCalls, TellCommitted
//   (7) Fail, Off after the optimizer's step: the step cannot be made again
//   (8) TakeState as plan() says (recovery_plan.h); no plan: Withdraw, Fail, Off
//   (9) each begins with TellRegrouped, except for Withdraw, Fail, Off:
//       Newcomer            Entering, by entry_point() of the mirror, and Restore; kNowhere: Fail
//       Entering            Entering; Fail if the other ranks have made more calls before its step
//       Between             Between; the calls that the other ranks have made meanwhile are replayed
//       InStep              InStep: Restore its entry, and the step is made again
//       Incomplete, and a   InStep, likewise
//         level donor
//       Incomplete, and a   Between: the step is committed (TellCommitted), and all calls since are replayed
//         donor one step
//         ahead
//
// clang-format on
//
// A rank whose state is overwritten is Incomplete until Took: if the donor is lost meanwhile, what it has is of no use,
// and it takes the state of another rank, be that level or one step ahead.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "worker_lib/recovery_core/recovery_plan.h"

namespace ddprun::recovery {

// ---- states. `committed` counts steps, `calls` those since the last commit whose results this rank knows.

struct SetUp {  // the process is a worker
  bool operator==(const SetUp&) const = default;
};
struct Prepared {  // a standby, until it takes the place of its rank
  bool operator==(const Prepared&) const = default;
};
struct Entering {  // it has taken a place and has the state; its loop has not come to a step
  std::int64_t committed = 0;
  std::int64_t calls = 0;
  bool is_one_step_before = false;  // it enters the last committed step, which it skips
  bool operator==(const Entering&) const = default;
};
struct Between {
  std::int64_t committed = 0;
  std::int64_t made = 0;     // calls, by this rank
  std::int64_t replays = 0;  // calls whose results it knows beyond these
  bool operator==(const Between&) const = default;
};
struct InStep {
  std::int64_t committed = 0;  // without this step
  std::int64_t calls = 0;
  bool operator==(const InStep&) const = default;
};

struct Newcomer {  // it has no state yet
  bool operator==(const Newcomer&) const = default;
};
struct Incomplete {  // in a step; its state is partly the donor's
  std::int64_t committed = 0;
  std::int64_t calls = 0;
  bool operator==(const Incomplete&) const = default;
};
// Where a rank was when the ranks regroup.
using Where = std::variant<Newcomer, Entering, Between, InStep, Incomplete>;

struct Regrouping {  // the groups are made, and the places compared
  Where where;
  bool operator==(const Regrouping&) const = default;
};
struct Taking {  // the donor gives its state to the ranks that need it
  Where where;
  Place at;  // the donor's
  bool operator==(const Taking&) const = default;
};
struct Off {
  bool is_standby = false;  // it never took a place
  bool operator==(const Off&) const = default;
};

using State = std::variant<SetUp, Prepared, Entering, Between, InStep, Regrouping, Taking, Off>;

// ---- events

struct Joined {                // the set-up is over
  std::int64_t committed = 0;  // steps of this training, by the same program before
};
struct Placed {};  // the agent has given this standby the place of its rank
// A call outside of a step that waits for other ranks.
struct CallBegins {
  const char* name = "";
};
struct CallOver {};
struct StepBegins {};
struct StepOver {};          // the program has made the step
struct StepThrew {};         // it throws, and no rank was lost
struct Regroup {             // a new generation begins
  bool has_stepped = false;  // the optimizer, in this step
};
struct Met {  // in the groups of the new generation
  std::vector<Place> places;
  int self = 0;
};
struct Took {  // every rank that needed the donor's state has it, as far as this rank knows
  std::int64_t calls = 0;  // since the last commit: the results came with the state
  InMirror mirror = {};    // for the donor's count of steps; only a newcomer's is looked at
};
struct Refused {  // the program cannot be recovered from here on
  std::string why;
};
struct Left {};   // the loop of steps is over, or this rank gives up
struct Ended {};  // there is no link to the agent any more

using Event = std::variant<Joined, Placed, CallBegins, CallOver, StepBegins, StepOver, StepThrew,
                           Regroup, Met, Took, Refused, Left, Ended>;

// ---- actions

enum class Moment { kEntry, kEffect };  // the states of a step in the mirror (mirror.h)

struct TakePlace {  // wait for it; Placed follows
  bool operator==(const TakePlace&) const = default;
};
struct MakeCall {
  bool operator==(const MakeCall&) const = default;
};
struct ReplaySetUpCall {  // the next one that the worker of this rank has noted
  bool operator==(const ReplaySetUpCall&) const = default;
};
struct ReplayCall {
  std::int64_t index = 0;  // among the calls since the last commit
  bool operator==(const ReplayCall&) const = default;
};
struct ForgetCalls {  // the results since the last commit
  bool operator==(const ForgetCalls&) const = default;
};
struct NoteEntry {  // the state of this rank, into the mirror
  std::int64_t step = 0;
  bool operator==(const NoteEntry&) const = default;
};
struct Restore {  // the state of this rank, from the mirror
  std::int64_t step = 0;
  Moment moment = Moment::kEntry;
  // What all ranks have the same of, too: this process noted it itself. A newcomer has it from the donor.
  bool with_replicated = false;
  bool operator==(const Restore&) const = default;
};
struct TakeState {  // collective; Took follows
  int donor = 0;
  bool needs_it = false;
  bool operator==(const TakeState&) const = default;
};
struct TellRegrouped {
  std::int64_t committed = 0;
  bool operator==(const TellRegrouped&) const = default;
};
struct TellCommitted {
  std::int64_t committed = 0;
  bool operator==(const TellCommitted&) const = default;
};
struct TellRefused {
  bool operator==(const TellRefused&) const = default;
};
struct Withdraw {  // this rank is not replaced in place any more
  bool operator==(const Withdraw&) const = default;
};
struct Fail {                  // throw
  bool is_of_program = false;  // it does not do what it did before, or what other ranks do
  bool operator==(const Fail&) const = default;
};

using Action =
    std::variant<TakePlace, MakeCall, ReplaySetUpCall, ReplayCall, ForgetCalls, NoteEntry, Restore,
                 TakeState, TellRegrouped, TellCommitted, TellRefused, Withdraw, Fail>;

struct Outcome {
  State state;
  std::vector<Action> actions = {};
  std::string why = {};  // a sentence: of TellRefused, Fail
};

class Bug : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

Outcome step(const State& state, const Event& event);

// What this rank says of itself to the others; they compute the same plan from it.
Place place_of(const Regrouping& regrouping);

}  // namespace ddprun::recovery
