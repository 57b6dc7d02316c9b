#include "ddprun/early_stopping.h"

#include "ddprun/error.h"
#include "worker_lib/checkpoint/state_text.h"

namespace ddprun {

constexpr auto kWhat = "early stopping";

EarlyStopping::EarlyStopping(const EarlyStoppingOptions& options) : options_(options) {
  if (options.patience < 1) {
    throw UsageError("early stopping needs a patience of at least one evaluation, not " +
                     std::to_string(options.patience));
  }
  if (!(options.min_delta >= 0)) {
    throw UsageError("early stopping: min_delta is " + std::to_string(options.min_delta) +
                     "; it must not be negative");
  }
}

bool EarlyStopping::add(double value) {
  if (is_over()) return true;
  if (is_better(value, best_, options_.mode, options_.min_delta)) {
    best_ = value;
    without_improvement_ = 0;
  } else {
    ++without_improvement_;
  }
  return is_over();
}

std::string EarlyStopping::state_dict() const {
  StateText state(kWhat);
  state.put("without_improvement", std::int64_t{without_improvement_});
  if (best_) state.put("best", *best_);
  return state.to_string();
}

void EarlyStopping::load_state_dict(const std::string& text) {
  const StateText state = StateText::parse(kWhat, text);
  const auto count = static_cast<int>(state.integer("without_improvement"));
  best_ = state.has("best") ? std::optional(state.number("best")) : std::nullopt;
  without_improvement_ = count;
}

}  // namespace ddprun
