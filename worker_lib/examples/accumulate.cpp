// Gradient accumulation: a batch that does not fit into memory is taken in parts, whose gradients
// are added up and exchanged between the ranks once, with the last part.
//
//   accumulate                                     alone
//   ddprun --nproc_per_node=2 accumulate           on two, each with batches of its own
//
// Learns to find the largest of eight numbers; needs no files.
// Last line on stdout:  400 backward passes, 100 exchanges of gradients
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdio>

#include "ddprun/ddp.h"
#include "ddprun/gradients.h"
#include "ddprun/run.h"

namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

constexpr int kSteps = 100;
constexpr int kParts = 4;  // backward passes for each step of the optimizer
constexpr int kSamples = 32;
constexpr int kNumbers = 8;

void train(ddprun::Context& context) {
  // A communication hook sees every exchange; this model's gradients fit into one bucket.
  int exchanges = 0;
  const auto all_reduce = ddprun::allreduce_hook();
  const ddprun::CommHook counted = [&](auto& bucket, auto& group) {
    ++exchanges;
    return all_reduce(bucket, group);
  };
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(kNumbers, 64), torch::nn::ReLU(),
                            torch::nn::Linear(64, kNumbers));
  net->to(context.device());
  ddprun::DistributedDataParallel model(net, context, {.comm_hook = counted});
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
  int passes = 0;
  const auto backward = [&] {
    const Tensor numbers = torch::randn({kSamples, kNumbers}, context.device());
    const Tensor loss = F::cross_entropy(model(numbers), numbers.argmax(1));
    (loss / kParts).backward();  // the gradient of the mean over all parts
    ++passes;
    return loss;
  };
  for (int step = 0; step < kSteps; ++step) {
    ddprun::zero_grad(model.parameters());
    {
      const auto no_sync = model.no_sync();  // forward and backward: both inside
      for (int part = 1; part < kParts; ++part) backward();
    }
    const Tensor loss = backward();
    optimizer.step();
    if (step % 20 == 19 && context.is_main_process()) {
      std::printf("step %d, loss %.2f\n", step + 1, loss.item<double>());
    }
  }
  if (context.is_main_process()) {
    std::printf("%d backward passes, %d exchanges of gradients\n", passes, exchanges);
  }
}

}  // namespace

int main(int argc, char** argv) { return ddprun::run(argc, argv, train); }
