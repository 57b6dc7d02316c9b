// History: what a training came to, epoch by epoch and evaluation by evaluation: what
// Trainer::fit() returns and callbacks look at. Equal on all ranks, and of a resumed run the same as
// of an uninterrupted one (but for the seconds). A value; nothing of Torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ddprun/metric_mode.h"

namespace ddprun {

using Metrics = std::map<std::string, double>;

struct EpochRecord {
  std::int64_t epoch = 0;  // from 0
  std::int64_t step = 0;   // optimizer steps since the beginning of the training, at its end
  double loss = 0;         // means over all samples of all ranks, while the weights were moving
  Metrics metrics;
  double learning_rate = 0;  // of the first parameter group, in its last step
  double seconds = 0;        // since the epoch began, or the run was resumed in it
};

struct EvaluationRecord {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  Metrics metrics;

  bool operator==(const EvaluationRecord&) const = default;
};

struct History {
  enum class Ending {
    kDone,          // all epochs or steps
    kEarlyStopped,  // the metric no longer improved
    kLeft,          // the job is to end early (Context::should_leave); a resumed run goes on
  };

  std::vector<EpochRecord> epochs;  // complete ones
  std::vector<EvaluationRecord> evaluations;
  Ending ending = Ending::kDone;

  // The evaluation whose `metric` is the best, the first of equals. None without evaluations that
  // have it.
  const EvaluationRecord* best(const std::string& metric, MetricMode mode = MetricMode::kMax) const;

  // All of it but the ending, exactly. from_state() throws UsageError for a text that is none.
  std::string to_state() const;
  static History from_state(const std::string& state);
};

}  // namespace ddprun
