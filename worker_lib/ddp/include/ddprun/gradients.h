// What a training loop does with gradients between backward and the optimizer's step: clip them,
// clear them. Under DistributedDataParallel every rank's gradients are the average already, so every
// rank clips alike without speaking to the others. Parameters without a gradient are skipped. One
// thread; not collective.
//
//   loss.backward();
//   ddprun::clip_grad_norm_(model.parameters(), 1.0);
//   optimizer.step();
//   ddprun::zero_grad(model.parameters());
//
// Follows torch/nn/utils/clip_grad.py: the same operations, so the same bits (C++'s own
// torch::nn::utils::clip_grad_norm_ divides where Python multiplies by a reciprocal).
#pragma once

#include <torch/types.h>

#include <vector>

namespace ddprun {

// Scales all gradients by min(1, max_norm / (norm + 1e-6)), where norm is that of all of them as one
// vector; norm_type may be infinity. Returns the norm from before, as it is (NaN too: nothing is
// checked): one number on the gradients' device, which on a GPU nobody has waited for yet. 0 when
// there are no gradients.
torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm,
                              double norm_type = 2);

// Clamps every element to [-value, value].
void clip_grad_value_(const std::vector<torch::Tensor>& parameters, double value);

// Drops the gradients, as Python's zero_grad() does by default. Also where they are views into
// buckets (DdpOptions::gradient_as_bucket_view), which C++'s Optimizer::zero_grad() refuses: the
// next backward puts the views back.
void zero_grad(const std::vector<torch::Tensor>& parameters);

}  // namespace ddprun
