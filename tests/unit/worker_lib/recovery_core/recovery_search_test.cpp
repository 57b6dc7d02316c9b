// Trainings of two and three ranks, searched exhaustively: each rank is a loop of calls and steps that is decided by
// recovery_core, with a mirror; up to two deaths, each at any point (also in the middle of a write into the mirror), and
// every order in which ranks hear of them, meet, and take the donor's state. The agent is reduced to what a rank sees of
// it: a dead rank is replaced at once, and the next generation begins. Each step must be made exactly once on every
// rank, and each call must give what it gave to the other ranks.
//
// A death ends a process in the middle of what it does; nothing else does, so a transition is all that a rank does until
// it waits for others or looks for a new generation, or a part of that and its death.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "worker_lib/recovery_core/recovery_core.h"

namespace ddprun::recovery {
namespace {

constexpr int kGarbage = -1;

struct Scenario {
  const char* name;
  int ranks = 2;
  int steps = 2;  // the first one is committed on all ranks: before that, the agent restarts them
  int calls = 1;  // before each step: the first waits for all ranks, the second for rank 0 alone
  int deaths = 1;
  int mortals = 4;  // the first ranks, which may die
  Outcome (*core)(const State&, const Event&) = &step;
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
struct Died {};

// The states of two steps, as the mirror has them: see worker_lib/process/mirror.h.
struct Memory {
  struct Slot {
    int step = kGarbage;
    int own = kGarbage;
  };
  Slot slots[2][2];  // by the step's parity; entry, effect

  Slot& at(std::int64_t step, Moment moment) {
    return slots[step & 1][moment == Moment::kEntry ? 0 : 1];
  }
  std::optional<int> read(std::int64_t step, Moment moment) {
    const Slot& slot = at(step, moment);
    return slot.step == step ? std::optional(slot.own) : std::nullopt;
  }
};

enum class Waits { kNot, kCall, kStep, kMeeting, kState, kDone };

struct Process {
  State core;
  Waits waits = Waits::kNot;
  int step = 0;  // which its loop comes to, or is in
  int call = 0;
  bool is_in_step = false;
  bool needs_state = false;
  int model = 0;  // steps that it has: equal on all ranks
  int own = 0;    // batches that it has used: noted in the mirror
  std::vector<int> results;
  int generation = 0;
};

// What the ranks have given to each other in one generation, whether they live or not.
struct Groups {
  std::vector<std::vector<int>>
      given;  // by rank: its operations, in order; the first of all ranks meet, and so on
  std::vector<std::optional<Place>> places;
  bool is_shared = false;
  int model = 0;
  std::vector<int> results;
};

struct Trace {
  std::shared_ptr<const Trace> before;
  std::string what;
};

class World {
 public:
  explicit World(const Scenario& scenario) : scenario_(&scenario) {
    const auto ranks = static_cast<std::size_t>(scenario.ranks);
    mirrors_.resize(ranks);
    begin_generation();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      Process& process = processes_.emplace_back();
      process.core = Between{.committed = 1};
      process.step = process.model = process.own = 1;
      mirrors_[rank].at(0, Moment::kEntry) = {.step = 0, .own = 0};
      mirrors_[rank].at(0, Moment::kEffect) = {.step = 0, .own = 1};
    }
  }

  void each_next(const std::function<void(World&&)>& visit) const {
    if (is_over_) return;
    bool goes_on = false;
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      for (const bool is_interrupted : {false, true}) {
        if (!can_go_on(rank, is_interrupted)) continue;
        goes_on = true;
        const int points = visit_after(rank, is_interrupted, kEndless, visit);
        for (int point = 0; may_die(rank) && point < points; ++point) {
          visit_after(rank, is_interrupted, point, visit);
        }
      }
      if (may_die(rank)) {
        World world = *this;
        world.die(rank);
        visit(std::move(world));
      }
    }
    if (!goes_on) check_end();
  }

