#include "tests/support/linearizability.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace ddprun::rdzv::testing {
namespace {

using State = std::optional<std::string>;

// The state after the operation; nullopt if its result is impossible in this state.
std::optional<State> state_after(const Operation& operation, const State& state) {
  switch (operation.kind) {
    case Operation::Kind::kSet:
      return State(operation.value);
    case Operation::Kind::kAppend:
      return State(state.value_or("") + operation.value);
    case Operation::Kind::kGet:
      if (operation.result != state.value_or("")) return std::nullopt;
      return state;
    case Operation::Kind::kDelete:
      if (operation.result != (state ? "1" : "0")) return std::nullopt;
      return State();
    case Operation::Kind::kAdd: {
      const std::string sum = std::to_string((state ? std::stoll(*state) : 0) + operation.delta);
      if (operation.result != sum) return std::nullopt;
      return State(sum);
    }
    case Operation::Kind::kCompareSet: {
      const bool is_swapped = state ? *state == operation.expected : operation.expected.empty();
      const std::string& reply = is_swapped ? operation.value : state ? *state : operation.expected;
      if (operation.result != reply) return std::nullopt;
      return is_swapped ? State(operation.value) : state;
    }
  }
  return std::nullopt;
}

// By its result it has changed nothing, in whatever state. (A COMPARE_SET that answers what it was to
// write may have written it.)
bool is_read(const Operation& operation) {
  return operation.kind == Operation::Kind::kGet ||
         (operation.kind == Operation::Kind::kDelete && operation.result == "0") ||
         (operation.kind == Operation::Kind::kCompareSet && operation.result != operation.value);
}

// The calls and returns in order, as a list from which the operations done so far are removed.
class Search {
 public:
  explicit Search(const std::vector<Operation>& history)
      : history_(history), done_((history.size() + 63) / 64) {
    std::vector<std::pair<std::uint64_t, std::size_t>>
        times;  // 2i: the call of operation i, 2i+1: its return
    for (std::size_t i = 0; i < history.size(); ++i) {
      times.emplace_back(history[i].called, 2 * i);
      times.emplace_back(history[i].returned, 2 * i + 1);
    }
    std::sort(times.begin(), times.end());
    next_.resize(times.size() + 1);
    before_.resize(times.size() + 1);
    std::size_t last = head();
    for (const auto& [time, event] : times) {
      next_[last] = event;
      before_[event] = last;
      last = event;
    }
    next_[last] = head();
    before_[head()] = last;
  }

  bool run() {
    State state;
    std::size_t event = next_[head()];
    while (next_[head()] != head()) {
      // A read that is possible may come at once: whatever order is possible without it is possible
      // behind it, so no other is tried.
      if (const auto read = event == next_[head()] ? possible_read(state) : std::nullopt) {
        path_.push_back({*read, state, /*has_alternatives=*/false});
        flip(*read);
        take_out(*read);
        event = next_[head()];
      } else if (event % 2 == 0) {  // a call: may this operation be the next?
        const std::size_t operation = event / 2;
        const auto after = state_after(history_[operation], state);
        if (after && is_new(operation, *after)) {
          path_.push_back({operation, std::exchange(state, *after), /*has_alternatives=*/true});
          take_out(operation);
          event = next_[head()];
        } else {
          event = next_[event];
        }
      } else if (!go_back(state, event)) {  // a return: all that could come before it was tried
        return false;
      }
    }
    return true;
  }

 private:
  std::size_t head() const { return next_.size() - 1; }
  void flip(std::size_t operation) { done_[operation / 64] ^= std::uint64_t{1} << operation % 64; }

  // Among those that may be the next, one that has changed nothing.
  std::optional<std::size_t> possible_read(const State& state) const {
    for (std::size_t event = next_[head()]; event % 2 == 0; event = next_[event]) {
      const Operation& operation = history_[event / 2];
      if (is_read(operation) && state_after(operation, state)) return event / 2;
    }
    return std::nullopt;
  }

  // To the last choice that has alternatives.
  bool go_back(State& state, std::size_t& event) {
    while (!path_.empty()) {
      Step step = std::move(path_.back());
      path_.pop_back();
      state = std::move(step.earlier);
      flip(step.operation);
      put_back(step.operation);
      event = next_[2 * step.operation];
      if (step.has_alternatives) return true;
    }
    return false;
  }

  // Marks the operation as done, unless this state was reached before with the same set of
  // operations.
  bool is_new(std::size_t operation, const State& state) {
    flip(operation);
    std::uint64_t hash = std::hash<std::string>()(state.value_or("")) + state.has_value();
    for (const auto word : done_) hash = (hash ^ word) * 0x9e3779b97f4a7c15 + (hash >> 29);
    for (auto [at, end] = seen_.equal_range(hash); at != end; ++at) {
      if (at->second.first == done_ && at->second.second == state) {
        flip(operation);
        return false;
      }
    }
    seen_.emplace(hash, std::pair(done_, state));
    return true;
  }

  void take_out(std::size_t operation) {
    for (const std::size_t event : {2 * operation, 2 * operation + 1}) {
      next_[before_[event]] = next_[event];
      before_[next_[event]] = before_[event];
    }
  }

  void put_back(std::size_t operation) {
    for (const std::size_t event : {2 * operation + 1, 2 * operation}) {
      next_[before_[event]] = event;
      before_[next_[event]] = event;
    }
  }

  const std::vector<Operation>& history_;
  std::vector<std::uint64_t> done_;
  std::vector<std::size_t> next_, before_;
  struct Step {
    std::size_t operation;
    State earlier;
    bool has_alternatives;
  };
  std::vector<Step> path_;
  std::unordered_multimap<std::uint64_t, std::pair<std::vector<std::uint64_t>, State>> seen_;
};

}  // namespace

bool is_linearizable(const std::vector<Operation>& history) { return Search(history).run(); }

}  // namespace ddprun::rdzv::testing
