// SyncBatchNorm: BatchNorm1d/2d/3d whose mean and variance are those of all ranks' batches together:
// for batches that are small on each rank. The names in its state are BatchNorm's, so that weights
// pass from one to the other. On CPU and GPU (Python's works on GPU only), there by the same kernels of
// LibTorch as Python's.
//
//   struct Net : torch::nn::Module {
//     explicit Net(ddprun::Context& context)
//         : norm(register_module("norm", ddprun::SyncBatchNorm(16, context))) {}
//     ddprun::SyncBatchNorm norm;
//   };
//
// In training its forward and backward are collective: all ranks, the same layers in the same order,
// and not inside DistributedDataParallel::join(). Batches may be of different size, or empty. In
// evaluation it is BatchNorm. A gradient of its gradient is refused (a gradient penalty: what was
// added up over ranks is a constant there). The Context, or the smaller Group, must outlive it. A
// finished model is not converted, as in Python: a C++ module's members have types.
//
// Follows torch/nn/modules/batchnorm.py and torch/nn/modules/_functions.py. Equal to BatchNorm over
// the concatenated batch up to the rounding of a sum that is made in parts.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "ddprun/collectives.h"

namespace ddprun {

class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<2, SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(std::int64_t features, Group& group)
      : SyncBatchNormImpl(torch::nn::BatchNormOptions(features), group) {}
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm_options, Group& group)
      : BatchNormImplBase(norm_options), group_(&group) {}

  // [N, C] or [N, C, ...] to the same shape.
  torch::Tensor forward(const torch::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 private:
  void _check_input_dim(const torch::Tensor& input) override;
  double count_batch();

  Group* group_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace ddprun
