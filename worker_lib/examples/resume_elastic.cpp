// A training that outlives its workers and takes in new ones: a worker is killed, and later the job grows; each time the
// training goes on from the checkpoint, with as many ranks as there are then, and takes the same course, since the batch of
// a step is divided among the ranks.
//
//   resume_elastic                                   alone
//
// To try it, train for longer (--epochs 5000), and end one of the workers while it trains: `ddpctl status` has their process
// ids, `kill -9` ends one of them. It is started again:
//
//   ddprun --nproc-per-node=2 --max-restarts=3 resume_elastic --checkpoint-dir ckpt --epochs 5000
//
// Without --max-restarts the job ends then, and the next one goes on with another number of ranks:
//
//   ddprun --nproc-per-node=3 resume_elastic --checkpoint-dir ckpt --epochs 5000
//
// Grows while it trains: the first command in one terminal (on one host), the same again in a
// second one (or on a second host, with the first one's name for localhost):
//
//   ddprun --nnodes=1:2 --nproc-per-node=2 --max-restarts=3 --rdzv-backend=c10d
//       --rdzv-endpoint=localhost:29400 --rdzv-conf=last_call_timeout=1
//       resume_elastic --checkpoint-dir ckpt --epochs 5000
//
// Last line on stdout, here of one with 15 epochs (the default) that has lost a worker and grown:
//   accuracy 97.4 % after 300 steps by 2 -> 2 -> 4 ranks        (about this)
#include <torch/nn.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/ddp.h"
#include "ddprun/log.h"
#include "ddprun/metrics.h"
#include "ddprun/optim.h"
#include "ddprun/run.h"
#include "ddprun/sampler.h"

namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

constexpr std::int64_t kPoints = 1920;
constexpr std::uint64_t kSeed = 1;

struct Settings {
  std::int64_t epochs = 15;
  std::int64_t batch_size = 96;  // of a step, over all ranks
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 5;  // steps
};

// Which points of a square lie within a circle?
struct Points {
  Points() {
    torch::manual_seed(kSeed);
    positions = torch::rand({kPoints, 2}).mul_(2).sub_(1);
    is_inside = positions.square().sum(1).lt(0.64).to(torch::kInt64);
  }
  Tensor positions;  // [n, 2]
  Tensor is_inside;  // [n] 0 or 1
};

torch::nn::Sequential make_net() {
  torch::manual_seed(kSeed);
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(2, 32));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(32, 32));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(32, 2));
  return net;
}

// This rank's share of a step.
std::size_t share_of(std::int64_t batch_size, int world_size) {
  if (batch_size % world_size == 0) return static_cast<std::size_t>(batch_size / world_size);
  throw ddprun::UsageError("--batch-size " + std::to_string(batch_size) + " cannot be divided by " +
                           std::to_string(world_size) +
                           " ranks: give a multiple of every number of ranks there may be");
}

class Training {
 public:
  Training(const Settings& settings, ddprun::Context& context)
      : settings_(settings),
        context_(context),
        share_(share_of(settings.batch_size, context.world_size())),
        sampler_(kPoints, context, {.seed = kSeed}),
        model_(make_net(), context),
        optimizer_(model_.parameters(), ddprun::optim::AdamOptions(0.01).fused(true)) {
    at_.seed = kSeed;
    if (!settings.checkpoint_dir.empty()) {
      checkpoints_ = std::make_unique<ddprun::Checkpointer>(
          context, settings.checkpoint_dir, ddprun::CheckpointOptions{.async_save = true});
      checkpoints_->register_for_checkpointing("buckets", model_);
      if (auto saved = checkpoints_->resume(model_, optimizer_)) {
        at_ = *saved;
        ddprun::log::info("continuing after step ", at_.step, " with ", context.world_size(),
                          " ranks; it was saved by ", at_.world_size);
      }
    }
    // Who has trained so far: kept in the checkpoint, as any text of the program's can be.
    std::string& worlds = at_.notes["worlds"];
    worlds += (worlds.empty() ? "" : " -> ") + std::to_string(context.world_size());
  }

  void run() {
    for (; at_.epoch < settings_.epochs; ++at_.epoch, at_.consumed = 0) run_epoch();
    if (checkpoints_) checkpoints_->wait();
    const double accuracy = measure();
    if (!context_.is_main_process()) return;
    std::printf("accuracy %.1f %% after %lld steps by %s ranks\n", accuracy * 100,
                static_cast<long long>(at_.step), at_.notes["worlds"].c_str());
    std::fflush(stdout);
  }

 private:
  // What is left of it.
  void run_epoch() {
    sampler_.set_epoch(at_.epoch, at_.consumed);
    while (const auto batch = sampler_.next(share_)) {
      const Tensor indices =
          torch::tensor(std::vector<std::int64_t>(batch->begin(), batch->end()), torch::kInt64);
      optimizer_.zero_grad();
      F::cross_entropy(model_(points_.positions.index_select(0, indices)),
                       points_.is_inside.index_select(0, indices))
          .backward();
      optimizer_.step();
      ++at_.step;
      at_.consumed = sampler_.consumed();
      context_.progress(at_.step);
      if (checkpoints_ && at_.step % settings_.checkpoint_every == 0) {
        checkpoints_->save(model_, optimizer_, at_);
      }
    }
  }

  double measure() {
    const torch::NoGradGuard no_grad;
    const Tensor mine = torch::arange(context_.rank(), kPoints, context_.world_size());
    ddprun::Accuracy accuracy;
    accuracy.update(model_->forward(points_.positions.index_select(0, mine)),
                    points_.is_inside.index_select(0, mine));
    return accuracy.compute(context_);
  }

  const Settings& settings_;
  ddprun::Context& context_;
  std::size_t share_;
  Points points_;
  ddprun::DistributedSampler sampler_;
  ddprun::DistributedDataParallel<torch::nn::SequentialImpl> model_;
  ddprun::optim::Adam optimizer_;
  std::unique_ptr<ddprun::Checkpointer> checkpoints_;
  ddprun::TrainingPosition at_;
};

}  // namespace

int main(int argc, char** argv) {
  constexpr int kWrongUsage = 2;
  Settings settings;
  CLI::App app("A training that goes on with another number of ranks after a death.");
  app.option_defaults()->always_capture_default();
  app.add_option("--epochs", settings.epochs, "passes over the data")->check(CLI::PositiveNumber);
  app.add_option("--batch-size", settings.batch_size, "samples per step, over all ranks")
      ->check(CLI::PositiveNumber);
  app.add_option("--checkpoint-dir", settings.checkpoint_dir,
                 "save there, and continue from what is there");
  app.add_option("--checkpoint-every", settings.checkpoint_every, "steps")
      ->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  }
  return ddprun::run(argc, argv,
                     [&](ddprun::Context& context) { Training(settings, context).run(); });
}
