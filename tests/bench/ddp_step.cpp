// One DDP training step, timed: the C++ half of the step-time benchmark; ddp_step.py (tests/compat)
// is the same program in Python. Run under a launcher with the same options; rank 0 prints one line
// of JSON:
//   {"program": "ddprun", "hidden": 256, "ranks": 2, "steps": 300, "median_us": 812.4, "loss":
//   0.0371846817}
// `loss` is the last step's, to all digits of a float: equal in both programs, or they did not do
// the same work.
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "ddprun/ddp.h"
#include "ddprun/run.h"

namespace {

constexpr int kInputs = 784;
constexpr int kClasses = 10;

struct Settings {
  int hidden = 256;
  int batch_size = 64;
  int warm_up = 50;
  int steps = 300;
};

struct Mlp : torch::nn::Module {
  explicit Mlp(int hidden) {
    // One layer per statement: they draw from the generator in this order.
    fc1 = register_module("fc1", torch::nn::Linear(kInputs, hidden));
    fc2 = register_module("fc2", torch::nn::Linear(hidden, hidden));
    fc3 = register_module("fc3", torch::nn::Linear(hidden, kClasses));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc3(torch::relu(fc2(torch::relu(fc1(x)))));
  }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr};
};

void measure(const Settings& settings, ddprun::Context& context) {
  torch::manual_seed(1);
  ddprun::DistributedDataParallel model(std::make_shared<Mlp>(settings.hidden), context);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  torch::manual_seed(static_cast<std::uint64_t>(100 + context.rank()));
  const torch::Tensor inputs = torch::randn({settings.batch_size, kInputs});
  const torch::Tensor targets = torch::randint(kClasses, {settings.batch_size}, torch::kInt64);

  std::vector<double> times;
  float last_loss = 0;
  for (int i = 0; i < settings.warm_up + settings.steps; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(model(inputs), targets);
    loss.backward();
    optimizer.step();
    const std::chrono::duration<double, std::micro> passed =
        std::chrono::steady_clock::now() - begun;
    if (i >= settings.warm_up) times.push_back(passed.count());
    last_loss = loss.item<float>();
  }
  if (!context.is_main_process()) return;
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  std::printf(
      "{\"program\": \"ddprun\", \"hidden\": %d, \"ranks\": %d, \"steps\": %d, \"median_us\": "
      "%.2f, "
      "\"loss\": %.9g}\n",
      settings.hidden, context.world_size(), settings.steps, times[times.size() / 2],
      static_cast<double>(last_loss));
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Times one DDP training step of an MLP.");
  app.add_option("--hidden", settings.hidden, "width")->check(CLI::PositiveNumber);
  app.add_option("--batch-size", settings.batch_size, "per rank")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", settings.warm_up, "steps not counted")->check(CLI::NonNegativeNumber);
  app.add_option("--steps", settings.steps, "steps counted")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { measure(settings, context); },
                     {.backend = ddprun::Backend::kGloo});
}
