// Trains a small network on Fashion-MNIST in one process: the program before it became distributed.
// train_manual_loop.cpp beside it is the one after; README.md shows the difference. Debian's package
// dataset-fashion-mnist has the data.
//
//   train_single [FOLDER]
//
// Its last line, after a few seconds: test accuracy: 86.45 %   (of any run: between 84 and 89)
#include <torch/data/samplers/random.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <string>

#include "worker_lib/examples/fashion_mnist.h"

struct NetImpl : torch::nn::Module {
  NetImpl() {
    hidden = register_module("hidden", torch::nn::Linear(784, 64));
    output = register_module("output", torch::nn::Linear(64, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) { return output(torch::relu(hidden(x))); }
  torch::nn::Linear hidden{nullptr}, output{nullptr};
};
TORCH_MODULE(Net);

void train(const std::string& folder) {
  const auto [images, labels] = fashion_mnist(folder, Split::kTrain);
  torch::manual_seed(1);
  Net model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  torch::data::samplers::RandomSampler sampler(labels.size(0));
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.reset();
    while (const auto batch = sampler.next(64)) {
      const torch::Tensor rows = as_tensor(*batch);
      optimizer.zero_grad();
      const torch::Tensor logits = model(images.index({rows}));
      torch::nn::functional::cross_entropy(logits, labels.index({rows})).backward();
      optimizer.step();
    }
  }
  const auto [test_images, test_labels] = fashion_mnist(folder, Split::kTest);
  const torch::NoGradGuard no_grad;
  const torch::Tensor is_right = model->forward(test_images).argmax(1).eq(test_labels);
  const double accuracy = is_right.to(torch::kFloat64).mean().item<double>();
  std::printf("test accuracy: %.2f %%\n", accuracy * 100);
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist";
  train(folder);
}
