// The ready training loop on Fashion-MNIST: a schedule, mixed precision, a callback, early stopping by the accuracy, and
// checkpoints, of which best.safetensors has the weights with the best accuracy.
//
//   trainer                                                      alone
//   ddprun --nproc-per-node=2 --max-restarts=3 --standby=auto trainer [CHECKPOINTS]
//                                                                survives killed workers
//
// Data: Debian's dataset-fashion-mnist.
// Last line on stdout:  best accuracy 84.4 %, stopped after epoch 6   (about this)
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "ddprun/data_loader.h"
#include "ddprun/ddp.h"
#include "ddprun/metrics.h"
#include "ddprun/run.h"
#include "ddprun/trainer.h"
#include "worker_lib/examples/fashion_mnist.h"

namespace {

constexpr const char* kData = "/usr/share/datasets/fashion-mnist";
constexpr std::int64_t kSamples = 12'000;

class Print : public ddprun::Callback {
 public:
  void on_evaluation_end(const ddprun::TrainingView& training) override {
    std::printf("epoch %lld: learning rate %.4f, accuracy %.1f %%\n",
                static_cast<long long>(training.epoch() + 1), training.learning_rate(),
                100 * training.history().evaluations.back().metrics.at("accuracy"));
  }
};

void train(ddprun::Context& context, const std::string& checkpoint_folder) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(),
                            torch::nn::Linear(64, 10));
  net->to(context.device());
  ddprun::DistributedDataParallel model(net, context);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  ddprun::LRScheduler schedule(optimizer, ddprun::lr_scheduler::exponential_lr(0.6));
  ddprun::GradScaler scaler({.enabled = context.device().is_cuda()});

  const FashionMnist test = read_fashion_mnist(kData, Split::kTest);
  ddprun::DataLoader loader(read_fashion_mnist(kData, Split::kTrain).first(kSamples),
                            ddprun::DistributedSampler(kSamples, context, {.seed = 1}),
                            {.batch_size = 32, .device = context.device()});
  ddprun::DataLoader test_loader(
      test,
      ddprun::DistributedSampler(test.size(), context,
                                 {.shuffle = false, .allow_duplicates = false}),
      {.batch_size = 250, .device = context.device()});

  ddprun::Trainer trainer(
      context, model, optimizer,
      {.max_epochs = 20, .monitor = "accuracy", .patience = 2, .min_delta = 0.002});
  trainer.use(schedule, ddprun::LRScheduler::Interval::kEpoch);
  trainer.use(scaler);
  trainer.add_callback(std::make_shared<Print>(), ddprun::Callback::On::kMainProcess);
  std::unique_ptr<ddprun::Checkpointer> checkpoints;
  if (!checkpoint_folder.empty()) {
    const ddprun::CheckpointOptions options{.best = ddprun::MetricMode::kMax};
    checkpoints = std::make_unique<ddprun::Checkpointer>(context, checkpoint_folder, options);
    trainer.use(*checkpoints);
  }
  const torch::ScalarType half = context.device().is_cuda() ? torch::kHalf : torch::kBFloat16;
  const ddprun::History history = trainer.fit(
      loader,
      [&](auto& module, auto& batch) {
        const ddprun::Autocast autocast(context.device(), half);
        return torch::nn::functional::cross_entropy(module(batch.data), batch.target);
      },
      [&] {
        ddprun::Accuracy accuracy;
        for (auto& batch : test_loader) accuracy.update(net->forward(batch.data), batch.target);
        return ddprun::Metrics{{"accuracy", accuracy.compute(context)}};
      });
  if (!context.is_main_process()) return;
  std::printf("best accuracy %.1f %%, stopped after epoch %zu\n",
              100 * history.best("accuracy")->metrics.at("accuracy"), history.epochs.size());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string checkpoint_folder = argc > 1 ? argv[1] : "";
  return ddprun::run(argc, argv,
                     [&](ddprun::Context& context) { train(context, checkpoint_folder); });
}
