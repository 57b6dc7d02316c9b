// recoverable_training BACKEND SETUP_SECONDS SETUP_MB PARAMETER_MB LOSS_FILE: trains for ever, and its ranks can be replaced in
// place. Its set-up takes so long and so much memory beside the model. The model is the CNN of the examples, or with
// PARAMETER_MB a single tensor of that size. Each rank notes its steps in LOSS_FILE.rankN as the example train does.
// Rank 0 prints once how long a memcpy of the model takes: {"memcpy_ms": 61.2}.
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ddprun/ddp.h"
#include "ddprun/error.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"
#include "tests/bench/timing.h"
#include "worker_lib/examples/fashion_net.h"

namespace {

using ddprun::bench::median;
using torch::Tensor;

using Clock = std::chrono::steady_clock;

struct Settings {
  ddprun::Backend backend;
  int setup_seconds;
  std::size_t setup_bytes;
  std::int64_t parameter_bytes;
  std::string loss_file;
};

// Its gradient has its size, and is zero but for ten numbers: a step computes next to nothing.
struct Large : torch::nn::Module {
  explicit Large(std::int64_t bytes) {
    weight = register_parameter("weight", torch::full({bytes / 4}, 0.5));
  }
  Tensor forward(const Tensor& inputs) { return weight.narrow(0, 0, 10) * inputs.sum(); }
  Tensor weight;
};

double memcpy_ms(std::size_t bytes) {
  std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  std::vector<double> took;
  for (int i = 0; i < 5; ++i) {
    const auto begun = Clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    took.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begun).count());
  }
  return median(took);
}

template <typename Module>
void train(ddprun::Context& context, std::shared_ptr<Module> net, const Settings& settings) {
  net->to(context.device());
  ddprun::DistributedDataParallel<Module> model(std::move(net), context);
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  std::int64_t step = 0;
  double loss_sum = 0;
  ddprun::Recoverable recoverable(context, model, optimizer);
  recoverable.keep(step, loss_sum);
  const Tensor inputs = torch::randn({64, 1, 28, 28}).to(context.device());
  const Tensor targets = torch::randint(10, {64}, torch::kInt64).to(context.device());
  const auto loss_of = [&] {
    const Tensor scores = model(inputs);
    return scores.dim() == 1 ? scores.sum() : torch::nn::functional::cross_entropy(scores, targets);
  };
  recoverable.join([&] { loss_of().backward(); });
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> losses(
      std::fopen((settings.loss_file + ".rank" + std::to_string(context.rank())).c_str(), "a"),
      &std::fclose);
  if (!losses) throw ddprun::UsageError("cannot write " + settings.loss_file);
  // A process that takes a rank's place comes to its step without calls of the group.
  do {
    recoverable.step([&] {
      optimizer.zero_grad();
      const Tensor loss = loss_of();
      loss_sum += loss.template item<double>();
      loss.backward();
      optimizer.step();
    });
    ++step;
    context.progress(step);
    std::fprintf(losses.get(), "%lld %f\n", static_cast<long long>(step), loss_sum);
    std::fflush(losses.get());
  } while (!context.should_leave());
}

void train(ddprun::Context& context, const Settings& settings) {
  if (settings.parameter_bytes > 0 && context.is_main_process()) {
    std::printf("{\"memcpy_ms\": %.3f}\n",
                memcpy_ms(static_cast<std::size_t>(settings.parameter_bytes)));
    std::fflush(stdout);
  }
  const std::vector<char> memory(settings.setup_bytes, 1);
  std::this_thread::sleep_for(std::chrono::seconds(settings.setup_seconds));
  torch::manual_seed(1);
  if (settings.parameter_bytes > 0) {
    train(context, std::make_shared<Large>(settings.parameter_bytes), settings);
  } else {
    train(context, std::make_shared<Net>(), settings);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const Settings settings{.backend = ddprun::backend_from(argv[1]),
                          .setup_seconds = std::atoi(argv[2]),
                          .setup_bytes = std::strtoull(argv[3], nullptr, 10) << 20,
                          .parameter_bytes = std::atoll(argv[4]) << 20,
                          .loss_file = argv[5]};
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { train(context, settings); },
                     {.backend = settings.backend});
}
