// EvaluationMode: a module in evaluation mode and without gradients while this lives; afterwards each
// part of it as it was, since a program may have frozen some. One thread.
//   { const ddprun::EvaluationMode evaluation(*model); … }
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace ddprun {

class EvaluationMode {
 public:
  [[nodiscard("it lasts as long as this object: give it a name")]] explicit EvaluationMode(
      torch::nn::Module& module)
      : EvaluationMode(&module) {}
  // A null pointer: no gradients, and no module.
  [[nodiscard("it lasts as long as this object: give it a name")]] explicit EvaluationMode(
      torch::nn::Module* module) {
    if (module == nullptr) return;
    was_training_.emplace_back(module, module->is_training());
    for (const auto& part : module->modules(/*include_self=*/false)) {
      was_training_.emplace_back(part.get(), part->is_training());
    }
    module->eval();
  }
  ~EvaluationMode() {
    // Parents come first, and set their children too.
    for (const auto& [part, was_training] : was_training_) part->train(was_training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> was_training_;
  torch::NoGradGuard no_grad_;
};

}  // namespace ddprun
