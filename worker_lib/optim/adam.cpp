#include <ATen/ATen.h>
#include <torch/optim/serialize.h>

#include <utility>

#include "ddprun/optim.h"
#include "worker_lib/optim/adam_scalars.h"
#include "worker_lib/optim/step_way.h"

namespace ddprun::optim {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

template <typename Options, typename Visit>
void each_option(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
  visit("maximize", options.maximize());
  visit("foreach", options.foreach ());
  visit("fused", options.fused());
}

template <typename State, typename Visit>
void each_field(State& state, const Visit& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
}

void check(const AdamOptions& options) {
  const auto [beta1, beta2] = options.betas();
  check_number(options.lr() >= 0, "Invalid learning rate", options.lr(), "at least 0");
  check_number(options.eps() >= 0, "Invalid epsilon value", options.eps(), "at least 0");
  check_number(beta1 >= 0 && beta1 < 1, "Invalid beta parameter at index 0", beta1,
               "from 0 to below 1");
  check_number(beta2 >= 0 && beta2 < 1, "Invalid beta parameter at index 1", beta2,
               "from 0 to below 1");
  check_number(options.weight_decay() >= 0, "Invalid weight_decay value", options.weight_decay(),
               "at least 0");
  check_ways(options.foreach (), options.fused());
}

// Parameters of one kind with their gradients and states.
struct Batch {
  struct Kind {
    torch::Device device;
    torch::ScalarType type;
    bool operator==(const Kind&) const = default;
  };
  Kind kind;
  Tensors params = {}, grads = {}, exp_avgs = {}, exp_avg_sqs = {}, max_exp_avg_sqs = {},
          steps = {};
};

// The state of a parameter, begun in its first step.
AdamParamState& begun(AdamParamState& state, const Tensor& param, const AdamOptions& options) {
  const auto begin = [&](Tensor& tensor) {
    if (!tensor.defined()) tensor = at::zeros_like(param, at::MemoryFormat::Preserve);
  };
  begin(state.exp_avg());
  begin(state.exp_avg_sq());
  if (options.amsgrad()) begin(state.max_exp_avg_sq());
  // A kernel of a GPU reads it there; what a loop reads is on the CPU.
  const torch::Device place = options.fused().value_or(false) ? param.device() : torch::kCPU;
  Tensor& step = state.step();
  if (!step.defined()) {
    step = torch::zeros({}, torch::dtype(torch::kFloat32).device(place));
  } else if (step.device() != place || step.scalar_type() != torch::kFloat32) {
    step = step.to(place, torch::kFloat32);
  }
  return state;
}

// Of a step on the CPU; an operator for each would take longer than the sum.
double count(const Tensor& step) { return ++*step.mutable_data_ptr<float>(); }

AdamScalars scalars_of(const AdamOptions& options, double step) {
  const auto [beta1, beta2] = options.betas();
  return adam_scalars(options.lr(), beta1, beta2, step);
}

void view_as_real(Tensor& tensor) { tensor = at::view_as_real(tensor); }

void step_single_tensors(Batch& batch, const AdamOptions& options, bool is_decoupled) {
  const auto [beta1, beta2] = options.betas();
  for (std::size_t i = 0; i < batch.params.size(); ++i) {
    Tensor param = batch.params[i];
    Tensor grad = options.maximize() ? batch.grads[i].neg() : batch.grads[i];
    Tensor exp_avg = batch.exp_avgs[i];
    Tensor exp_avg_sq = batch.exp_avg_sqs[i];
    Tensor largest = options.amsgrad() ? batch.max_exp_avg_sqs[i] : Tensor();
    const auto scalars = scalars_of(options, count(batch.steps[i]));
    if (options.weight_decay() != 0) {
      if (is_decoupled) {
        multiply_(param, decay_factor(options.lr(), options.weight_decay()));
      } else {
        grad = grad.add(param, options.weight_decay());
      }
    }
    if (param.is_complex()) {
      for (Tensor* each : {&param, &grad, &exp_avg, &exp_avg_sq}) view_as_real(*each);
      if (options.amsgrad()) view_as_real(largest);
    }
    exp_avg.lerp_(grad, 1 - beta1);
    multiply_(exp_avg_sq, beta2);
    exp_avg_sq.addcmul_(grad, grad, 1 - beta2);
    if (options.amsgrad()) at::maximum_out(largest, largest, exp_avg_sq);
    const Tensor root = (options.amsgrad() ? largest : exp_avg_sq).sqrt();
    const Tensor denominator = (root / scalars.bias_correction2_sqrt).add_(options.eps());
    param.addcdiv_(exp_avg, denominator, -scalars.step_size);
  }
}

void step_foreach(Batch& batch, const AdamOptions& options, bool is_decoupled) {
  const auto [beta1, beta2] = options.betas();
  if (at::isComplexType(batch.kind.type)) {
    for (Tensors* each : {&batch.params, &batch.grads, &batch.exp_avgs, &batch.exp_avg_sqs,
                          &batch.max_exp_avg_sqs}) {
      std::for_each(each->begin(), each->end(), view_as_real);
    }
  }
  Tensors grads = options.maximize() ? at::_foreach_neg(batch.grads) : batch.grads;
  std::vector<at::Scalar> steps_negated, corrections;
  for (const Tensor& step : batch.steps) {
    const auto scalars = scalars_of(options, count(step));
    steps_negated.emplace_back(-scalars.step_size);
    corrections.emplace_back(scalars.bias_correction2_sqrt);
  }
  if (options.weight_decay() != 0) {
    if (is_decoupled) {
      at::_foreach_mul_(batch.params, decay_factor(options.lr(), options.weight_decay()));
    } else if (options.maximize()) {
      at::_foreach_add_(grads, batch.params, options.weight_decay());
    } else {
      grads = at::_foreach_add(grads, batch.params, options.weight_decay());
    }
  }
  at::_foreach_lerp_(batch.exp_avgs, grads, 1 - beta1);
  at::_foreach_mul_(batch.exp_avg_sqs, beta2);
  at::_foreach_addcmul_(batch.exp_avg_sqs, grads, grads, 1 - beta2);
  grads.clear();  // their memory serves the roots
  if (options.amsgrad()) at::_foreach_maximum_(batch.max_exp_avg_sqs, batch.exp_avg_sqs);
  const Tensors denominators =
      at::_foreach_sqrt(options.amsgrad() ? batch.max_exp_avg_sqs : batch.exp_avg_sqs);
  at::_foreach_div_(denominators, corrections);
  at::_foreach_add_(denominators, options.eps());
  at::_foreach_addcdiv_(batch.params, batch.exp_avgs, denominators, steps_negated);
}

void step_fused(Batch& batch, const AdamOptions& options, bool is_decoupled) {
  const auto betas = options.betas();
  if (batch.kind.device.is_cpu()) {
    std::for_each(batch.steps.begin(), batch.steps.end(), count);
  } else {
    at::_foreach_add_(batch.steps, 1);
  }
  const auto step = [&](const auto& fused) {
    fused(batch.params, batch.grads, batch.exp_avgs, batch.exp_avg_sqs, batch.max_exp_avg_sqs,
          batch.steps, options.lr(), std::get<0>(betas), std::get<1>(betas), options.weight_decay(),
          options.eps(), options.amsgrad(), options.maximize(), std::nullopt, std::nullopt);
  };
  is_decoupled ? step(at::_ops::_fused_adamw_::call) : step(at::_ops::_fused_adam_::call);
}

}  // namespace