  std::uint64_t hash() const {
    std::string key;
    const auto add = [&](auto... numbers) { (key.append(as_bytes(numbers)), ...); };
    add(wanted_, deaths_, is_over_);
    int oldest = wanted_;
    for (const Process& each : processes_) {
      if (each.waits != Waits::kDone) oldest = std::min(oldest, each.generation);
      add(each.core.index());
      std::visit([&](const auto& state) { add_state(add, state); }, each.core);
      add(each.waits, each.step, each.call, each.is_in_step, each.needs_state, each.model, each.own,
          each.generation, each.results.size());
      for (const int result : each.results) add(result);
    }
    for (const Memory& mirror : mirrors_) {
      for (const auto& of_step : mirror.slots) {
        for (const Memory::Slot& slot : of_step) add(slot.step, slot.own);
      }
    }
    for (int number = oldest; number <= wanted_; ++number) {
      const Groups& groups = groups_[static_cast<std::size_t>(number)];
      add(groups.is_shared, groups.model, groups.results.size());
      for (const int result : groups.results) add(result);
      for (const auto& given : groups.given) {
        add(given.size());
        for (const int operation : given) add(operation);
      }
      for (const auto& place : groups.places) {
        add(place.has_value());
        if (place) add(place->holds, place->committed, place->calls, place->is_in_step);
      }
    }
    return std::hash<std::string_view>{}(key);
  }

  std::string trace() const {
    std::vector<std::string> lines;
    for (const Trace* each = trace_.get(); each != nullptr; each = each->before.get()) {
      lines.push_back(each->what);
    }
    std::string text;
    for (auto line = lines.rbegin(); line != lines.rend(); ++line) text += "  " + *line + "\n";
    return text;
  }

 private:
  static constexpr int kEndless = 1'000'000;

  template <typename Number>
  static std::string as_bytes(const Number& number) {
    const auto value = static_cast<std::int8_t>(number);
    return std::string(1, static_cast<char>(value));
  }
  template <typename Add, typename State>
  static void add_state(const Add& add, const State& state) {
    if constexpr (requires { state.committed; }) add(state.committed);
    if constexpr (requires { state.calls; }) add(state.calls);
    if constexpr (requires { state.made; }) add(state.made, state.replays);
    if constexpr (requires { state.is_one_step_before; }) add(state.is_one_step_before);
    if constexpr (requires { state.at; })
      add(state.at.committed, state.at.calls, state.at.is_in_step);
    if constexpr (requires { state.where; }) {
      add(state.where.index());
      std::visit([&](const auto& where) { add_state(add, where); }, state.where);
    }
  }

  void note(std::size_t rank, const char* what) {
    trace_ = std::make_shared<const Trace>(Trace{
        trace_, "rank " + std::to_string(rank) + " " + what + ", generation " +
                    std::to_string(processes_[rank].generation) + " of " + std::to_string(wanted_) +
                    ", step " + std::to_string(processes_[rank].step)});
  }
  void require(bool holds, const std::string& what) const {
    if (!holds) throw Violation(what + ", after:\n" + trace());
  }

  // The points at which it might have died.
  int visit_after(std::size_t rank, bool is_interrupted, int dies_at,
                  const std::function<void(World&&)>& visit) const {
    World world = *this;
    world.fuse_ = dies_at;
    try {
      world.note(rank, is_interrupted ? "is interrupted" : "goes on");
      world.go_on(rank, is_interrupted);
    } catch (const Died&) {
      world.die(rank);
    } catch (const Bug& bug) {
      world.require(false, bug.what());
    }
    const int points = dies_at - world.fuse_;
    world.fuse_ = kEndless;
    visit(std::move(world));
    return points;
  }
  void may_die_here() {
    if (fuse_-- == 0) throw Died();
  }

  // ---- the agent

  void begin_generation() {
    const auto ranks = static_cast<std::size_t>(scenario_->ranks);
    groups_.push_back({std::vector<std::vector<int>>(ranks),
                       std::vector<std::optional<Place>>(ranks),
                       false,
                       kGarbage,
                       {}});
  }

  // Once a rank is through with its loop none is replaced.
  bool may_die(std::size_t rank) const {
    return deaths_ < scenario_->deaths && static_cast<int>(rank) < scenario_->mortals &&
           std::ranges::none_of(processes_,
                                [](const Process& each) { return each.waits == Waits::kDone; });
  }

  void die(std::size_t rank) {
    note(rank, "dies");
    deaths_ += 1;
    wanted_ += 1;
    begin_generation();
    Process& process = processes_[rank];
    process = Process();
    process.core = Prepared{};
    process.model = process.own = kGarbage;
    tell(rank, Joined{});
    tell(rank, Placed{});
    process.generation = wanted_;
  }

  // ---- what a rank waits for

  Groups& groups_of(const Process& process) {
    return groups_[static_cast<std::size_t>(process.generation)];
  }
  const Groups& groups_of(const Process& process) const {
    return groups_[static_cast<std::size_t>(process.generation)];
  }

  int operation(const Process& process) const {
    return process.step * (scenario_->calls + 1) + process.call;
  }

