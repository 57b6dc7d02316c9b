// Training on GPUs over NCCL, one rank for each GPU. Gradients are sent as bfloat16, half of the bytes.
//
//   ddprun --nproc-per-node=gpu nccl
//
// Learns to find the largest of eight numbers; needs no files. Without a GPU it ends with exit code 2 and says so.
// Last line on stdout:  2 x NVIDIA H200: loss 0.19, 2400 steps/s   (about this loss)
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>

#include "ddprun/comm_hooks.h"
#include "ddprun/ddp.h"
#include "ddprun/devices.h"
#include "ddprun/gradients.h"
#include "ddprun/run.h"

namespace {

using torch::Tensor;

constexpr int kSteps = 300;

void train(ddprun::Context& context) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 8));
  net->to(context.device());  // before the model becomes distributed
  ddprun::DistributedDataParallel model(
      net, context, {.gradient_as_bucket_view = true, .comm_hook = ddprun::bf16_compress_hook()});
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  torch::manual_seed(2 + static_cast<std::uint64_t>(context.rank()));
  Tensor loss;
  const auto begun = std::chrono::steady_clock::now();
  for (int step = 0; step < kSteps; ++step) {
    const Tensor numbers = torch::randn({64, 8}, context.device());
    loss = torch::nn::functional::cross_entropy(model(numbers), numbers.argmax(1));
    loss.backward();
    optimizer.step();
    ddprun::zero_grad(model.parameters());
  }
  context.barrier();  // also waits for the GPU, on which the steps only are queued so far
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  const double mean = context.all_reduce(loss.item<double>(), ddprun::ReduceOp::AVG);
  if (!context.is_main_process()) return;
  const auto gpu = ddprun::list_gpus()[static_cast<std::size_t>(context.device().index())];
  std::printf("%d x %s: loss %.2f, %.0f steps/s\n", context.size(), gpu.name.c_str(), mean,
              kSteps / took.count());
}

}  // namespace

int main(int argc, char** argv) {
  return ddprun::run(argc, argv, train, {.backend = ddprun::Backend::kNccl});
}
