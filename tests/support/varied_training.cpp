// varied_training WAY: a short training over Gloo that gives its Recoverable its position only. Each WAY has more state, as
// loops of users have it. Rank 0 prints a hash of each rank's weights. It dies where a test says (death.h).
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <algorithm>
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
  explicit Net(bool remembers_inputs) : remembers_(remembers_inputs) {
    first = register_module("first", torch::nn::Linear(8, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    last = register_module("last", torch::nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& inputs) {
    Tensor hidden = torch::relu(norm(first(inputs)));
    if (remembers_) {  // the last four batches, in another tensor each time
      batches = torch::cat({batches, inputs.mean(0, /*keepdim=*/true)});
      if (batches.size(0) > 4) batches = batches.narrow(0, 1, 4).clone();
      hidden = hidden + batches.mean(0);
    }
    death::reach("forward");
    return last(torch::dropout(hidden, 0.1, is_training()));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Tensor& batches = register_buffer("batches", torch::zeros({1, 8}));

 private:
  bool remembers_;
};

using Model = DistributedDataParallel<Net>;

// What a loop counts, for the way that gives it to run().
struct Loop {
  std::int64_t step = 0;
  std::vector<double> losses;
  template <typename Fields>
  void fields(Fields& field) {
    field(step, losses);
  }
};

void make_step(Loop& loop, Model& model, torch::optim::AdamW& optimizer, LRScheduler& schedule,
               const Tensor& targets) {
  optimizer.zero_grad();
  const Tensor loss = (model(torch::randn({4, 8})) - targets).square().mean();
  loop.losses.push_back(loss.item<double>());
  ++loop.step;
  schedule.step();  // so the rate is that of the next loss
  loss.backward();
  optimizer.step();
}

// A loop whose next step depends on all that the last ones have counted.
void train_with_a_struct(Context& context, Recoverable& recoverable, Model& model,
                         torch::optim::AdamW& optimizer) {
  Loop loop;
  LRScheduler schedule(optimizer, lr_scheduler::cosine_annealing_lr(40));
  recoverable.keep(loop, schedule);
  torch::manual_seed(10 + static_cast<std::uint64_t>(context.rank()));
  recoverable.join();
  while (loop.step < kSteps) {
    death::at_step(loop.step + 1);
    const double least = loop.losses.empty() ? 1 : *std::ranges::min_element(loop.losses);
    recoverable.run(loop, make_step, model, optimizer, schedule, torch::full({4, 1}, least));
    death::reach("after_step");
  }
}

// Each attempt at a step counts; load_state_dict() forgets to set half of it.
struct Halfway final : Stateful {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  std::string state_dict() const override {
    return std::to_string(steps) + " " + std::to_string(samples);
  }
  void load_state_dict(const std::string& state) override { steps = std::stoll(state); }
};

std::shared_ptr<Net> make_net(bool remembers_inputs) {
  torch::manual_seed(1);
  return std::make_shared<Net>(remembers_inputs);
}

void print_hashes(Context& context, const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) {
    bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  const auto hash = static_cast<std::int64_t>(std::hash<std::string>()(bytes));
  for (const std::int64_t each : context.all_gather(hash)) {
    if (context.is_main_process()) std::printf("weights %lx\n", each);
  }
}

void multiply_rates(torch::optim::Optimizer& optimizer, double factor) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(group.options().get_lr() * factor);
  }
}

void train(Context& context, const std::string& way) {
  Model model(make_net(way == "buffer_of_new_tensors"), context);
  const Tensor scale =
      torch::ones({1}).requires_grad_();  // a loss's own parameter, as ArcFace has one
  std::vector<Tensor> parameters = model->parameters();
  if (way == "parameter_beside_the_model") parameters.push_back(scale);
  torch::optim::AdamW optimizer(parameters, AdamWOptions(0.01));
  std::optional<LRScheduler> schedule;
  if (way == "schedule_not_kept")
    schedule.emplace(optimizer, lr_scheduler::cosine_annealing_lr(40));
  Recoverable recoverable(context, model, optimizer);
  if (way == "one_struct") {
    train_with_a_struct(context, recoverable, model, optimizer);
    return print_hashes(context, parameters);
  }
  std::int64_t step = 0;
  recoverable.keep(step);
  Halfway halfway;
  if (way == "part_restored_by_half") recoverable.keep(halfway);
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
      ++halfway.steps, halfway.samples += 4;
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
  if (way == "buffer_of_new_tensors") parameters.push_back(model->batches);
  print_hashes(context, parameters);
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