  // It waits for these to come to its call or step, which is the last that it has begun.
  bool is_awaited(std::size_t rank, std::size_t other) const {
    const Process& process = processes_[rank];
    return process.waits == Waits::kStep || process.call != 1 || (other == 0 && rank != 0);
  }
  bool have_given(std::size_t rank) const {
    const Groups& groups = groups_of(processes_[rank]);
    for (std::size_t other = 0; other < processes_.size(); ++other) {
      if (is_awaited(rank, other) && groups.given[other].size() < groups.given[rank].size()) {
        return false;
      }
    }
    return true;
  }
  void check_given(std::size_t rank) const {
    const Groups& groups = groups_of(processes_[rank]);
    const std::size_t last = groups.given[rank].size() - 1;
    for (std::size_t other = 0; other < processes_.size(); ++other) {
      require(!is_awaited(rank, other) || groups.given[other][last] == groups.given[rank][last],
              "two ranks make different calls together");
    }
  }

  bool can_go_on(std::size_t rank, bool is_interrupted) const {
    const Process& process = processes_[rank];
    if (is_interrupted) return process.waits != Waits::kDone && wanted_ > process.generation;
    const Groups& groups = groups_of(process);
    switch (process.waits) {
      case Waits::kNot:
        return true;
      case Waits::kCall:
      case Waits::kStep:
        return have_given(rank);
      case Waits::kMeeting:
        return std::ranges::all_of(groups.places,
                                   [](const auto& place) { return place.has_value(); });
      case Waits::kState:
        return groups.is_shared;
      case Waits::kDone:
        return false;
    }
    return false;
  }

  void go_on(std::size_t rank, bool is_interrupted) {
    Process& process = processes_[rank];
    if (is_interrupted) return regroup(rank);
    switch (process.waits) {
      case Waits::kNot:
        return run(rank);
      case Waits::kCall:
        check_given(rank);
        process.results.push_back(result_of(process));
        process.call += 1;
        process.waits = Waits::kNot;
        return tell(rank, CallOver{});
      case Waits::kStep:
        check_given(rank);
        process.model += 1;
        process.waits = Waits::kNot;
        tell(rank, StepOver{});
        return leave_step(rank);
      case Waits::kMeeting:
        return meet(rank);
      case Waits::kState:
        return take(rank);
      case Waits::kDone:
        return;
    }
  }

  // ---- the program, and the shell around it

  int result_of(const Process& process) const { return 10 * process.step + process.call + 1; }

  void run(std::size_t rank) {
    Process& process = processes_[rank];
    if (std::holds_alternative<Regrouping>(process.core)) return regroup(rank);
    if (process.step == scenario_->steps) {
      tell(rank, Left{});
      process.waits = Waits::kDone;
      return;
    }
    if (process.call == scenario_->calls) {
      tell(rank, StepBegins{});
      const bool is_made = std::holds_alternative<InStep>(process.core);
      return is_made ? make_step(rank) : leave_step(rank);
    }
    const Outcome outcome = ask(rank, CallBegins{});
    if (const auto* replayed = std::get_if<ReplayCall>(&outcome.actions.front())) {
      require(process.results.at(static_cast<std::size_t>(replayed->index)) == result_of(process),
              "a call is replayed with the result of another one");
      process.call += 1;
      return;
    }
    require(std::holds_alternative<MakeCall>(outcome.actions.front()), outcome.why);
    give(rank);
    process.waits = Waits::kCall;
  }

  void give(std::size_t rank) {
    may_die_here();
    groups_of(processes_[rank]).given[rank].push_back(operation(processes_[rank]));
  }

  void make_step(std::size_t rank) {
    Process& process = processes_[rank];
    const auto committed = std::get<InStep>(process.core).committed;
    require(committed == process.step, "a step is made that the rank does not count so");
    require(process.model == process.step, "a step is made on another model");
    require(process.own == process.step, "a step is made with another state of the rank");
    process.is_in_step = true;
    process.own += 1;
    write(rank, committed, Moment::kEffect);
    give(rank);
    process.waits = Waits::kStep;
  }

  void leave_step(std::size_t rank) {
    Process& process = processes_[rank];
    process.is_in_step = false;
    process.step += 1;
    process.call = 0;
    const auto* between = std::get_if<Between>(&process.core);
    require(between != nullptr && between->committed == process.step && between->made == 0,
            "a step is over, and the rank does not count it so");
    require(process.model == process.step, "a step is over, and the model has not made it");
    require(process.own == process.step,
            "a step is over, and the rank's state is not that after it");
  }

