#include "worker_lib/recovery_core/recovery_core.h"

#include <utility>

namespace ddprun::recovery {
namespace {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

[[noreturn]] void never(const char* what) { throw Bug(std::string("recovery_core: ") + what); }

void must(bool holds, const char* what) {
  if (!holds) never(what);
}

Outcome refuse(std::string why) { return {Off{}, {TellRefused{}}, std::move(why)}; }

Outcome give_up(std::string why) { return {Off{}, {Withdraw{}, Fail{}}, std::move(why)}; }

// ---- the loop

Outcome on(const State& state, const Joined& joined) {
  if (std::holds_alternative<SetUp>(state)) return {Between{.committed = joined.committed}};
  if (std::holds_alternative<Prepared>(state)) return {state, {TakePlace{}}};
  must(!std::holds_alternative<Regrouping>(state) && !std::holds_alternative<Taking>(state),
       "the set-up is over while the ranks regroup");
  return refuse("the program has more than one Recoverable at a time");
}

Outcome on(const State& state, const Placed&) {
  must(std::holds_alternative<Prepared>(state), "a process that is no standby was given a place");
  return {Regrouping{Newcomer{}}};
}

Outcome on(const State& state, const CallBegins& call) {
  if (std::holds_alternative<SetUp>(state)) return {state, {MakeCall{}}};
  if (std::holds_alternative<Prepared>(state)) return {state, {ReplaySetUpCall{}}};
  if (std::holds_alternative<Entering>(state)) {
    return {state,
            {Fail{}},
            std::string("this process took a rank's place, and its loop calls ") + call.name +
                " before its first step: make such calls in the set-up or after a step"};
  }
  const auto* between = std::get_if<Between>(&state);
  if (between == nullptr) never("a call begins that is not between two steps");
  if (between->replays == 0) return {state, {MakeCall{}}};
  return {Between{between->committed, between->made + 1, between->replays - 1},
          {ReplayCall{between->made}}};
}

Outcome on(const State& state, const CallOver&) {
  if (std::holds_alternative<SetUp>(state)) return {state};
  const auto* between = std::get_if<Between>(&state);
  if (between == nullptr) never("a call is over that is not between two steps");
  must(between->replays == 0, "a call was made whose result is known");
  return {Between{between->committed, between->made + 1, 0}};
}

Outcome on(const State& state, const StepBegins&) {
  if (const auto* entering = std::get_if<Entering>(&state)) {
    const std::int64_t committed = entering->committed;
    if (entering->is_one_step_before) {
      return {Between{committed, 0, entering->calls}, {Restore{committed - 1, Moment::kEffect}}};
    }
    return {InStep{committed, entering->calls}, {Restore{committed, Moment::kEntry}}};
  }
  const auto* between = std::get_if<Between>(&state);
  if (between == nullptr) never("a step begins that is not between two steps");
  if (between->replays > 0) {
    return {state,
            {Fail{.is_of_program = true}},
            "this process comes to its step without the calls that the other ranks have made "
            "before it: do all ranks make the same calls?"};
  }
  return {InStep{between->committed, between->made}, {NoteEntry{between->committed}}};
}

Outcome on(const State& state, const StepOver&) {
  const auto* in_step = std::get_if<InStep>(&state);
  if (in_step == nullptr) never("a step is over that has not begun");
  const std::int64_t committed = in_step->committed + 1;
  return {Between{committed, 0, 0}, {ForgetCalls{}, TellCommitted{committed}}};
}

Outcome on(const State& state, const StepThrew&) {
  must(std::holds_alternative<InStep>(state), "a step throws that has not begun");
  return {Off{}};
}

// ---- a rank was lost

Outcome on(const State& state, const Regroup& regroup) {
  const auto* in_step = std::get_if<InStep>(&state);
  if (in_step != nullptr && regroup.has_stepped) {
    return {
        Off{},
        {Fail{}},
        "a rank was lost in a call that follows the optimizer's step: such a step cannot be made "
        "again; make the call after the step of Recoverable, or after the block of a Python step"};
  }
  return std::visit(
      Overloaded{[](const Entering& where) { return Outcome{Regrouping{where}}; },
                 [](const Between& where) { return Outcome{Regrouping{where}}; },
                 [](const InStep& where) { return Outcome{Regrouping{where}}; },
                 [](const Regrouping& regrouping) { return Outcome{regrouping}; },
                 [](const Taking& taking) { return Outcome{Regrouping{taking.where}}; },
                 [](const auto&) -> Outcome { never("a rank regroups that is in no training"); }},
      state);
}

Outcome on(const State& state, const Met& met) {
  const auto* regrouping = std::get_if<Regrouping>(&state);
  if (regrouping == nullptr) never("ranks have met that do not regroup");
  const auto self = static_cast<std::size_t>(met.self);
  must(self < met.places.size() && met.places[self] == place_of(*regrouping),
       "this rank was told another place than its own");
  const auto decided = plan(met.places);
  if (const auto* none = std::get_if<NoPlan>(&decided)) return give_up(none->why);
  const auto& plan = std::get<Plan>(decided);
  const Role role = plan.roles[self];
  Where where = regrouping->where;
  if (role == Role::kBehind && !std::holds_alternative<Incomplete>(where)) {
    const auto* in_step = std::get_if<InStep>(&where);
    if (in_step == nullptr) never("a rank is behind that is in no step");
    where = Incomplete{in_step->committed, in_step->calls};
  }
  return {Taking{where, plan.at},
          {TakeState{.donor = plan.donor, .needs_it = role != Role::kLevel}}};
}

Outcome resume(const Newcomer&, const Place& at, const InMirror& mirror) {
  const EntryPoint entry = entry_point(at, mirror);
  if (entry == EntryPoint::kNowhere) {
    return give_up("the worker whose place this is has left no whole state of step " +
                   std::to_string(at.committed));
  }
  const bool is_one_step_before = entry == EntryPoint::kBeforeCalls;
  return {Entering{at.committed, at.calls, is_one_step_before},
          {TellRegrouped{at.committed},
           Restore{at.committed - (is_one_step_before ? 1 : 0), Moment::kEntry}}};
}

Outcome resume(const Entering& entering, const Place& at, const InMirror&) {
  must(entering.committed == at.committed, "a rank that has taken a place is behind");
  must(entering.calls <= at.calls, "the donor knows less than this rank");
  if (!entering.is_one_step_before && entering.calls < at.calls) {
    return give_up(
        "the other ranks have made calls before the step that this process, which took a rank's "
        "place, begins with: do all ranks make the same calls?");
  }
  return {Entering{at.committed, at.calls, entering.is_one_step_before},
          {TellRegrouped{at.committed}}};
}

Outcome resume(const Between& between, const Place& at, const InMirror&) {
  must(between.committed == at.committed, "a rank that is in no step is behind");
  must(between.made + between.replays <= at.calls, "the donor knows less than this rank");
  return {Between{at.committed, between.made, at.calls - between.made},
          {TellRegrouped{at.committed}}};
}

Outcome resume(const InStep& in_step, const Place& at, const InMirror&) {
  must(in_step.committed == at.committed, "a rank has kept a state that is behind");
  must(in_step.calls == at.calls, "ranks are in a step after different calls");
  return {in_step,
          {TellRegrouped{at.committed},
           Restore{at.committed, Moment::kEntry, /*with_replicated=*/true}}};
}

Outcome resume(const Incomplete& incomplete, const Place& at, const InMirror& mirror) {
  if (at.committed == incomplete.committed) {
    return resume(InStep{incomplete.committed, incomplete.calls}, at, mirror);
  }
  must(at.committed == incomplete.committed + 1, "the donor is not one step ahead");
  return {Between{at.committed, 0, at.calls},
          {TellRegrouped{at.committed}, TellCommitted{at.committed}}};
}

Outcome on(const State& state, const Took& took) {
  const auto* taking = std::get_if<Taking>(&state);
  if (taking == nullptr) never("a rank has taken a state that it does not wait for");
  must(took.calls == taking->at.calls, "the donor's results are not those of its calls");
  return std::visit([&](const auto& where) { return resume(where, taking->at, took.mirror); },
                    taking->where);
}

// ---- the end

Outcome on(const State& state, const Refused& refused) {
  if (!std::holds_alternative<Prepared>(state)) return refuse(refused.why);
  return {Off{.is_standby = true}, {TellRefused{}, Fail{}}, refused.why};
}

Outcome on(const State& state, const Left&) {
  return {Off{.is_standby = std::holds_alternative<Prepared>(state)}, {Withdraw{}}};
}

Outcome on(const State& state, const Ended&) {
  return {Off{.is_standby = std::holds_alternative<Prepared>(state)}};
}

// What a rank may still hear when recovery is off, which changes nothing.
bool is_ignored_when_off(const Event& event) {
  return !std::holds_alternative<Placed>(event) && !std::holds_alternative<CallBegins>(event) &&
         !std::holds_alternative<StepBegins>(event) && !std::holds_alternative<Regroup>(event) &&
         !std::holds_alternative<Met>(event) && !std::holds_alternative<Took>(event);
}

}  // namespace

Outcome step(const State& state, const Event& event) {
  if (std::holds_alternative<Off>(state) && is_ignored_when_off(event)) return {state};
  return std::visit([&](const auto& each) { return on(state, each); }, event);
}

Place place_of(const Regrouping& regrouping) {
  return std::visit(Overloaded{[](const Newcomer&) { return Place{.holds = Holds::kNothing}; },
                               [](const Entering& at) {
                                 return Place{Holds::kWhole, at.committed, at.calls, 0};
                               },
                               [](const Between& at) {
                                 return Place{Holds::kWhole, at.committed, at.made + at.replays, 0};
                               },
                               [](const InStep& at) {
                                 return Place{Holds::kWhole, at.committed, at.calls, 1};
                               },
                               [](const Incomplete& at) {
                                 return Place{Holds::kPart, at.committed, at.calls, 1};
                               }},
                    regrouping.where);
}

}  // namespace ddprun::recovery
