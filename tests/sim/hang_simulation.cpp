// Verdicts that ranks hang, some of them at once, and what the production core does about them: nodes answer late, in any
// order, or not at all, and tools that take stacks hold ranks for a while.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/core/hang_response_core.h"
#include "rendezvous/common/text/ranks.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/invariants.h"
#include "tests/sim/random.h"
#include "tests/sim/simulation.h"
#include "tests/sim/trace.h"

namespace ddprun::sim {
namespace {

using namespace std::chrono_literals;
namespace response = agent::hang_response;

constexpr CoreTime kEnd{10min};
constexpr int kRanksOfCase = 100;  // the ranks of case n are n * 100 and those that follow

class HangSimulation {
 public:
  HangSimulation(std::uint64_t seed, bool with_trace)
      : random_(seed), trace_(queue_, with_trace), core_(/*ends=*/true) {
    loss_percent_ = random_.chance(50) ? 0 : random_.number(1, 60);
    held_percent_ = random_.chance(50) ? 0 : random_.number(1, 60);
    ends_round_ = random_.chance(20);
  }

  Result run() {
    Result result;
    try {
      const int cases = random_.number(1, 5);
      for (int number = 1; number <= cases; ++number) {
        queue_.after(random_.chance(50) ? 0us : random_.time(0ms, 30s),
                     [this, number] { find(number); });
      }
      if (ends_round_) {
        queue_.after(random_.time(0ms, 60s), [this] {
          is_over_ = true;
          step(response::RoundOver{});
        });
      }
      while (queue_.run_next()) require(queue_.now() <= kEnd, "a verdict is followed for ever");
      require(open_.empty(), "what follows a verdict has stopped without an end");
    } catch (const Violation& violation) {
      result.violation = violation.what();
      trace_("VIOLATION: ", result.violation);
    }
    result.trace = trace_.text();
    result.events = queue_.count();
    return result;
  }

 private:
  void find(int number) {
    if (is_over_) return;
    rdzv::Hung hung;
    const int ranks = random_.number(1, 3);
    for (int i = 0; i < ranks; ++i) hung.ranks.push_back(number * kRanksOfCase + i);
    const response::CaseId id{static_cast<std::uint64_t>(++last_id_)};
    trace_("case ", last_id_, ": ", ranks_in_words(hung.ranks), " hang");
    open_[id].ranks = {hung.ranks.begin(), hung.ranks.end()};
    step(response::Found{id, hung});
  }

  void step(const response::Event& event) {
    is_warned_ = false;
    for (const response::Action& action : core_.step(event)) {
      std::visit([this](const auto& each) { perform(each); }, action);
    }
  }
  template <typename Event>
  void answer(CoreTime::duration most, Event event) {
    queue_.after(random_.time(0ms, std::chrono::duration_cast<std::chrono::microseconds>(most)),
                 [this, event = std::move(event)] { step(event); });
  }

  void perform(const response::TakeStacks& action) {
    require(!takes_stacks_, "debuggers run for two cases at once");
    takes_stacks_ = true;
    queue_.after(random_.time(1ms, 7s), [this, id = action.id] {
      takes_stacks_ = false;
      step(response::StacksTaken{id});
    });
  }
  void perform(const response::Report& action) {
    auto& its = at(action.id);
    require(!std::exchange(its.is_reported, true), "a verdict is reported twice");
    std::vector<std::vector<int>> culprits;
    for (const int rank : action.hung.ranks) culprits.push_back({rank});
    queue_.after(0us, [this, id = action.id, culprits = std::move(culprits)] {
      step(response::Reported{id, culprits});
    });
  }
  void perform(const response::ReportWait&) { require(false, "no wait was found"); }
  void perform(const response::Confirm& action) {
    require(at(action.id).is_reported, "ranks are killed before the report is made");
    const bool is_held = random_.chance(held_percent_);
    const bool is_so = !random_.chance(10);
    at(action.id).went_on |= !is_held && !is_so;
    at(action.id).is_confirmed |= !is_held && is_so;
    answer(100ms, response::Confirmed{action.id, is_held ? std::nullopt : std::optional(is_so)});
  }
  void perform(const response::End& action) {
    auto& its = at(action.id);
    require(its.is_confirmed, "ranks are killed that may have gone on");
    response::EndAnswered answered{action.id, {}, {}};
    for (const auto& ranks : action.ranks) {
      for (const int rank : ranks) {
        require(its.ranks.contains(rank), "a rank is killed that does not hang");
        if (random_.chance(loss_percent_)) continue;  // the question, or the answer
        if (random_.chance(10)) answered.refused.push_back({{rank}, "it is not to be"});
        answered.known.push_back(rank);
        its.settled.insert(rank);
      }
    }
    answer(1s, std::move(answered));
  }
  void perform(const response::Warn&) { is_warned_ = true; }
  void perform(const response::ArmTimer& action) {
    require(open_.contains(action.id), "a timer is armed for a case that is gone");
    queue_.after(action.after, [this, id = action.id] { step(response::TimerExpired{id}); });
  }
  void perform(const response::Forget& action) {
    const auto its = std::exchange(open_.at(action.id), {});
    open_.erase(action.id);
    if (is_over_ || its.settled == its.ranks) return;
    require(is_warned_, "a rank that hangs is forgotten without a word");
  }

  struct Case {
    std::set<int> ranks;
    std::set<int> settled;  // a node has answered for them
    bool is_reported = false;
    bool is_confirmed = false;
    bool went_on = false;
  };
  Case& at(response::CaseId id) {
    require(open_.contains(id), "something is done for a case that is gone");
    return open_.at(id);
  }

  EventQueue queue_;
  Random random_;
  Trace trace_;
  response::Core core_;
  int loss_percent_ = 0;
  int held_percent_ = 0;
  bool ends_round_ = false;
  bool is_over_ = false;
  bool takes_stacks_ = false;
  bool is_warned_ = false;  // in this step
  int last_id_ = 0;
  std::map<response::CaseId, Case> open_;
};

}  // namespace

Result simulate_hangs(std::uint64_t seed, bool with_trace) {
  return HangSimulation(seed, with_trace).run();
}

}  // namespace ddprun::sim
