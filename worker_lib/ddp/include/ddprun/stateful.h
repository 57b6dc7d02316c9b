// Stateful: a part of a training with a state that goes on after an interruption (a schedule, a
// gradient scaler, a reducer's layout of buckets), as torch.distributed.checkpoint's Stateful. A
// Checkpointer (checkpoint.h) keeps the states of the parts that are registered with it, each under a
// name. Owned by whoever trains; one thread.
#pragma once

#include <string>

namespace ddprun {

class Stateful {
 public:
  virtual ~Stateful() = default;

  // A short text of the part's own making, JSON as a rule; large tensors do not belong here.
  virtual std::string state_dict() const = 0;
  // Throws UsageError, and changes nothing, when `state` is not one of such a part.
  virtual void load_state_dict(const std::string& state) = 0;
};

}  // namespace ddprun