  void regroup(std::size_t rank) {
    Process& process = processes_[rank];
    tell(rank, Regroup{});
    process.generation = wanted_;
    may_die_here();
    groups_of(process).places[rank] = place_of(std::get<Regrouping>(process.core));
    process.waits = Waits::kMeeting;
  }

  void meet(std::size_t rank) {
    Met met{{}, static_cast<int>(rank)};
    for (const auto& place : groups_of(processes_[rank]).places) met.places.push_back(*place);
    const Outcome outcome = ask(rank, met);
    if (std::holds_alternative<Off>(outcome.state)) {
      require(std::ranges::none_of(met.places,
                                   [](const Place& place) { return place.holds == Holds::kWhole; }),
              "the ranks give up though one has the state: " + outcome.why);
      is_over_ = true;
      return;
    }
    processes_[rank].waits = Waits::kState;
    perform(rank, outcome);
  }

  void take(std::size_t rank) {
    Process& process = processes_[rank];
    const Groups& groups = groups_of(process);
    if (process.needs_state) process.model = groups.model;
    process.needs_state = false;
    process.results = groups.results;
    Memory& mirror = mirrors_[rank];
    const std::int64_t committed = std::get<Taking>(process.core).at.committed;
    const InMirror in_mirror{mirror.read(committed, Moment::kEntry).has_value(),
                             mirror.read(committed - 1, Moment::kEntry).has_value(),
                             mirror.read(committed - 1, Moment::kEffect).has_value()};
    const bool is_newcomer = std::holds_alternative<Newcomer>(std::get<Taking>(process.core).where);
    process.waits = Waits::kNot;
    tell(rank, Took{static_cast<std::int64_t>(process.results.size()), in_mirror});
    if (is_newcomer) {
      process.step = process.own;  // its loop leads from what was kept to the step
      process.call = scenario_->calls;
    } else if (std::holds_alternative<InStep>(process.core)) {
      make_step(rank);
    } else if (process.is_in_step) {
      leave_step(rank);
    }
  }

  Outcome ask(std::size_t rank, const Event& event) {
    Outcome outcome = scenario_->core(processes_[rank].core, event);
    processes_[rank].core = outcome.state;
    return outcome;
  }
  void tell(std::size_t rank, const Event& event) { perform(rank, ask(rank, event)); }

  void perform(std::size_t rank, const Outcome& outcome) {
    Process& process = processes_[rank];
    for (const Action& action : outcome.actions) {
      if (std::holds_alternative<ForgetCalls>(action)) {
        process.results.clear();
      } else if (const auto* entry = std::get_if<NoteEntry>(&action)) {
        write(rank, entry->step, Moment::kEntry);
      } else if (const auto* restore = std::get_if<Restore>(&action)) {
        const auto noted = mirrors_[rank].read(restore->step, restore->moment);
        require(noted.has_value(), "a state is restored that is not in the mirror");
        process.own = *noted;
      } else if (const auto* share = std::get_if<TakeState>(&action)) {
        take_part(rank, *share);
      } else if (const auto* regrouped = std::get_if<TellRegrouped>(&action)) {
        require(process.model == regrouped->committed, "a rank has regrouped without the state");
      } else if (std::holds_alternative<Fail>(action)) {
        require(false, "a rank fails: " + outcome.why);
      }
    }
  }

  void take_part(std::size_t rank, const TakeState& share) {
    Process& process = processes_[rank];
    process.needs_state = share.needs_it;
    if (share.needs_it) process.model = kGarbage;  // from the first byte on
    if (share.donor != static_cast<int>(rank)) return;
    require(process.model != kGarbage, "a rank gives a state that it does not have");
    may_die_here();
    Groups& groups = groups_of(process);
    groups.is_shared = true;
    groups.model = process.model;
    groups.results = process.results;
  }

  void write(std::size_t rank, std::int64_t step, Moment moment) {
    may_die_here();
    Memory::Slot& slot = mirrors_[rank].at(step, moment);
    slot = {};
    may_die_here();
    slot = {static_cast<int>(step), processes_[rank].own};
  }

  // ---- what must hold

  // A rank that is through with its loop does not regroup: then all are restarted.
  void check_end() const {
    const bool is_restarted = std::ranges::any_of(processes_, [&](const Process& each) {
      return each.waits == Waits::kDone && each.generation < wanted_;
    });
    if (is_restarted) return;
    for (const Process& each : processes_) {
      require(each.waits == Waits::kDone, "nothing happens any more, and a rank is not done");
    }
  }

