// Small trainings, one for each thing that DistributedDataParallel does, made to be compared bit for
// bit with ddp_cases.py, which is the same program in Python: keep the two alike, line by line.
// Started by ddprun with a prefix for its files; writes <prefix>.rank<R>, lines "case step loss" with
// all the loss' bits, and <prefix>.rank<R>.<case>: the final parameters and buffers, raw.
#include <c10/util/signal_handler.h>
#include <torch/nn.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <fstream>

#include "ddprun/ddp.h"
#include "ddprun/gradients.h"
#include "ddprun/mixed_precision.h"
#include "ddprun/optim.h"
#include "ddprun/run.h"

namespace {

using ddprun::DdpOptions;
using ddprun::DistributedDataParallel;
using torch::Tensor;
using torch::optim::SGDOptions;

constexpr int kBatch = 6;
constexpr int kInputs = 12;
constexpr int kClasses = 5;
constexpr int kWords = 40;

struct Model : torch::nn::Module {
  virtual Tensor forward(const Tensor& x, int step) = 0;
  virtual Tensor inputs() const { return torch::randn({kBatch, kInputs}); }
};

struct Mlp : Model {
  Mlp() {
    fc1 = register_module("fc1", torch::nn::Linear(kInputs, 33));
    fc2 = register_module("fc2", torch::nn::Linear(33, 17));
    fc3 = register_module("fc3", torch::nn::Linear(17, kClasses));
  }
  Tensor forward(const Tensor& x, int) override {
    return fc3(torch::tanh(fc2(torch::tanh(fc1(x)))));
  }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr};
};

// C++'s Linear is addmm(bias, x, weight.t()), Python's is linear(x, weight, bias). The same bits, but
// under autocast it casts in another order: gradients come in another order too, which with three
// ranks is another order of summation.
struct MlpOfOperators : Mlp {
  Tensor forward(const Tensor& x, int) override {
    const auto layer = [](torch::nn::Linear& fc, const Tensor& input) {
      return torch::linear(input, fc->weight, fc->bias);
    };
    return layer(fc3, torch::tanh(layer(fc2, torch::tanh(layer(fc1, x)))));
  }
};

// `side` is used in every second step, `never` in none.
struct Branches : Model {
  Branches() {
    main = register_module("main", torch::nn::Linear(kInputs, kClasses));
    side = register_module("side", torch::nn::Linear(kInputs, kClasses));
    never = register_module("never", torch::nn::Linear(kInputs, kClasses));
  }
  Tensor forward(const Tensor& x, int step) override {
    return step % 2 == 0 ? main(x) : main(x) + side(x);
  }
  torch::nn::Linear main{nullptr}, side{nullptr}, never{nullptr};
};

struct Reused : Model {
  Reused() {
    in = register_module("in", torch::nn::Linear(kInputs, 20));
    twice = register_module("twice", torch::nn::Linear(20, 20));
    never = register_module("never", torch::nn::Linear(20, 20));
    out = register_module("out", torch::nn::Linear(20, kClasses));
  }
  Tensor forward(const Tensor& x, int) override {
    return out(torch::tanh(twice(torch::tanh(twice(in(x))))));
  }
  torch::nn::Linear in{nullptr}, twice{nullptr}, never{nullptr}, out{nullptr};
};

struct Cnn : Model {
  Cnn() {
    conv1 =
        register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)));
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(8));
    conv2 =
        register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 4, 3).padding(1)));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(4));
    fc = register_module("fc", torch::nn::Linear(4 * 16, kClasses));
  }
  Tensor forward(const Tensor& x, int) override {
    const Tensor y = torch::relu(norm1(conv1(x)));
    return fc(torch::relu(norm2(conv2(y))).flatten(1));
  }
  Tensor inputs() const override { return torch::randn({kBatch, 1, 4, 4}); }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear fc{nullptr};
};

