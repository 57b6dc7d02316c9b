// Python's optimizers: SGD, Adam and AdamW that compute what torch.optim's classes compute, in the same
// order, with the same operators. A training with them has the same bits as in Python; with
// torch::optim's Adam and AdamW it has not. Each is a torch::optim::Optimizer, so whatever takes one
// (a Trainer, a Checkpointer, a GradScaler, an LRScheduler) takes these too.
//
//   namespace optim = ddprun::optim;
//   optim::AdamW optimizer(model.parameters(), optim::AdamWOptions(1e-3).fused(true));
//
// Options have Python's names and defaults; a parameter group may have its own
// (torch::optim::OptimizerParamGroup). Not offered: learning rates and betas that are tensors,
// `capturable`, `differentiable`. There are three ways to make a step:
//
//   foreach   fused    the way
//   none      none     foreach if every parameter with a gradient is on a GPU, else single tensors
//   true      not true foreach: one operator for the tensors of a device and type, where single tensors
//                      take one each; as much memory as the parameters have in between
//   not true  true     fused: one operator for the whole step of those tensors; floating point only
//   otherwise          single tensors
//   true      true     UsageError
//
// Each has Python's bits for that way. As Python's, foreach with `nesterov` and neither `weight_decay` nor
// `maximize` changes the gradients.
//
// The state of a parameter has the names and types of Python's state_dict(). `step` counts in float32, as
// in Python: beside the parameter with fused, else on the CPU.
//
// step(closure) calls the closure with gradients enabled and returns its loss. Throws UsageError, as the
// constructors do for impossible options, and leaves the group's parameters as they are: for sparse
// gradients (Adam, AdamW, fused; with weight_decay LibTorch refuses them), for options of another class, and
// for fused with what PyTorch's kernels compute wrongly: tensors with gaps, and SGD in half precision on the
// CPU. Where Python's fused operators are wrong for other strides of the gradient, or refuse a parameter that gets
// its first gradient later than others (SGD with momentum), these are right. One thread.
//
// Follows torch/optim/sgd.py, adam.py and adamw.py of PyTorch 2.11.
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <optional>
#include <tuple>
#include <vector>

namespace ddprun::optim {

struct SGDOptions : torch::optim::OptimizerCloneableOptions<SGDOptions> {
  SGDOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, momentum) = 0;
  TORCH_ARG(double, dampening) = 0;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, nesterov) = false;
  TORCH_ARG(bool, maximize) = false;
  TORCH_ARG(std::optional<bool>, foreach) = std::nullopt;
  TORCH_ARG(std::optional<bool>, fused) = std::nullopt;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// momentum_buffer() is undefined before the first step with momentum.
using torch::optim::SGDParamState;

class SGD : public torch::optim::Optimizer {
 public:
  explicit SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups,
               const SGDOptions& defaults = {});
  explicit SGD(std::vector<torch::Tensor> parameters, const SGDOptions& defaults = {})
      : SGD({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

struct AdamOptions : torch::optim::OptimizerCloneableOptions<AdamOptions> {
  using betas_t = std::tuple<double, double>;

  AdamOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, amsgrad) = false;
  TORCH_ARG(bool, maximize) = false;
  TORCH_ARG(std::optional<bool>, foreach) = std::nullopt;
  TORCH_ARG(std::optional<bool>, fused) = std::nullopt;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

struct AdamParamState : torch::optim::OptimizerCloneableParamState<AdamParamState> {
  TORCH_ARG(torch::Tensor, step);
  TORCH_ARG(torch::Tensor, exp_avg);
  TORCH_ARG(torch::Tensor, exp_avg_sq);
  TORCH_ARG(torch::Tensor, max_exp_avg_sq);  // undefined without amsgrad

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

class Adam : public torch::optim::Optimizer {
 public:
  explicit Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const AdamOptions& defaults = {});
  explicit Adam(std::vector<torch::Tensor> parameters, const AdamOptions& defaults = {})
      : Adam({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  // Decoupled: the weights decay by themselves (AdamW), not through the gradient.
  bool decoupled_weight_decay_ = false;
};

// AdamOptions with AdamW's own default.
struct AdamWOptions : AdamOptions {
  AdamWOptions(double lr = 1e-3) : AdamOptions(lr) { weight_decay(1e-2); }
};

class AdamW : public Adam {
 public:
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 const AdamOptions& defaults = AdamWOptions())
      : Adam(groups, defaults) {
    decoupled_weight_decay_ = true;
  }
  explicit AdamW(std::vector<torch::Tensor> parameters,
                 const AdamOptions& defaults = AdamWOptions())
      : AdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}
};

}  // namespace ddprun::optim
