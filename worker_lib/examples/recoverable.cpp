// A training loop of your own whose ranks are replaced when they die: the other ranks keep their processes, no step
// is lost, and the final weights have the bits of a run in which no rank died.
//
//   recoverable                                          alone
//   ddprun --nproc-per-node=2 --standby=auto --max-restarts=3 recoverable [FILE]
//                                                        kill one of its workers while it trains
//
// Learns to find the largest of eight numbers; needs no files. FILE gets the weights, as safetensors.
// Last line on stdout, with two ranks:  2560 steps, mean loss 0.2   (about this)
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "ddprun/ddp.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"
#include "ddprun/sampler.h"
#include "ddprun/weights.h"

namespace {

using torch::Tensor;

constexpr std::int64_t kSamples = 8192;
constexpr std::int64_t kEpochs = 20;
constexpr std::size_t kBatch = 32;

// Everything that the loop counts. A process that takes a rank's place gets it as it was in that rank.
struct Loop {
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;  // samples of the epoch, over all ranks
  std::int64_t step = 0;
  double loss_sum = 0;
};
struct Batch {
  Tensor numbers;
  Tensor largest;
};

void train(ddprun::Context& context, const std::string& file) {
  torch::manual_seed(1);
  const Tensor numbers = torch::randn({kSamples, 8}).to(context.device());
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 8));
  net->to(context.device());
  ddprun::DistributedDataParallel model(net, context);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  ddprun::DistributedSampler sampler(kSamples, context, {.seed = 1});

  Loop at;
  ddprun::Recoverable recoverable(context, model, optimizer);
  recoverable.keep(at);
  recoverable.join();
  for (; at.epoch < kEpochs; ++at.epoch, at.consumed = 0) {
    sampler.set_epoch(at.epoch, at.consumed);
    while (const auto indices = sampler.next(kBatch)) {
      const std::vector<std::int64_t> rows(indices->begin(), indices->end());
      const Tensor inputs = numbers.index({torch::tensor(rows).to(context.device())});
      // One step. It can change only what it is given: the function has no captures.
      const auto step = [](Loop& loop, auto& ddp, auto& sgd, const Batch& batch) {
        sgd.zero_grad();
        const Tensor loss = torch::nn::functional::cross_entropy(ddp(batch.numbers), batch.largest);
        ++loop.step;
        loop.loss_sum += loss.item<double>();
        loss.backward();
        sgd.step();
      };
      recoverable.run(at, step, model, optimizer, Batch{inputs, inputs.argmax(1)});
      at.consumed = sampler.consumed();
      context.progress(at.step);
    }
  }
  if (!context.is_main_process()) return;
  if (!file.empty()) ddprun::save_weights(model, file);
  std::printf("%lld steps, mean loss %.2f\n", static_cast<long long>(at.step),
              at.loss_sum / static_cast<double>(at.step));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[1] : "";
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { train(context, file); });
}