struct Words : Model {
  Words() {
    words = register_module(
        "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, 8).sparse(true)));
    bag = register_module(
        "bag", torch::nn::EmbeddingBag(
                   torch::nn::EmbeddingBagOptions(kWords, 8).sparse(true).mode(torch::kSum)));
    fc = register_module("fc", torch::nn::Linear(8, kClasses));
  }
  Tensor forward(const Tensor& x, int) override { return fc(words(x).mean(1) + bag(x)); }
  Tensor inputs() const override { return torch::randint(kWords, {kBatch, 7}, torch::kInt64); }
  torch::nn::Embedding words{nullptr};
  torch::nn::EmbeddingBag bag{nullptr};
  torch::nn::Linear fc{nullptr};
};

using Optimizer = std::shared_ptr<torch::optim::Optimizer>;
using Parameters = std::vector<Tensor>;

struct Recipe {
  std::string name;
  std::function<std::shared_ptr<Model>()> model = [] { return std::make_shared<Mlp>(); };
  DdpOptions options = {};
  std::function<Optimizer(const Parameters&)> optimizer = [](const Parameters& parameters) {
    return std::make_shared<torch::optim::SGD>(parameters, SGDOptions(0.1));
  };
  int steps = 6;
  int accumulated = 1;  // backwards for each step of the optimizer
  std::function<void(const Parameters&)> clip = nullptr;
  std::optional<torch::ScalarType> autocast = std::nullopt;
  bool is_scaled = false;
  std::optional<ddprun::JoinOptions> join = std::nullopt;
};

std::function<Optimizer(const Parameters&)> sgd(const SGDOptions& options) {
  return [options](const Parameters& parameters) {
    return std::make_shared<torch::optim::SGD>(parameters, options);
  };
}

std::vector<Recipe> recipes() {
  const auto branches = [] { return std::make_shared<Branches>(); };
  const auto operators = [] { return std::make_shared<MlpOfOperators>(); };
  const auto words = [] { return std::make_shared<Words>(); };
  const auto clip_norm = [](double limit, double type) {
    return [=](const Parameters& parameters) { ddprun::clip_grad_norm_(parameters, limit, type); };
  };
  std::vector<Recipe> all = {
      {.name = "plain"},
      {.name = "accumulation", .accumulated = 3},
      {.name = "unused", .model = branches, .options = {.find_unused_parameters = true}},
      {.name = "batch_norm", .model = [] { return std::make_shared<Cnn>(); }},
      {.name = "momentum", .optimizer = sgd(SGDOptions(0.1).momentum(0.9))},
      {.name = "nesterov",
       .optimizer = sgd(SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01))},
      {.name = "dampening", .optimizer = sgd(SGDOptions(0.1).momentum(0.9).dampening(0.1))},
      {.name = "rmsprop",
       .optimizer =
           [](const Parameters& parameters) {
             return std::make_shared<torch::optim::RMSprop>(
                 parameters, torch::optim::RMSpropOptions(0.01).momentum(0.9));
           }},
      {.name = "adagrad",
       .optimizer =
           [](const Parameters& parameters) {
             return std::make_shared<torch::optim::Adagrad>(parameters,
                                                            torch::optim::AdagradOptions(0.1));
           }},
      {.name = "sparse", .model = words},
      {.name = "bucket_views", .options = {.gradient_as_bucket_view = true}},
      {.name = "bucket_views_accumulated",
       .options = {.gradient_as_bucket_view = true},
       .accumulated = 2},
      {.name = "small_buckets", .options = {.bucket_bytes_cap = 1024}},
      {.name = "static_graph",
       .model = [] { return std::make_shared<Reused>(); },
       .options = {.static_graph = true}},
      {.name = "all_reduce_hook", .options = {.comm_hook = ddprun::allreduce_hook()}},
      {.name = "fp16_hook", .options = {.comm_hook = ddprun::fp16_compress_hook()}},
      {.name = "bf16_hook", .options = {.comm_hook = ddprun::bf16_compress_hook()}},
      {.name = "power_sgd",
       .options = {.comm_hook = ddprun::power_sgd_hook(
                       {.matrix_approximation_rank = 2, .start_power_sgd_iter = 2})},
       .steps = 8},
      {.name = "power_sgd_rank_4",
       .options = {.comm_hook = ddprun::power_sgd_hook({.matrix_approximation_rank = 4,
                                                        .start_power_sgd_iter = 2,
                                                        .min_compression_rate = 0.5})},
       .steps = 8},
      {.name = "clip_norm", .clip = clip_norm(0.1, 2)},
      {.name = "clip_norm_inf", .clip = clip_norm(0.01, std::numeric_limits<double>::infinity())},
      {.name = "clip_value",
       .clip = [](const Parameters& parameters) { ddprun::clip_grad_value_(parameters, 0.01); }},
      {.name = "autocast", .model = operators, .autocast = torch::kBFloat16},
      {.name = "scaler", .model = operators, .autocast = torch::kHalf, .is_scaled = true},
      {.name = "join", .join = ddprun::JoinOptions{}},
      {.name = "join_active",
       .model = branches,
       .options = {.find_unused_parameters = true},
       .join = ddprun::JoinOptions{.divide_by_initial_world_size = false}},
      {.name = "join_batch_norm",
       .model = [] { return std::make_shared<Cnn>(); },
       .join = ddprun::JoinOptions{}},
      {.name = "adam",
       .optimizer =
           [](const Parameters& parameters) {
             return std::make_shared<ddprun::optim::Adam>(parameters,
                                                          ddprun::optim::AdamOptions(0.01));
           }},
      {.name = "adamw",
       .optimizer =
           [](const Parameters& parameters) {
             return std::make_shared<ddprun::optim::AdamW>(
                 parameters, ddprun::optim::AdamWOptions(0.01).foreach (true));
           }},
      {.name = "fused_sgd",
       .options = {.gradient_as_bucket_view = true},
       .optimizer =
           [](const Parameters& parameters) {
             return std::make_shared<ddprun::optim::SGD>(
                 parameters, ddprun::optim::SGDOptions(0.1).momentum(0.9).fused(true));
           }},
      {.name = "fused_adam_scaler",
       .model = operators,
       .optimizer =
           [](const Parameters& parameters) {
             return std::make_shared<ddprun::optim::Adam>(
                 parameters, ddprun::optim::AdamOptions(0.01).fused(true));
           },
       .autocast = torch::kHalf,
       .is_scaled = true},
  };
  return all;
}

