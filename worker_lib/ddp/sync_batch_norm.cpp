#include "ddprun/sync_batch_norm.h"

#include <ATen/AccumulateType.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/nn/functional/batchnorm.h>

#include <optional>
#include <tuple>
#include <utility>

#include "worker_lib/c10d/torch_compat.h"

namespace ddprun {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// All but the channels, over which the statistics go.
std::vector<std::int64_t> reduced_dimensions(const Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t i = 2; i < input.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

// A value for each channel in a shape that multiplies `like`.
Tensor per_channel(const Tensor& values, const Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.size(0);
  return values.view(shape);
}

std::optional<Tensor> defined(const Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// A call that NCCL has queued whole gives nothing to wait for.
void wait(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) work->wait();
}

void sum_over_ranks(Tensor tensor, c10d::ProcessGroup& group) {
  std::vector<Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  wait(group.allreduce(tensors, options));
}

// [n] of each rank to [ranks, n].
Tensor of_all_ranks(Tensor own, c10d::ProcessGroup& group) {
  Tensor all = torch::empty({group.getSize(), own.size(0)}, own.options());
  Tensor flat = all.view(-1);
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  wait(compat::all_gather_single(group, flat, own, options));
  return all;
}

// What all ranks have added up is a constant to autograd, so a derivative of a backward would be wrong:
// another backward throws.
template <typename Derivative>
tensor_list without_second_derivative(const Derivative& derivative) {
  const bool may_be_derived_again = torch::GradMode::is_enabled();
  tensor_list gradients;
  {
    const torch::NoGradGuard no_grad;
    gradients = derivative();
  }
  if (!may_be_derived_again) return gradients;
  for (Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    const auto refusal = compat::make_node<torch::autograd::DelayedError>(
        "SyncBatchNorm has no second derivative: use BatchNorm where gradients of gradients are "
        "needed (a gradient penalty)",
        1);
    gradient = refusal->apply({gradient.detach().requires_grad_()}).front();
  }
  return gradients;
}

// ---- on the CPU, where LibTorch has no kernels for it

struct Statistics {
  Tensor mean, variance;  // biased, of all ranks' values
  Tensor count;           // of values in each channel, over all ranks: a double
};

// Each rank's mean and variance, weighted by its count (Chan's formula): the difference of the sum of
// squares and the squared sum would lose what is small beside the mean.
Statistics statistics_of_all(const Tensor& input, c10d::ProcessGroup& group) {
  const auto channels = input.size(1);
  const auto dimensions = reduced_dimensions(input);
  const auto type = at::toAccumulateType(input.scalar_type(), input.device().is_cuda());
  Tensor own = torch::zeros({2 * channels + 1}, input.options().dtype(type));
  if (input.numel() > 0) {
    const auto [variance, mean] =
        at::var_mean(input.to(type), dimensions, /*correction=*/0, /*keepdim=*/false);
    own.narrow(0, 0, channels).copy_(mean);
    own.narrow(0, channels, channels).copy_(variance);
    own[2 * channels].fill_(static_cast<double>(input.numel() / channels));
  }
  const Tensor all = of_all_ranks(own, group);
  const Tensor counts = all.narrow(1, 2 * channels, 1);
  const Tensor means = all.narrow(1, 0, channels);
  const Tensor variances = all.narrow(1, channels, channels);
  const Tensor count = counts.sum(torch::kFloat64);
  const Tensor mean = (means * counts).sum(0) / count;
  const Tensor variance = ((variances + (means - mean).square()) * counts).sum(0) / count;
  return {mean, variance, count};
}

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  // An undefined tensor among the arguments is refused unless it is an optional.
  static Tensor forward(AutogradContext* context, const Tensor& input,
                        const std::optional<Tensor>& its_weight,
                        const std::optional<Tensor>& its_bias, const Tensor& mean,
                        const Tensor& variance, const Tensor& count, double epsilon,
                        const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const Tensor weight = its_weight.value_or(Tensor()), bias = its_bias.value_or(Tensor());
    const Tensor inverse_deviation = (variance + epsilon).rsqrt();
    context->save_for_backward({input, weight, mean, inverse_deviation, count});
    context->saved_data["group"] = group;
    if (input.numel() == 0) return torch::empty_like(input);
    // All parameters of one type: the input's, or float beside a half precision's.
    const auto type = input.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    const auto typed = [type](const Tensor& tensor) {
      return tensor.defined() ? tensor.to(type) : tensor;
    };
    return at::batch_norm(input, typed(weight), typed(bias), typed(mean), typed(variance),
                          /*training=*/false, /*momentum=*/0, epsilon, /*cudnn_enabled=*/false);
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    return without_second_derivative([&] { return derivative(context, std::move(gradients)); });
  }

 private:
  static tensor_list derivative(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3],
                 &count = saved[4];
    const auto group = context->saved_data["group"].toCustomClass<c10d::ProcessGroup>();
    const auto channels = input.size(1);
    const auto type = mean.scalar_type();

    const Tensor output_gradient = gradients[0].to(type);
    const Tensor centered = input.to(type) - per_channel(mean, input);
    // The sums of dy and of dy (x - mean): this rank's give the gradients of bias and weight, which
    // DistributedDataParallel averages, and all ranks' together the input's.
    Tensor sums = torch::zeros({2, channels}, mean.options());
    if (input.numel() > 0) {
      const auto dimensions = reduced_dimensions(input);
      sums[0].copy_(output_gradient.sum(dimensions));
      sums[1].copy_((output_gradient * centered).sum(dimensions));
    }
    Tensor weight_gradient, bias_gradient;
    if (weight.defined()) {
      weight_gradient = (sums[1] * inverse).to(weight.scalar_type());
      bias_gradient = sums[0].to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
    Tensor input_gradient;
    if (context->needs_input_grad(0)) {
      sum_over_ranks(sums, *group);
      sums.div_(count);
      const Tensor scale = weight.defined() ? inverse * weight.to(type) : inverse;
      input_gradient = ((output_gradient - per_channel(sums[0], input) -
                         centered * per_channel(inverse.square() * sums[1], input)) *
                        per_channel(scale, input))
                           .to(input.scalar_type());
    }
    return {input_gradient, weight_gradient, bias_gradient, {}, {}, {}, {}, {}};
  }
};

// ---- on a GPU: LibTorch's kernels, as Python calls them

bool is_channels_last(const Tensor& tensor) {
  return (tensor.dim() == 4 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) ||
         (tensor.dim() == 5 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d));
}
Tensor for_kernels(const Tensor& tensor) {
  return is_channels_last(tensor) ? tensor : tensor.contiguous();
}

