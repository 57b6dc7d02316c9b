#include "worker_lib/optim/step_way.h"

#include <ATen/ScalarOps.h>

namespace ddprun::optim {

bool has_foreach_kernels(const torch::Device& device) {
  return device.is_cuda() || device.is_xpu() || device.is_mtia() || device.is_privateuseone();
}

void check_number(bool is_valid, const std::string& invalid, double number,
                  const std::string& limits) {
  if (is_valid) return;
  throw UsageError(c10::str(invalid, ": ", number, " (", limits, ")"));
}

void check_ways(std::optional<bool> foreach, std::optional<bool> fused) {
  if (!foreach.value_or(false) || !fused.value_or(false)) return;
  throw UsageError("`fused` and `foreach` cannot be `True` together: set one of them");
}

void multiply_(const torch::Tensor& tensor, double number) {
  tensor.mul_(at::native::wrapped_scalar_tensor(number));
}

torch::Tensor gradient_for_fused(const torch::Tensor& parameter) {
  const torch::Tensor& gradient = parameter.grad();
  if (gradient.is_sparse()) {
    throw UsageError("`fused=True` does not support sparse gradients: leave fused out");
  }
  if (!parameter.is_floating_point() || !parameter.is_non_overlapping_and_dense()) {
    throw UsageError(
        c10::str("`fused=True` requires all the params to be floating point Tensors without gaps, "
                 "but one is ",
                 parameter.dtype(), " of sizes ", parameter.sizes(), " and strides ",
                 parameter.strides(), ": give it a group of its own without fused"));
  }
  if (gradient.strides() == parameter.strides()) return gradient;
  return torch::empty_like(parameter).copy_(gradient);
}

torch::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  const torch::AutoGradMode enabled(true);
  return closure();
}

}  // namespace ddprun::optim
