// One DDP training step, forward to optimizer, timed for several models: the C++ half of the
// step-time benchmark; ddp_step.py (tests/compat) is the same program in Python. Run under a launcher
// with the same options; rank 0 prints one line of JSON for each model:
//   {"program": "ddprun", "model": "cnn", "parameters": 105866, "ranks": 2, "steps": 200,
//    "median_us": 812.4, "least_us": 790.1, "loss": 0.0371846817}
// `loss` is the last step's, to all digits of a float: equal in both programs, or they did not do
// the same work. A step ends when its loss is on the CPU, so that over NCCL it is the GPU's time too.
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "ddprun/ddp.h"
#include "ddprun/run.h"

namespace {

using torch::Tensor;
using torch::nn::Linear;

constexpr int kClasses = 10;

struct Model : torch::nn::Module {
  virtual Tensor forward(const Tensor& x) = 0;
  virtual Tensor inputs() const = 0;
};

// Layers are made one per statement: they draw from the generator in this order.
struct Mlp : Model {
  Mlp(int width, int hidden, int batch) : width_(width), batch_(batch) {
    fc1 = register_module("fc1", Linear(width, hidden));
    fc2 = register_module("fc2", Linear(hidden, hidden));
    fc3 = register_module("fc3", Linear(hidden, kClasses));
  }
  Tensor forward(const Tensor& x) override { return fc3(torch::relu(fc2(torch::relu(fc1(x))))); }
  Tensor inputs() const override { return torch::randn({batch_, width_}); }
  Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr};
  int width_, batch_;
};

struct Cnn : Model {
  Cnn() {
    conv1 =
        register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)));
    conv2 =
        register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)));
    fc1 = register_module("fc1", Linear(32 * 7 * 7, 64));
    fc2 = register_module("fc2", Linear(64, kClasses));
  }
  Tensor forward(const Tensor& x) override {
    const Tensor y = torch::max_pool2d(torch::relu(conv1(x)), 2);
    const Tensor z = torch::max_pool2d(torch::relu(conv2(y)), 2);
    return fc2(torch::relu(fc1(z.flatten(1))));
  }
  Tensor inputs() const override { return torch::randn({32, 1, 28, 28}); }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  Linear fc1{nullptr}, fc2{nullptr};
};

struct Embedding : Model {
  explicit Embedding(bool is_sparse) {
    bag = register_module(
        "bag", torch::nn::EmbeddingBag(
                   torch::nn::EmbeddingBagOptions(kWords, 64).sparse(is_sparse).mode(torch::kSum)));
    fc = register_module("fc", Linear(64, kClasses));
  }
  Tensor forward(const Tensor& x) override { return fc(bag(x)); }
  Tensor inputs() const override { return torch::randint(kWords, {64, 30}, torch::kInt64); }
  static constexpr int kWords = 20000;
  torch::nn::EmbeddingBag bag{nullptr};
  Linear fc{nullptr};
};

