// varied_training WAY: a short training over Gloo that gives its Recoverable its position only. Each WAY has more state, as
// loops of users have it. Rank 0 prints a hash of each rank's weights. It dies where a test says (death.h).
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/ddp.h"
#include "ddprun/lr_scheduler.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"
#include "tests/support/death.h"
#include "tests/support/end_quickly.h"

namespace ddprun::test {
namespace {

using torch::Tensor;
using torch::optim::AdamWOptions;

constexpr int kSteps = 24;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(8, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    last = register_module("last", torch::nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& inputs) {
    const Tensor hidden = torch::relu(norm(first(inputs)));
    death::reach("forward");
    return last(torch::dropout(hidden, 0.1, is_training()));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

std::shared_ptr<Net> make_net() {
  torch::manual_seed(1);
  return std::make_shared<Net>();
}

void multiply_rates(torch::optim::Optimizer& optimizer, double factor) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(group.options().get_lr() * factor);
  }
}

void train(Context& context, const std::string& way) {
  DistributedDataParallel<Net> model(make_net(), context);
  const Tensor scale =
      torch::ones({1}).requires_grad_();  // a loss's own parameter, as ArcFace has one
  std::vector<Tensor> parameters = model->parameters();
  if (way == "parameter_beside_the_model") parameters.push_back(scale);
  torch::optim::AdamW optimizer(parameters, AdamWOptions(0.01));
  std::optional<LRScheduler> schedule;
  if (way == "schedule_not_kept")
    schedule.emplace(optimizer, lr_scheduler::cosine_annealing_lr(40));
  Recoverable recoverable(context, model, optimizer);
  std::int64_t step = 0;
  recoverable.keep(step);
  torch::manual_seed(10 + static_cast<std::uint64_t>(context.rank()));
  recoverable.join();
  bool is_to_change = way == "one_element" && step > 0;  // this process has taken a place
  int counter = 0;                                       // is not kept
  while (step < kSteps) {
    death::at_step(step + 1);
    if (way == "rate_from_own_counter") {
      optimizer.param_groups()[0].options().set_lr(0.01 / (1 + counter));
    }
    if (way == "rate_decays_between_steps" && step % 3 == 0) multiply_rates(optimizer, 0.7);
    recoverable.step([&] {
      optimizer.zero_grad();
      if (way == "momentum_in_step") {
        auto& options = static_cast<AdamWOptions&>(optimizer.param_groups()[0].options());
        options.betas({std::get<0>(options.betas()) * 0.98, 0.99});
      }
      const Tensor targets = torch::ones({4, 1}) * scale;
      (model(torch::randn({4, 8})) - targets).square().mean().backward();
      if (scale.grad().defined()) context.all_reduce(scale.mutable_grad());
      optimizer.step();
      if (way == "rate_decays_in_step") multiply_rates(optimizer, 0.9);
      if (std::exchange(is_to_change, false)) {
        const torch::NoGradGuard no_grad;
        model->first->weight[3][5] += 1e-6;
      }
    });
    ++counter;
    ++step;
    if (schedule) schedule->step();
    death::reach("after_step");
  }
  std::string bytes;
  for (const Tensor& parameter : parameters) {
    bytes.append(static_cast<const char*>(parameter.const_data_ptr()), parameter.nbytes());
  }
  const auto hash = static_cast<std::int64_t>(std::hash<std::string>()(bytes));
  for (const std::int64_t each : context.all_gather(hash)) {
    if (context.is_main_process()) std::printf("weights %lx\n", each);
  }
}

}  // namespace
}  // namespace ddprun::test

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const int code = ddprun::run(
      argc, argv, [&](ddprun::Context& context) { ddprun::test::train(context, argv[1]); },
      {.backend = ddprun::Backend::kGloo});
  ddprun::test::end_quickly(code);
}
