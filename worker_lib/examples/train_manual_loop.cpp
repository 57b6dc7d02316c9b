// train_single.cpp made distributed: README.md shows the difference between the two. Fashion-MNIST is
// in Debian's package dataset-fashion-mnist. Every rank reads its share of the samples; the gradients
// are averaged while the backward runs. Without a launcher it runs alone.
//
//   ddprun --nproc-per-node=2 train_manual_loop [FOLDER]
//
// Its last line, after a few seconds: test accuracy: 86.16 %   (of any run: between 84 and 89)
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <string>

#include "ddprun/ddp.h"
#include "ddprun/run.h"
#include "ddprun/sampler.h"
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

void train(const std::string& folder, ddprun::Context& context) {
  const auto [images, labels] = fashion_mnist(folder, Split::kTrain);
  torch::manual_seed(1);
  ddprun::DistributedDataParallel model(Net(), context);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  ddprun::DistributedSampler sampler(labels.size(0), context);
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
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
  if (context.is_main_process()) std::printf("test accuracy: %.2f %%\n", accuracy * 100);
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist";
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { train(folder, context); },
                     {.device = torch::kCPU});
}
