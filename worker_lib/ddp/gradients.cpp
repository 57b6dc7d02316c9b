#include "ddprun/gradients.h"

#include <algorithm>

#include "worker_lib/ddp/module_parameters.h"

namespace ddprun {
namespace {

// The dense tensors in which the gradients' values lie. A sparse gradient may hold several values
// for one element, which count as their sum. A parameter that modules share counts once.
std::vector<torch::Tensor> gradients_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : distinct_tensors(parameters)) {
    torch::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {
      gradient = gradient.coalesce();
      gradients.push_back(gradient._values());
    } else {
      gradients.push_back(gradient);
    }
  }
  return gradients;
}

}  // namespace

torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm,
                              double norm_type) {
  const torch::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return torch::zeros({});
  std::vector<torch::Tensor> norms = at::_foreach_norm(gradients, norm_type);
  for (torch::Tensor& norm : norms) norm = norm.to(norms.front().device());
  const torch::Tensor total = at::linalg_vector_norm(torch::stack(norms), norm_type);
  const torch::Tensor scale = ((total + 1e-6).reciprocal() * max_norm).clamp_max(1.0);
  const bool are_on_one_device = std::ranges::all_of(gradients, [&](const torch::Tensor& gradient) {
    return gradient.device() == scale.device();
  });
  if (are_on_one_device) {
    at::_foreach_mul_(gradients, scale);
  } else {
    for (const torch::Tensor& gradient : gradients) gradient.mul_(scale.to(gradient.device()));
  }
  return total;
}

void clip_grad_value_(const std::vector<torch::Tensor>& parameters, double value) {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& gradient : gradients_of(parameters)) gradient.clamp_(-value, value);
}

void zero_grad(const std::vector<torch::Tensor>& parameters) {
  for (const torch::Tensor& parameter : parameters) parameter.mutable_grad().reset();
}

}  // namespace ddprun
