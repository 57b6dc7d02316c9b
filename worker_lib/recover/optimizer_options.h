// The options of an optimizer's parameter groups (learning rate, momentum, betas, …) as bytes, and as texts that ranks
// compare. All options of the optimizers whose state this library knows (checkpoint/state_arrays.h). Blocking, one thread.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>

#include "ddprun/serialize.h"
#include "worker_lib/ddp/model_comparison.h"

namespace ddprun {

// False: the options of a parameter group are of a class that is not known here.
bool are_options_known(torch::optim::Optimizer& optimizer);

// Some ten nanoseconds for each parameter group: this is done several times in each step.
void append_options(ByteWriter& writer, torch::optim::Optimizer& optimizer);

// The reverse. Throws UsageError when the bytes are of an optimizer that has other parameter groups.
void restore_options(ByteReader& reader, torch::optim::Optimizer& optimizer);

// {"option lr of parameter group 0", "0.1"}
ModelDescription described_options(torch::optim::Optimizer& optimizer);

}  // namespace ddprun