Adam::Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
           const AdamOptions& defaults)
    : Optimizer(groups, std::make_unique<AdamOptions>(defaults)) {
  check(defaults);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    keep_options(param_groups()[i], groups[i]);
    check(options_of<AdamOptions>(param_groups()[i]));
  }
}

void Adam::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  keep_options(param_groups().back(), group);
}

Tensor Adam::step(LossClosure closure) {
  const Tensor loss = loss_of(closure);
  const torch::NoGradGuard no_grad;
  for (auto& group : param_groups()) {
    const auto& options = options_of<AdamOptions>(group);
    const bool is_fused = options.fused().value_or(false);
    std::vector<Batch> batches;
    for (const Tensor& param : group.params()) {
      if (!param.grad().defined()) continue;
      if (param.grad().is_sparse()) {
        throw UsageError(
            "Adam does not support sparse gradients: use SGD for this parameter, or a layer "
            "without sparse(true)");
      }
      const Tensor grad = is_fused ? gradient_for_fused(param) : param.grad();
      const auto& state = begun(state_in<AdamParamState>(state_, param), param, options);
      Batch& batch = batch_of<Batch>(batches, {{param.device(), param.scalar_type()}});
      batch.params.push_back(param);
      batch.grads.push_back(grad);
      batch.exp_avgs.push_back(state.exp_avg());
      batch.exp_avg_sqs.push_back(state.exp_avg_sq());
      if (options.amsgrad()) batch.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
      batch.steps.push_back(state.step());
    }
    const auto step = step_for(batches, options, &step_single_tensors, &step_foreach, &step_fused);
    for (Batch& batch : batches) {
      step(batch, options, decoupled_weight_decay_);
    }
  }
  return loss;
}

void Adam::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdamParamState, AdamOptions>(archive, *this);
}

void Adam::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdamParamState, AdamOptions>(archive, *this);
}

void AdamOptions::serialize(torch::serialize::InputArchive& archive) {
  each_option(*this, ArchiveReader{archive});
}
void AdamOptions::serialize(torch::serialize::OutputArchive& archive) const {
  each_option(*this, ArchiveWriter{archive});
}
void AdamParamState::serialize(torch::serialize::InputArchive& archive) {
  each_field(*this, ArchiveReader{archive});
}
void AdamParamState::serialize(torch::serialize::OutputArchive& archive) const {
  each_field(*this, ArchiveWriter{archive});
}

}  // namespace ddprun::optim
