// Communication hooks: how a bucket of gradients becomes its average over all ranks, in place of the
// plain all-reduce. Follows torch/distributed/algorithms/ddp_comm_hooks of PyTorch (default_hooks.py
// and powerSGD_hook.py): the same arithmetic in the same order, so the same bits.
//
//   ddprun::DistributedDataParallel model(net, context,
//                                         {.comm_hook = ddprun::bf16_compress_hook()});
//
// A hook is a value that is given to DdpOptions, the same one on all ranks; it is called by the
// thread that runs backward. Hooks average: with hooks of your own divide by the number of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace ddprun {

using GradientFuture = c10::intrusive_ptr<c10::ivalue::Future>;

// Called once a bucket's gradients (bucket.getBuffer(), one dimension, not yet divided) are there.
// The future's value is a list with one tensor of that shape: the average.
using CommHook = std::function<GradientFuture(c10d::GradBucket& bucket, c10d::ProcessGroup& group)>;

// As without a hook, but divided before the sum instead of while copying: the same bits.
CommHook allreduce_hook();
// Sends half precision: half the bytes; the sum is made in that precision too. (Not of sparse
// gradients with fp16: Torch cannot add those up.)
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();

// PowerSGD (Vogels et al., arXiv:1905.13727): every gradient matrix is sent as the product of two
// narrow ones. Biased, therefore what was lost is added to the next step's gradients. Sparse and
// complex gradients are sent as they are. Python's defaults.
struct PowerSgdOptions {
  std::int64_t matrix_approximation_rank = 1;  // columns of the narrow matrices
  // All-reduce before this step (counted from 0): early gradients suffer most. At least 2 with
  // error feedback or warm start, since buckets change their shape after the first step.
  std::int64_t start_power_sgd_iter = 1000;
  double min_compression_rate = 2;  // what would be sent / what is, or else it is sent as it is
  bool use_error_feedback = true;
  bool warm_start = true;  // begin from the last step's matrices
  // Added to each column's length: keeps a column of zeros from dividing by zero.
  double orthogonalization_epsilon = 0;
  std::uint32_t random_seed = 0;
  bool batch_tensors_with_same_shape = false;  // one batched product for matrices of equal shape
};

// Keeps its memory of errors and matrices to itself, for one model: a resumed run starts without.
// Throws UsageError for options that cannot work.
CommHook power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace ddprun