struct RunningStatistics {
  std::optional<Tensor> mean, variance;  // none: not tracked
  double factor = 0;                     // of the new ones
};

class FusedSyncBatchNormFunction : public torch::autograd::Function<FusedSyncBatchNormFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& its_input,
                        const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                        const RunningStatistics& running, double epsilon,
                        const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const Tensor input = for_kernels(its_input);
    const auto channels = input.size(1);
    const auto type = at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true);
    // An empty batch is a count so small that it vanishes beside the others', which are 1 at least: with
    // none the kernel divides by 0, and to leave it out the host would have to wait for the GPU.
    constexpr double kNothing = 1e-30;
    Tensor own = torch::empty({2 * channels + 1}, input.options().dtype(type));
    if (input.numel() > 0) {
      const auto [mean, inverse_deviation] = at::batch_norm_stats(input, epsilon);
      own.narrow(0, 0, channels).copy_(mean);
      own.narrow(0, channels, channels).copy_(inverse_deviation);
      own.narrow(0, 2 * channels, 1).fill_(static_cast<double>(input.numel() / channels));
    } else {
      own.narrow(0, 0, channels).zero_();
      own.narrow(0, channels, channels).fill_(1);
      own.narrow(0, 2 * channels, 1).fill_(kNothing);
    }
    const Tensor all = of_all_ranks(own, *group);
    Tensor counts = all.select(1, 2 * channels).contiguous();
    const Tensor whole_counts = counts.to(torch::kInt32);
    if (running.mean) counts = counts.to(running.mean->scalar_type());
    const auto [mean, inverse_deviation] = at::batch_norm_gather_stats_with_counts(
        input, all.narrow(1, 0, channels), all.narrow(1, channels, channels), running.mean,
        running.variance, running.factor, epsilon, counts);
    context->save_for_backward(
        {input, weight.value_or(Tensor()), mean, inverse_deviation, whole_counts});
    context->saved_data["group"] = group;
    if (input.numel() == 0) return torch::empty_like(input);
    return at::batch_norm_elemt(input, weight, bias, mean, inverse_deviation, epsilon);
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    return without_second_derivative([&] { return derivative(context, gradients[0]); });
  }

 private:
  static tensor_list derivative(AutogradContext* context, const Tensor& output_gradient) {
    const auto saved = context->get_saved_variables();
    const Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3],
                 &counts = saved[4];
    const auto group = context->saved_data["group"].toCustomClass<c10d::ProcessGroup>();
    const auto channels = input.size(1);
    const bool is_affine = weight.defined();
    const Tensor gradient = for_kernels(output_gradient);
    Tensor sums = torch::zeros({2 * channels}, mean.options());
    Tensor weight_gradient, bias_gradient;
    if (input.numel() > 0) {
      Tensor sum, sum_centered;
      std::tie(sum, sum_centered, weight_gradient, bias_gradient) =
          at::batch_norm_backward_reduce(gradient, input, mean, inverse, defined(weight),
                                         context->needs_input_grad(0), is_affine, is_affine);
      if (context->needs_input_grad(0)) sums = torch::cat({sum, sum_centered});
    } else if (is_affine) {
      weight_gradient = torch::zeros_like(weight);
      bias_gradient = torch::zeros_like(weight);
    }
    Tensor input_gradient;
    if (context->needs_input_grad(0)) {
      sum_over_ranks(sums, *group);
      input_gradient =
          input.numel() == 0
              ? torch::empty_like(input)
              : at::batch_norm_backward_elemt(
                    gradient, input, mean, inverse,
                    defined(is_affine ? weight.to(mean.scalar_type()) : weight),
                    sums.narrow(0, 0, channels), sums.narrow(0, channels, channels), counts);
    }
    return {input_gradient, weight_gradient, bias_gradient, {}, {}, {}};
  }
};

}  // namespace

