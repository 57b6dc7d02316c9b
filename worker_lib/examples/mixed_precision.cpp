// Mixed precision: matrix products in 16 bits, parameters in 32. On a GPU these are float16's, whose
// small gradients a GradScaler keeps from vanishing; on the CPU bfloat16's, which need no scaler.
//
//   mixed_precision                                  alone
//   ddprun --nproc-per-node=2 mixed_precision        on two, each with batches of its own
//
// Learns to find the largest of eight numbers; needs no files.
// Last line on stdout, on the CPU:  300 steps in BFloat16, loss 0.12   (about this)
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdio>

#include "ddprun/ddp.h"
#include "ddprun/gradients.h"
#include "ddprun/mixed_precision.h"
#include "ddprun/run.h"

namespace {

using torch::Tensor;

constexpr int kSteps = 300;

void train(ddprun::Context& context) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 8));
  net->to(context.device());
  ddprun::DistributedDataParallel model(net, context);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const torch::ScalarType type = context.device().is_cuda() ? torch::kHalf : torch::kBFloat16;
  ddprun::GradScaler scaler({.enabled = type == torch::kHalf});

  torch::manual_seed(2 + static_cast<std::uint64_t>(context.rank()));
  Tensor loss;
  for (int step = 0; step < kSteps; ++step) {
    const Tensor numbers = torch::randn({64, 8}, context.device());
    {
      const ddprun::Autocast autocast(context.device(), type);  // the forward and the loss
      loss = torch::nn::functional::cross_entropy(model(numbers), numbers.argmax(1));
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);  // so that gradients are clipped as they are
    ddprun::clip_grad_norm_(model.parameters(), 1.0);
    scaler.step(optimizer);  // left out on all ranks if a gradient is not finite
    scaler.update();
    ddprun::zero_grad(model.parameters());
  }
  const double mean = context.all_reduce(loss.item<double>(), ddprun::ReduceOp::AVG);
  if (!context.is_main_process()) return;
  std::printf("%d steps in %s, loss %.2f\n", kSteps, c10::toString(type), mean);
}

}  // namespace

int main(int argc, char** argv) { return ddprun::run(argc, argv, train); }
