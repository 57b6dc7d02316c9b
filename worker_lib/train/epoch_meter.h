// EpochMeter: what a Trainer adds up in an epoch, of which the means over all ranks' samples are made.
// One thread of each rank; over_ranks() is collective.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "ddprun/context.h"
#include "ddprun/history.h"

namespace ddprun {

// A loss that was computed on a GPU stays there: reading it would wait for the GPU.
struct BatchLoss {
  explicit BatchLoss(const torch::Tensor& loss);
  double read() const { return on_gpu.defined() ? on_gpu.item<double>() : value; }

  torch::Tensor on_gpu;
  double value = 0;
};

// Each loss and metric times its number of samples.
struct EpochSums {
  double loss = 0;
  Metrics metrics;
  std::int64_t count = 0;  // samples
};

class EpochMeter {
 public:
  // `metrics`: means over the batch's `count` samples, as the loss is.
  void add(const BatchLoss& loss, const Metrics& metrics, std::int64_t count);
  // Which metrics there are is rank 0's to say.
  EpochSums over_ranks(Context& context) const;
  const EpochSums& own() const { return sums_; }  // of losses on the CPU
  void continue_from(EpochSums sums);

 private:
  EpochSums sums_;  // of this rank
  torch::Tensor loss_on_gpu_;
};

}  // namespace ddprun