// The share of this batch's statistics in the running ones.
double SyncBatchNormImpl::count_batch() {
  num_batches_tracked += 1;
  return options.momentum() ? *options.momentum() : 1.0 / num_batches_tracked.item<double>();
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  if (!is_training() || group_->size() == 1) return BatchNormImplBase::forward(input);
  _check_input_dim(input);
  const auto& group = group_->process_group();
  if (input.is_cuda()) {
    RunningStatistics running;
    if (options.track_running_stats()) running = {running_mean, running_var, count_batch()};
    return FusedSyncBatchNormFunction::apply(input, defined(weight), defined(bias), running,
                                             options.eps(), group);
  }
  Statistics all;
  {
    const torch::NoGradGuard no_grad;
    all = statistics_of_all(input, *group);
    // Two ranks with a value each are enough on a GPU, as in Python: to ask, the host would have to wait.
    if (all.count.item<double>() < 2) {
      throw UsageError(
          "SyncBatchNorm needs more than one value per channel over all ranks' batches to train");
    }
    if (options.track_running_stats()) {
      const double factor = count_batch();
      running_mean.mul_(1 - factor).add_(all.mean.to(running_mean.scalar_type()), factor);
      running_var.mul_(1 - factor)
          .add_((all.variance * (all.count / (all.count - 1))).to(running_var.scalar_type()),
                factor);
    }
  }
  return SyncBatchNormFunction::apply(input, defined(weight), defined(bias), all.mean, all.variance,
                                      all.count, options.eps(), group);
}

void SyncBatchNormImpl::_check_input_dim(const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2 && input.size(1) == options.num_features(), "SyncBatchNorm of ",
              options.num_features(), " features needs [N, ", options.num_features(),
              ", ...] and got ", input.sizes());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "ddprun::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps() << ")";
}

}  // namespace ddprun
