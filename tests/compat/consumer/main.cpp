// Learns y = 3x - 1. Last line:  weight 3.000, bias -1.000
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdio>

#include "ddprun/ddp.h"
#include "ddprun/run.h"
#include "ddprun/sampler.h"

int main(int argc, char** argv) {
  return ddprun::run(argc, argv, [](ddprun::Context& context) {
    const torch::Tensor x = torch::linspace(-1, 1, 256).view({-1, 1}).to(context.device());
    const torch::Tensor y = 3 * x - 1;
    torch::nn::Linear line(1, 1);
    line->to(context.device());
    ddprun::DistributedDataParallel model(line, context);
    torch::optim::SGD optimizer(model.parameters(), 0.2);
    ddprun::DistributedSampler sampler(x.size(0), context);
    for (int epoch = 0; epoch < 50; ++epoch) {
      sampler.set_epoch(epoch);
      while (const auto indices = sampler.next(32)) {
        const torch::Tensor batch =
            torch::tensor(std::vector<std::int64_t>(indices->begin(), indices->end()))
                .to(context.device());
        optimizer.zero_grad();
        torch::mse_loss(model(x.index_select(0, batch)), y.index_select(0, batch)).backward();
        optimizer.step();
      }
    }
    if (context.is_main_process()) {
      std::printf("weight %.3f, bias %.3f\n", line->weight.item<double>(),
                  line->bias.item<double>());
    }
  });
}
