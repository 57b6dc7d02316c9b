#include <ATen/ATen.h>
#include <torch/optim/serialize.h>

#include <utility>

#include "ddprun/optim.h"
#include "worker_lib/optim/step_way.h"

namespace ddprun::optim {
namespace {

using torch::Tensor;

template <typename Options, typename Visit>
void each_option(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
  visit("maximize", options.maximize());
  visit("foreach", options.foreach ());
  visit("fused", options.fused());
}

void check(const SGDOptions& options) {
  check_number(options.lr() >= 0, "Invalid learning rate", options.lr(), "at least 0");
  check_number(options.momentum() >= 0, "Invalid momentum value", options.momentum(), "at least 0");
  check_number(options.weight_decay() >= 0, "Invalid weight_decay value", options.weight_decay(),
               "at least 0");
  if (options.nesterov() && (options.momentum() <= 0 || options.dampening() != 0)) {
    throw UsageError("Nesterov momentum requires a momentum and zero dampening");
  }
  check_ways(options.foreach (), options.fused());
}

// Parameters of one kind with their gradients and, with momentum, their states.
struct Batch {
  struct Kind {
    torch::Device device;
    torch::ScalarType type;
    bool is_first_step;  // they have no momentum buffer yet
    bool operator==(const Kind&) const = default;
  };
  Kind kind;
  std::vector<Tensor> params = {}, grads = {}, buffers = {};
  std::vector<SGDParamState*> states = {};
  bool has_sparse = false;
};

void step_single_tensors(Batch& batch, const SGDOptions& options) {
  for (std::size_t i = 0; i < batch.params.size(); ++i) {
    const Tensor& param = batch.params[i];
    Tensor grad = options.maximize() ? batch.grads[i].neg() : batch.grads[i];
    if (options.weight_decay() != 0) grad = grad.add(param, options.weight_decay());
    if (options.momentum() != 0) {
      Tensor& buffer = batch.buffers[i];
      if (batch.kind.is_first_step) {
        buffer = grad.detach().clone();
      } else {
        multiply_(buffer, options.momentum());
        buffer.add_(grad, 1 - options.dampening());
      }
      grad = options.nesterov() ? grad.add(buffer, options.momentum()) : buffer;
    }
    param.add_(grad, -options.lr());
  }
}

void step_foreach(Batch& batch, const SGDOptions& options) {
  std::vector<Tensor>& buffers = batch.buffers;
  std::vector<Tensor> grads = options.maximize() ? at::_foreach_neg(batch.grads) : batch.grads;
  if (options.weight_decay() != 0) {
    if (options.maximize()) {
      at::_foreach_add_(grads, batch.params, options.weight_decay());
    } else {
      grads = at::_foreach_add(grads, batch.params, options.weight_decay());
    }
  }
  if (options.momentum() != 0) {
    if (batch.kind.is_first_step) {
      for (std::size_t i = 0; i < grads.size(); ++i) buffers[i] = grads[i].detach().clone();
    } else {
      at::_foreach_mul_(buffers, options.momentum());
      at::_foreach_add_(buffers, grads, 1 - options.dampening());
    }
    if (options.nesterov()) {
      at::_foreach_add_(grads, buffers, options.momentum());
    } else {
      grads = buffers;
    }
  }
  if (!batch.has_sparse) return at::_foreach_add_(batch.params, grads, -options.lr());
  for (std::size_t i = 0; i < grads.size(); ++i) batch.params[i].add_(grads[i], -options.lr());
}

void step_fused(Batch& batch, const SGDOptions& options) {
  if (options.momentum() != 0 && batch.kind.is_first_step) {
    for (std::size_t i = 0; i < batch.params.size(); ++i) {
      batch.buffers[i] = at::empty_like(batch.grads[i]);
    }
  }
  at::_fused_sgd_(batch.params, batch.grads, batch.buffers, options.weight_decay(),
                  options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                  options.maximize(), batch.kind.is_first_step);
}

}  // namespace

SGD::SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, const SGDOptions& defaults)
    : Optimizer(groups, std::make_unique<SGDOptions>(defaults)) {
  check(defaults);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    keep_options(param_groups()[i], groups[i]);
    check(options_of<SGDOptions>(param_groups()[i]));
  }
}

void SGD::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  keep_options(param_groups().back(), group);
}

Tensor SGD::step(LossClosure closure) {
  const Tensor loss = loss_of(closure);
  const torch::NoGradGuard no_grad;
  for (auto& group : param_groups()) {
    const auto& options = options_of<SGDOptions>(group);
    const bool is_fused = options.fused().value_or(false);
    const bool has_momentum = options.momentum() != 0;
    std::vector<Batch> batches;
    for (const Tensor& param : group.params()) {
      if (!param.grad().defined()) continue;
      const Tensor grad = is_fused ? gradient_for_fused(param) : param.grad();
      if (is_fused && param.is_cpu() && c10::isReducedFloatingType(param.scalar_type())) {
        throw UsageError(
            "PyTorch's fused SGD on the CPU does not change parameters in half precision: leave "
            "fused "
            "out, or keep them in float32");
      }
      auto* state = has_momentum ? &state_in<SGDParamState>(state_, param) : nullptr;
      const bool is_first_step = has_momentum && !state->momentum_buffer().defined();
      Batch& batch =
          batch_of<Batch>(batches, {{param.device(), param.scalar_type(), is_first_step}});
      batch.params.push_back(param);
      batch.grads.push_back(grad);
      batch.has_sparse = batch.has_sparse || grad.is_sparse();
      if (!has_momentum) continue;
      batch.states.push_back(state);
      batch.buffers.push_back(state->momentum_buffer());
    }
    const auto step = step_for(batches, options, &step_single_tensors, &step_foreach, &step_fused);
    for (Batch& batch : batches) {
      step(batch, options);
      if (!batch.kind.is_first_step) continue;
      for (std::size_t i = 0; i < batch.states.size(); ++i) {
        batch.states[i]->momentum_buffer(batch.buffers[i]);
      }
    }
  }
  return loss;
}

void SGD::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<SGDParamState, SGDOptions>(archive, *this);
}

void SGD::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<SGDParamState, SGDOptions>(archive, *this);
}

void SGDOptions::serialize(torch::serialize::InputArchive& archive) {
  each_option(*this, ArchiveReader{archive});
}
void SGDOptions::serialize(torch::serialize::OutputArchive& archive) const {
  each_option(*this, ArchiveWriter{archive});
}

}  // namespace ddprun::optim
