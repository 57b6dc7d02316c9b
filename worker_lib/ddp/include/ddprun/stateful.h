// Stateful: something with a state of its own that a training continues with after an interruption
// (a learning-rate schedule, a gradient scaler, a reducer's layout of buckets). Checkpointer
// (checkpoint.h) keeps the states of the parts that it is given, each under a name, beside the
// model's and the optimizer's. Owned by whoever trains; one thread.
//
// A state is a short text of the part's own making, JSON as a rule; large tensors do not belong
// here.
#pragma once

#include <string>

namespace ddprun {

class Stateful {
 public:
  virtual ~Stateful() = default;

  virtual std::string save_state() const = 0;
  // Throws UsageError, and changes nothing, when `state` is not one of such a part.
  virtual void load_state(const std::string& state) = 0;

 protected:
  Stateful() = default;
  Stateful(const Stateful&) = default;
  Stateful& operator=(const Stateful&) = default;
};

}  // namespace ddprun
