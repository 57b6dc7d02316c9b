// EarlyStopping: says when a metric has not improved for a number of evaluations, by the rule of Keras
// and Lightning: a value improves when it is better than the best one so far by more than min_delta;
// after `patience` values in a row that do not, it is over. A NaN never improves. Owned by the loop
// that evaluates; one thread. All ranks decide alike if they are given the same values (a metric
// reduced over them).
//
//   ddprun::EarlyStopping stopping({.patience = 3});
//   for (...) if (stopping.add(accuracy)) break;
#pragma once

#include <optional>
#include <string>

#include "ddprun/metric_mode.h"
#include "ddprun/stateful.h"

namespace ddprun {

struct EarlyStoppingOptions {
  int patience = 1;  // at least 1
  double min_delta = 0;
  MetricMode mode = MetricMode::kMax;
};

class EarlyStopping : public Stateful {
 public:
  // Throws UsageError for a patience below 1 or a negative min_delta.
  explicit EarlyStopping(const EarlyStoppingOptions& options);

  // True when it is over; it stays so.
  [[nodiscard("true: the training is over")]] bool add(double value);
  bool is_over() const { return without_improvement_ >= options_.patience; }
  // The last value that improved.
  std::optional<double> best() const { return best_; }

  std::string state_dict() const override;
  void load_state_dict(const std::string& state) override;

 private:
  EarlyStoppingOptions options_;
  std::optional<double> best_;
  int without_improvement_ = 0;
};

}  // namespace ddprun
