// slow_backward STOP_FILE: a training of two ranks over shm that can be replaced in place, whose gradients take a second:
// rank 0 writes "step S layer L" before those of each of its layers, from kLayers - 1 down to 0. It ends with the step in
// which rank 0 sees STOP_FILE.
#include <torch/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "ddprun/ddp.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"

namespace ddprun::test {
namespace {

using torch::Tensor;

constexpr int kLayers = 8;
constexpr std::chrono::milliseconds kOfALayer{125};

struct Slow : torch::autograd::Function<Slow> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const std::string& said) {
    context->saved_data["said"] = said;
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const std::string said = context->saved_data["said"].toStringRef();
    if (!said.empty()) std::fprintf(stderr, "%s\n", said.c_str());
    std::this_thread::sleep_for(kOfALayer);
    return {gradients[0], Tensor()};
  }
};

struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(4, 4)));
    }
  }
  Tensor forward(Tensor x, const std::string& said) {
    for (int i = 0; i < kLayers; ++i) {
      x = Slow::apply(layers[static_cast<std::size_t>(i)](x),
                      said.empty() ? said : said + " layer " + std::to_string(i));
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

void train(Context& context, const std::string& stop_file) {
  DistributedDataParallel model(std::make_shared<Net>(), context);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  Recoverable recoverable(context, model, optimizer);
  std::int64_t step = 0;
  recoverable.keep(step);
  recoverable.join();
  for (bool goes_on = true; goes_on;) {
    recoverable.step([&] {
      optimizer.zero_grad();
      const std::string said = context.rank() == 0 ? "step " + std::to_string(step) : "";
      ++step;
      model(torch::ones({2, 4}), said).sum().backward();
      optimizer.step();
    });
    goes_on = context.broadcast_object(!std::filesystem::exists(stop_file), 0);
  }
}

}  // namespace
}  // namespace ddprun::test

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return ddprun::run(argc, argv,
                     [&](ddprun::Context& context) { ddprun::test::train(context, argv[1]); });
}