struct Lstm : Model {
  Lstm() {
    lstm = register_module(
        "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(32, 64).num_layers(2).batch_first(true)));
    fc = register_module("fc", Linear(64, kClasses));
  }
  Tensor forward(const Tensor& x) override {
    return fc(std::get<0>(lstm(x)).select(1, kLength - 1));
  }
  Tensor inputs() const override { return torch::randn({16, kLength, 32}); }
  static constexpr int kLength = 20;
  torch::nn::LSTM lstm{nullptr};
  Linear fc{nullptr};
};

// By hand in both languages: the ready-made layers of the two compute attention differently. With
// torch::linear, which is what Python calls; C++'s Linear is another one for three dimensions.
struct Block : torch::nn::Module {
  Block(int width, int heads) : width_(width), heads_(heads) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", Linear(width, 3 * width));
    out = register_module("out", Linear(width, width));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", Linear(width, 2 * width));
    down = register_module("down", Linear(2 * width, width));
  }
  static Tensor apply(const Linear& layer, const Tensor& x) {
    return torch::linear(x, layer->weight, layer->bias);
  }
  Tensor forward(const Tensor& x) {
    const auto batch = x.size(0);
    const auto length = x.size(1);
    const auto parts = apply(qkv, norm1(x)).chunk(3, -1);
    const auto split = [&](const Tensor& part) {
      return part.view({batch, length, heads_, width_ / heads_}).transpose(1, 2);
    };
    const Tensor attended =
        at::scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]));
    const Tensor y = x + apply(out, attended.transpose(1, 2).reshape({batch, length, width_}));
    return y + apply(down, torch::gelu(apply(up, norm2(y))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  int width_, heads_;
};

struct Transformer : Model {
  Transformer() {
    tokens = register_module("tokens", torch::nn::Embedding(kWords, 64));
    block1 = register_module("block1", std::make_shared<Block>(64, 4));
    block2 = register_module("block2", std::make_shared<Block>(64, 4));
    fc = register_module("fc", Linear(64, kClasses));
  }
  Tensor forward(const Tensor& x) override {
    return fc(block2->forward(block1->forward(tokens(x))).mean(1));
  }
  Tensor inputs() const override { return torch::randint(kWords, {8, 32}, torch::kInt64); }
  static constexpr int kWords = 1000;
  torch::nn::Embedding tokens{nullptr};
  std::shared_ptr<Block> block1, block2;
  Linear fc{nullptr};
};

struct Measured {
  std::string name;
  std::function<std::shared_ptr<Model>()> make;
  int steps;
  double momentum = 0.9;  // none for sparse gradients: it would make them dense
};

// Small to large, for what a step costs beside the arithmetic.
std::vector<Measured> mlps() {
  return {
      {"mlp_64", [] { return std::make_shared<Mlp>(784, 64, 64); }, 600},
      {"mlp_256", [] { return std::make_shared<Mlp>(784, 256, 64); }, 300},
      {"mlp_1024", [] { return std::make_shared<Mlp>(784, 1024, 64); }, 60},
  };
}

// NCCL reduces no sparse gradients.
std::vector<Measured> models(bool with_sparse) {
  return {
      {"tiny_mlp", [] { return std::make_shared<Mlp>(32, 32, 16); }, 1000},
      {"cnn", [] { return std::make_shared<Cnn>(); }, 100},
      {"wide_mlp", [] { return std::make_shared<Mlp>(784, 1024, 64); }, 60},
      {"embedding", [=] { return std::make_shared<Embedding>(with_sparse); }, 400, 0.0},
      {"lstm", [] { return std::make_shared<Lstm>(); }, 150},
      {"transformer", [] { return std::make_shared<Transformer>(); }, 200},
  };
}

void measure(const Measured& what, ddprun::Context& context, int warm_up, double share) {
  torch::manual_seed(1);
  const auto module = what.make();
  module->to(context.device());
  ddprun::DistributedDataParallel<Model> model(module, context);
  torch::optim::SGD optimizer(model.parameters(),
                              torch::optim::SGDOptions(0.01).momentum(what.momentum));
  torch::manual_seed(static_cast<std::uint64_t>(100 + context.rank()));
  const Tensor inputs = model->inputs().to(context.device());
  const Tensor targets =
      torch::randint(kClasses, {inputs.size(0)}, torch::kInt64).to(context.device());
  const int steps = std::max(10, static_cast<int>(std::lround(what.steps * share)));

  std::vector<double> times;
  float last_loss = 0;
  for (int i = 0; i < warm_up + steps; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const Tensor loss = torch::nn::functional::cross_entropy(model(inputs), targets);
    loss.backward();
    optimizer.step();
    last_loss = loss.item<float>();
    const std::chrono::duration<double, std::micro> passed =
        std::chrono::steady_clock::now() - begun;
    if (i >= warm_up) times.push_back(passed.count());
  }
  if (!context.is_main_process()) return;
  std::int64_t parameters = 0;
  for (const Tensor& parameter : model.parameters()) parameters += parameter.numel();
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  std::printf(
      "{\"program\": \"ddprun\", \"model\": \"%s\", \"parameters\": %lld, \"ranks\": %d, "
      "\"steps\": %d, \"median_us\": %.2f, \"least_us\": %.2f, \"loss\": %.9g}\n",
      what.name.c_str(), static_cast<long long>(parameters), context.world_size(), steps, *middle,
      *std::min_element(times.begin(), times.end()), static_cast<double>(last_loss));
}

}  // namespace

int main(int argc, char** argv) {
  std::string only;
  int warm_up = 30;
  double share = 1;
  std::string backend = "gloo";
  bool is_mlps = false;
  CLI::App app("Times DDP training steps of several models.");
  app.add_option("--model", only, "this one alone");
  app.add_option("--warm-up", warm_up, "steps not counted")->check(CLI::NonNegativeNumber);
  app.add_option("--share", share, "of each model's usual number of steps")
      ->check(CLI::PositiveNumber);
  app.add_option("--backend", backend,
                 "gloo, shm, nccl (on GPUs), or none: every process by itself");
  app.add_flag("--mlps", is_mlps, "three sizes of one model instead");
  CLI11_PARSE(app, argc, argv);
  const auto measure_all = [&](ddprun::Context& context) {
    for (const Measured& what : is_mlps ? mlps() : models(/*with_sparse=*/backend != "nccl")) {
      if (only.empty() || only == what.name) measure(what, context, warm_up, share);
    }
  };
  if (backend == "none") {
    ddprun::Context alone(ddprun::Environment{}, {.device = torch::kCPU});
    measure_all(alone);
    return 0;
  }
  ddprun::ContextOptions options{.backend = ddprun::backend_from(backend),
                                 .keep_freed_memory = true};
  if (options.backend != ddprun::Backend::kNccl) options.device = torch::kCPU;
  return ddprun::run(argc, argv, measure_all, options);
}
