// GlooBackend: c10d's backend over Gloo, at the address from which this rank reaches the others, and with
// connections that can be closed. Made collectively; threads as c10d's.
#pragma once

#include <torch/types.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "worker_lib/c10d/process_group.h"

namespace ddprun {

class GlooBackend : public c10d::ProcessGroupGloo {
 public:
  // Connects all members within options.join_timeout.
  GlooBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
              const ProcessGroupOptions& options);

  // Peers which wait for this rank fail at once; of no use afterwards.
  void abort() override;
};

// Integers that Gloo does not know as wider ones, which wrap around alike when they are cut again: a
// copy that is to be written back. Others: the tensor itself.
torch::Tensor widened_for_gloo(const torch::Tensor& tensor);

}  // namespace ddprun