  const Scenario* scenario_;
  std::vector<Process> processes_;
  std::vector<Memory> mirrors_;  // they outlive their processes
  std::vector<Groups> groups_;   // by generation
  int wanted_ = 0;
  int deaths_ = 0;
  int fuse_ = kEndless;
  bool is_over_ = false;  // no rank has the state any more
  std::shared_ptr<const Trace> trace_;
};

// How many worlds there are. Throws Violation.
std::size_t search(const Scenario& scenario) {
  constexpr std::size_t kMost = 20'000'000;
  std::unordered_set<std::uint64_t> known;
  std::vector<World> stack;
  stack.emplace_back(scenario);
  known.insert(stack.back().hash());
  while (!stack.empty()) {
    const World world = std::move(stack.back());
    stack.pop_back();
    world.each_next([&](World&& next) {
      if (known.insert(next.hash()).second) stack.push_back(std::move(next));
    });
    if (known.size() > kMost) throw Violation("the search does not end");
  }
  return known.size();
}

constexpr Scenario kTwoWithoutCalls{
    .name = "TwoRanksWithoutCalls", .steps = 4, .calls = 0, .deaths = 2};
constexpr Scenario kThree{.name = "ThreeRanksTwoDeaths", .ranks = 3, .steps = 3, .deaths = 2};
// With three, a rank that has lost its donor never finds another that is level with it.
constexpr Scenario kFour{
    .name = "FourRanksTwoDeaths", .ranks = 4, .steps = 3, .calls = 0, .deaths = 2, .mortals = 2};

const Scenario kScenarios[] = {
    {.name = "TwoRanksOneDeath", .steps = 5, .calls = 2},
    {.name = "TwoRanksTwoDeaths", .steps = 4, .calls = 2, .deaths = 2},
    {.name = "TwoRanksThreeDeaths", .steps = 3, .deaths = 3},
    kTwoWithoutCalls,
    {.name = "ThreeRanksOneDeath", .ranks = 3, .steps = 3, .calls = 2},
    kThree,
    kFour,
};

class RecoverySearch : public ::testing::TestWithParam<Scenario> {};

TEST_P(RecoverySearch, EachStepIsMadeOnceHoweverRanksDie) {
  try {
    std::cout << search(GetParam()) << " worlds\n";
  } catch (const Violation& violation) {
    FAIL() << violation.what();
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecoverySearch, ::testing::ValuesIn(kScenarios),
                         [](const auto& scenario) { return std::string(scenario.param.name); });

// ---- bugs, planted around the core: the search finds each

const Where* where_in(const State& state) {
  const auto* taking = std::get_if<Taking>(&state);
  return taking == nullptr ? nullptr : &taking->where;
}

template <typename Place>
const Place* taking_as(const State& state) {
  const Where* where = where_in(state);
  return where == nullptr ? nullptr : std::get_if<Place>(where);
}

// A rank whose donor is lost believes that its state is still its own.
Outcome forgets_that_its_state_is_incomplete(const State& state, const Event& event) {
  const auto* incomplete = taking_as<Incomplete>(state);
  if (incomplete == nullptr || !std::holds_alternative<Regroup>(event)) return step(state, event);
  return {Regrouping{InStep{incomplete->committed, incomplete->calls}}};
}

// A rank whose donor was lost, and that is level with the next one, believes that it was given the step.
Outcome believes_that_an_incomplete_rank_is_behind(const State& state, const Event& event) {
  Outcome outcome = step(state, event);
  const auto* incomplete = taking_as<Incomplete>(state);
  if (incomplete == nullptr || !std::holds_alternative<Took>(event)) return outcome;
  outcome.state = Between{incomplete->committed + 1, 0, 0};
  return outcome;
}

// A rank whose donor was lost keeps what it has if it is level with the next one.
Outcome takes_no_state_when_level(const State& state, const Event& event) {
  Outcome outcome = step(state, event);
  const auto* incomplete = taking_as<Incomplete>(outcome.state);
  if (incomplete == nullptr || !std::holds_alternative<Met>(event)) return outcome;
  if (incomplete->committed == std::get<Taking>(outcome.state).at.committed) {
    std::get<TakeState>(outcome.actions.front()).needs_it = false;
  }
  return outcome;
}

// The step that it was given is lost when the ranks regroup once more.
Outcome forgets_the_step_that_it_was_given(const State& state, const Event& event) {
  const auto* between = std::get_if<Between>(&state);
  if (between == nullptr || between->replays == 0 || !std::holds_alternative<Regroup>(event)) {
    return step(state, event);
  }
  return {Regrouping{InStep{between->committed - 1, between->made}}};
}

// A newcomer writes the entry of its step once more, and dies in the middle of that.
Outcome notes_the_entry_again(const State& state, const Event& event) {
  Outcome outcome = step(state, event);
  const auto* in_step = std::get_if<InStep>(&outcome.state);
  if (std::holds_alternative<Entering>(state) && in_step != nullptr) {
    outcome.actions.emplace_back(NoteEntry{in_step->committed});
  }
  return outcome;
}

// A newcomer that finds the others in a step enters that step, whatever its mirror has.
Outcome enters_a_step_that_its_mirror_never_entered(const State& state, const Event& event) {
  Outcome outcome = step(state, event);
  const auto* entering = std::get_if<Entering>(&outcome.state);
  if (taking_as<Newcomer>(state) == nullptr || entering == nullptr ||
      std::get<Taking>(state).at.is_in_step == 0) {
    return outcome;
  }
  outcome.state = Entering{entering->committed, entering->calls, false};
  return outcome;
}

// A newcomer that skips the last step makes the calls since instead of replaying them.
Outcome replays_no_calls_after_the_skipped_step(const State& state, const Event& event) {
  Outcome outcome = step(state, event);
  if (!std::holds_alternative<Entering>(state) || !std::holds_alternative<StepBegins>(event)) {
    return outcome;
  }
  if (auto* between = std::get_if<Between>(&outcome.state)) between->replays = 0;
  return outcome;
}

// Calls that it had not replayed yet are forgotten when the ranks regroup once more.
Outcome forgets_replays(const State& state, const Event& event) {
  const auto* between = std::get_if<Between>(&state);
  if (between == nullptr || !std::holds_alternative<Regroup>(event)) return step(state, event);
  return {Regrouping{Between{between->committed, between->made + between->replays, 0}}};
}

// A step that is made again begins with what the lost one has left.
Outcome restores_nothing(const State& state, const Event& event) {
  Outcome outcome = step(state, event);
  std::erase_if(outcome.actions,
                [](const Action& action) { return std::holds_alternative<Restore>(action); });
  return outcome;
}

// A step is committed once more on a rank that makes it again after others had committed it.
Outcome makes_a_committed_step_again(const State& state, const Event& event) {
  const auto* taking = std::get_if<Taking>(&state);
  const auto* incomplete = taking_as<Incomplete>(state);
  if (incomplete == nullptr || !std::holds_alternative<Took>(event)) return step(state, event);
  return {InStep{taking->at.committed - 1, incomplete->calls},
          {Restore{taking->at.committed - 1, Moment::kEntry, true}}};
}

struct Planted {
  const char* name;
  Outcome (*core)(const State&, const Event&);
  const Scenario& scenario = kThree;
};
void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

const Planted kPlanted[] = {
    {"ForgetsThatItsStateIsIncomplete", forgets_that_its_state_is_incomplete},
    {"BelievesThatAnIncompleteRankIsBehind", believes_that_an_incomplete_rank_is_behind, kFour},
    {"TakesNoStateWhenLevel", takes_no_state_when_level, kFour},
    {"ForgetsTheStepThatItWasGiven", forgets_the_step_that_it_was_given},
    {"NotesTheEntryAgain", notes_the_entry_again, kTwoWithoutCalls},
    {"EntersAStepThatItsMirrorNeverEntered", enters_a_step_that_its_mirror_never_entered},
    {"ReplaysNoCallsAfterTheSkippedStep", replays_no_calls_after_the_skipped_step},
    {"ForgetsReplays", forgets_replays},
    {"RestoresNothing", restores_nothing},
    {"MakesACommittedStepAgain", makes_a_committed_step_again},
};

class RecoverySearchFinds : public ::testing::TestWithParam<Planted> {};

TEST_P(RecoverySearchFinds, APlantedBug) {
  Scenario scenario = GetParam().scenario;
  scenario.core = GetParam().core;
  EXPECT_THROW(search(scenario), Violation);
}

INSTANTIATE_TEST_SUITE_P(All, RecoverySearchFinds, ::testing::ValuesIn(kPlanted),
                         [](const auto& planted) { return std::string(planted.param.name); });

}  // namespace
}  // namespace ddprun::recovery