class Run {
 public:
  Run(const Recipe& recipe, ddprun::Context& context, std::FILE* losses)
      : recipe_(recipe), losses_(losses) {
    torch::manual_seed(1);
    model_ =
        std::make_unique<DistributedDataParallel<Model>>(recipe.model(), context, recipe.options);
    parameters_ = model_->parameters();
    optimizer_ = recipe.optimizer(parameters_);
    torch::manual_seed(100 + static_cast<std::uint64_t>(context.rank()));
    if (recipe.join) {
      const int steps = recipe.steps - context.rank();
      model_->join([&] { train(steps); }, *recipe.join);
    } else {
      train(recipe.steps);
    }
  }

  void write_weights(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    const auto write = [&](const Tensor& tensor) {
      const Tensor values = tensor.detach().contiguous();
      file.write(static_cast<const char*>(values.data_ptr()),
                 static_cast<std::streamsize>(values.nbytes()));
    };
    for (const Tensor& parameter : parameters_) write(parameter);
    for (const Tensor& buffer : (*model_)->buffers()) write(buffer);
  }

 private:
  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      ddprun::zero_grad(parameters_);
      for (int i = 1; i < recipe_.accumulated; ++i) {
        const auto no_sync = model_->no_sync();
        backward(step);
      }
      const Tensor loss = backward(step);
      if (recipe_.is_scaled) scaler_.unscale_(*optimizer_);
      if (recipe_.clip) recipe_.clip(parameters_);
      if (recipe_.is_scaled) {
        scaler_.step(*optimizer_);
        scaler_.update();
      } else {
        optimizer_->step();
      }
      std::fprintf(losses_, "%s %d %a\n", recipe_.name.c_str(), step, loss.item<double>());
    }
  }

  Tensor backward(int step) {
    const Tensor x = (*model_)->inputs();
    const Tensor y = torch::randint(kClasses, {kBatch}, torch::kInt64);
    Tensor loss;
    {
      const ddprun::Autocast autocast(torch::kCPU, recipe_.autocast.value_or(torch::kBFloat16),
                                      recipe_.autocast.has_value());
      loss = torch::nn::functional::cross_entropy((*model_)(x, step), y);
    }
    (recipe_.is_scaled ? scaler_.scale(loss) : loss).backward();
    return loss;
  }

  const Recipe& recipe_;
  std::FILE* losses_;
  std::unique_ptr<DistributedDataParallel<Model>> model_;
  Parameters parameters_;
  Optimizer optimizer_;
  // Too great a scale at first, so that a step is skipped.
  ddprun::GradScaler scaler_{{.init_scale = 4194304, .growth_interval = 2}};
};

// The batches of two ranks as one, for a world of one: equal to `plain` on two but for rounding.
void train_whole(ddprun::Context& context, const std::string& prefix) {
  torch::manual_seed(1);
  DistributedDataParallel<Model> model(std::make_shared<Mlp>(), context);
  torch::optim::SGD optimizer(model.parameters(), SGDOptions(0.1));
  constexpr int kSteps = 6;
  std::vector<std::vector<Tensor>> inputs(2), targets(2);
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    torch::manual_seed(100 + rank);
    for (int step = 0; step < kSteps; ++step) {
      inputs[rank].push_back(model->inputs());
      targets[rank].push_back(torch::randint(kClasses, {kBatch}, torch::kInt64));
    }
  }
  for (std::size_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor x = torch::cat({inputs[0][step], inputs[1][step]});
    const Tensor y = torch::cat({targets[0][step], targets[1][step]});
    torch::nn::functional::cross_entropy(model(x, 0), y).backward();
    optimizer.step();
  }
  std::ofstream file(prefix + ".rank0.whole", std::ios::binary);
  for (const Tensor& parameter : model.parameters()) {
    file.write(static_cast<const char*>(parameter.data_ptr()),
               static_cast<std::streamsize>(parameter.nbytes()));
  }
}

void run_all(ddprun::Context& context, const std::string& prefix) {
  if (!context.is_distributed()) return train_whole(context, prefix);
  const std::string path = prefix + ".rank" + std::to_string(context.rank());
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> losses(std::fopen(path.c_str(), "w"),
                                                               std::fclose);
  if (!losses) throw ddprun::UsageError("cannot write " + path);
  for (const Recipe& recipe : recipes()) {
    const Run run(recipe, context, losses.get());
    run.write_weights(path + "." + recipe.name);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // A crash in a thread of Gloo, seen once, says where all threads are.
  c10::FatalSignalHandler::getInstance().setPrintStackTracesOnFatalSignal(true);
  return ddprun::run(argc, argv,
                     [&](ddprun::Context& context) {
                       if (argc < 2) throw ddprun::UsageError("usage: ddp_cases PREFIX [BACKEND]");
                       run_all(context, argv[1]);
                     },
                     {.backend = ddprun::backend_from(argc > 2 ? argv[2] : "gloo")});
}
