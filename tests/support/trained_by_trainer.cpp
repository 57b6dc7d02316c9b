// trained_by_trainer FOLDER MEMORY_EVERY [BACKEND]: a small training by the Trainer, whose only checkpoint on the disk is made at its
// end; rank 0 prints the losses and all weights, exactly. With DDPRUN_ALL_DIE_AT=STEP,STEP… every rank kills itself after
// the n-th of these steps in the n-th run. Points of death (death.h): forward, step_end.
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "ddprun/checkpoint.h"
#include "ddprun/ddp.h"
#include "ddprun/run.h"
#include "ddprun/trainer.h"
#include "tests/support/death.h"
#include "tests/support/end_quickly.h"
#include "tests/support/random_batches.h"

namespace {

using ddprun::test::RandomBatch;
using ddprun::test::RandomBatches;
using torch::Tensor;

// At the step of this run; dying before the snapshot of that step is made.
class Death : public ddprun::Callback {
 public:
  Death() {
    const char* const steps = std::getenv("DDPRUN_ALL_DIE_AT");
    const char* const run = std::getenv("TORCHELASTIC_RESTART_COUNT");
    if (steps == nullptr || run == nullptr) return;
    std::string left = steps;
    for (int skip = std::atoi(run); skip > 0; --skip) {
      const auto comma = left.find(',');
      left = comma == std::string::npos ? "" : left.substr(comma + 1);
    }
    if (!left.empty()) step_ = std::atoi(left.c_str());
  }
  void on_step_end(const ddprun::TrainingView& training) override {
    if (training.step() == step_) std::raise(SIGKILL);
    ddprun::test::death::reach("step_end");
    ddprun::test::death::at_step(training.step() + 1);
  }

 private:
  std::int64_t step_ = -1;
};

void train(ddprun::Context& context, const std::string& folder, int memory_every) {
  torch::manual_seed(1);
  const auto net = std::make_shared<torch::nn::SequentialImpl>(
      torch::nn::Linear(20, 16), torch::nn::BatchNorm1d(16), torch::nn::ReLU(),
      torch::nn::Dropout(0.2), torch::nn::Linear(16, 5));
  net->to(context.device());
  ddprun::DistributedDataParallel model(net, context);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  RandomBatches batches(context, {.samples = 200, .inputs = 20, .classes = 5, .batch = 10});
  torch::manual_seed(7 + static_cast<std::uint64_t>(context.rank()));  // for dropout
  ddprun::Checkpointer checkpoints(context, folder, {.memory_every = memory_every});
  ddprun::Trainer trainer(context, model, optimizer,
                          {.max_epochs = 3, .enable_progress_bar = false});
  trainer.use(checkpoints, {.every_epochs = 0});
  trainer.add_callback(std::make_shared<Death>());
  const ddprun::History history = trainer.fit(batches, [&](auto& module, RandomBatch& batch) {
    ddprun::test::death::reach("forward");
    return torch::nn::functional::cross_entropy(module(batch.inputs.to(context.device())),
                                                batch.targets.to(context.device()));
  });
  if (!context.is_main_process()) return;
  for (const auto& epoch : history.epochs) std::printf("epoch loss %a\n", epoch.loss);
  const auto print = [](const Tensor& tensor) {
    const Tensor flat = tensor.detach().cpu().to(torch::kFloat64).flatten();
    for (std::int64_t i = 0; i < flat.numel(); ++i) std::printf("%a\n", flat[i].item<double>());
  };
  for (const Tensor& parameter : model->parameters()) print(parameter);
  for (const Tensor& buffer : model->buffers()) print(buffer);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int code = ddprun::run(
      argc, argv, [&](ddprun::Context& context) { train(context, argv[1], std::atoi(argv[2])); },
      {.backend = ddprun::backend_from(argc > 3 ? argv[3] : "shm")});
  ddprun::test::end_quickly(code);
}
