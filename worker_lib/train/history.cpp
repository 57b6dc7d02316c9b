#include "ddprun/history.h"

#include <utility>

#include "worker_lib/checkpoint/state_text.h"

namespace ddprun {

constexpr auto kHistory = "a training's history";

const EvaluationRecord* History::best(const std::string& metric, MetricMode mode) const {
  const EvaluationRecord* best = nullptr;
  for (const EvaluationRecord& record : evaluations) {
    const auto found = record.metrics.find(metric);
    if (found == record.metrics.end()) continue;
    if (best == nullptr || is_better(found->second, best->metrics.at(metric), mode)) {
      best = &record;
    }
  }
  return best;
}

std::string History::to_state() const {
  StateText state(kHistory);
  state.put("epochs", static_cast<std::int64_t>(epochs.size()));
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    const EpochRecord& record = epochs[i];
    const std::string prefix = "epoch." + std::to_string(i) + ".";
    state.put(prefix + "epoch", record.epoch).put(prefix + "step", record.step);
    state.put(prefix + "loss", record.loss).put(prefix + "seconds", record.seconds);
    state.put(prefix + "learning_rate", record.learning_rate);
    state.put(prefix + "metrics", record.metrics);
  }
  state.put("evaluations", static_cast<std::int64_t>(evaluations.size()));
  for (std::size_t i = 0; i < evaluations.size(); ++i) {
    const EvaluationRecord& record = evaluations[i];
    const std::string prefix = "evaluation." + std::to_string(i) + ".";
    state.put(prefix + "epoch", record.epoch).put(prefix + "step", record.step);
    state.put(prefix + "metrics", record.metrics);
  }
  return state.to_string();
}

History History::from_state(const std::string& text) {
  const StateText state = StateText::parse(kHistory, text);
  History history;
  for (std::int64_t i = 0; i < state.integer("epochs"); ++i) {
    const std::string prefix = "epoch." + std::to_string(i) + ".";
    history.epochs.push_back({state.integer(prefix + "epoch"), state.integer(prefix + "step"),
                              state.number(prefix + "loss"), state.numbers(prefix + "metrics"),
                              state.number(prefix + "learning_rate"),
                              state.number(prefix + "seconds")});
  }
  for (std::int64_t i = 0; i < state.integer("evaluations"); ++i) {
    const std::string prefix = "evaluation." + std::to_string(i) + ".";
    history.evaluations.push_back({state.integer(prefix + "epoch"), state.integer(prefix + "step"),
                                   state.numbers(prefix + "metrics")});
  }
  return history;
}

}  // namespace ddprun
