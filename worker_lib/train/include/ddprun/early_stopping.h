// EarlyStopping: says when a metric has not improved for a number of evaluations. Numbers only; give
// it values that are equal on all ranks (a metric reduced over them) and it decides alike on all of
// them. Owned by the loop that evaluates; one thread.
//
//   ddprun::EarlyStopping stopping({.patience = 3});
//   for (...) if (stopping.add(accuracy)) break;
//
// The rule is that of Keras and Lightning: a value improves when it is better than the best one so
// far by more than min_delta; after `patience` values in a row that do not, it is over. A NaN never
// improves.
#pragma once

#include <optional>
#include <string>

#include "ddprun/better.h"
#include "ddprun/stateful.h"

namespace ddprun {

struct EarlyStoppingOptions {
  int patience = 1;  // at least 1
  double min_delta = 0;
  Better better = Better::kHigher;
};

class EarlyStopping : public Stateful {
 public:
  // Throws UsageError for a patience below 1 or a negative min_delta.
  explicit EarlyStopping(const EarlyStoppingOptions& options);

  // True when it is over; it stays so.
  bool add(double value);
  bool is_over() const { return without_improvement_ >= options_.patience; }
  // The last value that improved.
  std::optional<double> best() const { return best_; }

  std::string save_state() const override;
  void load_state(const std::string& state) override;

 private:
  EarlyStoppingOptions options_;
  std::optional<double> best_;
  int without_improvement_ = 0;
};

}  // namespace ddprun
