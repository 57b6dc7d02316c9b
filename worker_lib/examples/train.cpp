// Trains a small CNN on Fashion-MNIST with any number of processes.
//
//   train                                     alone, on one process
//   ddprun --nproc_per_node=2 train           on two; each takes half of every epoch
//   ddprun --nproc_per_node=2 --max-restarts 3 train --checkpoint-dir ckpt
//                                             survives a killed worker: continues from the
//                                             checkpoint, with the same final weights, bit for bit
//   ddprun --nproc_per_node=2 --max-restarts 3 --standby=auto train
//                                             the same, but the other worker keeps its process,
//                                             and no step is lost: a standby takes the place
//   ddprun --nproc_per_node=2 --preempt-signal=USR1 train --checkpoint-dir ckpt
//                                             on SIGUSR1 all ranks leave after the same step, with
//                                             a checkpoint; ddprun ends with 113: queue it again
//
// Data: Debian's dataset-fashion-mnist, or --data FOLDER with the four IDX files, gzipped or not.
// Last line on stdout:  test accuracy: 89.07 %      (about this after the default 3 epochs)
#include <torch/nn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "ddprun/checkpoint.h"
#include "ddprun/ddp.h"
#include "ddprun/evaluation_mode.h"
#include "ddprun/log.h"
#include "ddprun/metrics.h"
#include "ddprun/optim.h"
#include "ddprun/progress.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"
#include "ddprun/sampler.h"
#include "worker_lib/examples/fashion_mnist.h"
#include "worker_lib/examples/fashion_net.h"

namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

struct Settings {
  int epochs = 3;
  std::int64_t batch_size = 64;  // per rank
  double lr = 0.05;
  std::uint64_t seed = 1;
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::int64_t limit = 0;  // 0: all samples
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 0;  // steps; 0: at the end of each epoch only
  std::string memory_every = "0";     // steps between snapshots in memory, or auto
  std::string backend = "auto";
};

FashionMnist load(const Settings& settings, Split split) {
  FashionMnist all = read_fashion_mnist(settings.data, split);
  if (settings.limit > 0) all = all.first(settings.limit);
  return all;
}

// Over the test set, each sample on exactly one rank. On the bare module: ranks may have different
// numbers of batches.
double test_accuracy(Net& model, const FashionMnist& test, ddprun::Context& context) {
  constexpr std::int64_t kBatch = 250;
  const ddprun::EvaluationMode evaluation(model);
  ddprun::Accuracy accuracy;
  const Tensor mine = torch::arange(context.rank(), test.size(), context.world_size(),
                                    torch::dtype(torch::kInt64).device(context.device()));
  for (const Tensor& indices : mine.split(kBatch)) {
    if (indices.numel() == 0) continue;  // fewer samples than ranks
    accuracy.update(model.forward(test.pixels(indices)), test.targets(indices));
  }
  return accuracy.compute(context);
}

class Training {
 public:
  Training(const Settings& settings, const FashionMnist& train, const FashionMnist& test,
           ddprun::Context& context)
      : settings_(settings),
        context_(context),
        train_(train.to(context.device())),
        test_(test.to(context.device())),
        sampler_(train_.size(), context, {.seed = settings.seed}),
        model_(make_net(), context),
        optimizer_(model_.parameters(), ddprun::optim::SGDOptions(settings.lr).momentum(0.9)),
        recoverable_(context, model_, optimizer_) {
    at_.seed = settings.seed;
    at_.notes["batch_size"] = std::to_string(settings.batch_size);
    if (!settings.checkpoint_dir.empty()) resume();
    recoverable_.keep(at_.epoch, at_.consumed, at_.step, epoch_loss_, last_loss_);
    recoverable_.join(
        [this] { make_step(torch::arange(std::min(settings_.batch_size, train_.size()))); });
  }

  void run() {
    double accuracy = 0;
    if (at_.epoch >= settings_.epochs) accuracy = test_accuracy(*model_, test_, context_);
    while (at_.epoch < settings_.epochs) {
      const auto after_epoch = run_epoch();
      if (!after_epoch) return;
      accuracy = *after_epoch;
    }
    if (context_.is_main_process()) std::printf("test accuracy: %.2f %%\n", accuracy * 100);
    std::fflush(stdout);
  }

 private:
  std::shared_ptr<Net> make_net() {
    torch::manual_seed(settings_.seed);
    auto net = std::make_shared<Net>();
    net->to(context_.device());
    return net;
  }

  void resume() {
    checkpoints_ = std::make_unique<ddprun::Checkpointer>(
        context_, settings_.checkpoint_dir,
        ddprun::CheckpointOptions{.memory_every = settings_.memory_every == "auto"
                                                      ? ddprun::kMemoryAuto
                                                      : std::stoi(settings_.memory_every)});
    // Which gradients are summed together: with three and more ranks the bits depend on it.
    checkpoints_->register_for_checkpointing("buckets", model_);
    if (auto saved = checkpoints_->resume(model_, optimizer_)) continue_from(*saved);
  }

  void continue_from(const ddprun::TrainingPosition& saved) {
    const auto batch_size = saved.notes.find("batch_size");
    if (saved.seed != at_.seed || batch_size == saved.notes.end() ||
        batch_size->second != at_.notes["batch_size"]) {
      throw ddprun::UsageError(
          "the checkpoints in " + settings_.checkpoint_dir + " were written with --seed " +
          std::to_string(saved.seed) + " --batch-size " +
          (batch_size == saved.notes.end() ? "(unknown)" : batch_size->second) +
          "; give the same, or another --checkpoint-dir");
    }
    at_.epoch = saved.epoch;
    at_.consumed = saved.consumed;
    at_.step = saved.step;
    if (context_.is_main_process()) add_saved_loss(saved.notes);
    ddprun::log::info("continuing in epoch ", at_.epoch + 1, " after step ", at_.step);
  }

  // The loss of the epoch so far goes with the position, so that an epoch that was interrupted
  // reports the mean of all its samples. %a: exact.
  void save() {
    if (!checkpoints_) return;
    note_loss();
    checkpoints_->save(model_, optimizer_, at_);
  }
  void note_loss() {
    const ddprun::Mean::Total total = mean_loss().total(context_);
    char text[64];
    std::snprintf(text, sizeof text, "%a %lld", total.sum, static_cast<long long>(total.count));
    at_.notes["epoch_loss"] = text;
  }
  // In memory; the disk's are saved beside them.
  void keep() {
    if (!checkpoints_ || !checkpoints_->keeps_after(at_.step)) return;
    note_loss();
    checkpoints_->keep(model_, optimizer_, at_);
  }

  void add_saved_loss(const std::map<std::string, std::string>& notes) {
    double sum = 0;
    long long count = 0;
    const auto note = notes.find("epoch_loss");
    if (note != notes.end() && std::sscanf(note->second.c_str(), "%la %lld", &sum, &count) == 2) {
      epoch_loss_ = {sum, count};
    }
  }

  ddprun::Mean mean_loss() const {
    ddprun::Mean mean;
    mean.update(epoch_loss_.sum, epoch_loss_.count);
    return mean;
  }

  // If another rank dies meanwhile, it is made again. What it leaves behind is set before backward().
  void step(const Tensor& indices) {
    recoverable_.step([&] { make_step(indices); });
  }
  void make_step(const Tensor& indices) {
    optimizer_.zero_grad();
    const Tensor loss = F::cross_entropy(model_(train_.pixels(indices)), train_.targets(indices));
    last_loss_ = loss.item<float>();
    epoch_loss_.sum += static_cast<double>(last_loss_) * static_cast<double>(indices.size(0));
    epoch_loss_.count += indices.size(0);
    loss.backward();
    optimizer_.step();
  }

  // Of the whole training, for whoever watches it.
  std::int64_t total_steps() const {
    const std::int64_t per_step = settings_.batch_size * context_.world_size();
    return settings_.epochs * ((train_.size() + per_step - 1) / per_step);
  }

  // The rest of the epoch at_.epoch; returns the accuracy after it, or nothing when the job is to
  // end early.
  std::optional<double> run_epoch() {
    const auto begun = std::chrono::steady_clock::now();
    sampler_.set_epoch(at_.epoch, at_.consumed);
    const std::string name =
        "epoch " + std::to_string(at_.epoch + 1) + "/" + std::to_string(settings_.epochs);
    const std::int64_t consumed_before = at_.consumed;
    {
      ddprun::ProgressBar bar(context_.is_main_process(), name,
                              at_.consumed + sampler_.remaining() * context_.world_size(),
                              at_.consumed);
      while (const auto batch = sampler_.next(static_cast<std::size_t>(settings_.batch_size))) {
        step(as_tensor(*batch).to(context_.device()));
        ++at_.step;
        at_.consumed = sampler_.consumed();
        const bool is_due = bar.is_due();
        bar.advance(static_cast<std::int64_t>(batch->size()) * context_.world_size(),
                    is_due ? "loss " + std::to_string(last_loss_) : std::string());
        context_.progress(at_.step, total_steps(), {{"loss", last_loss_}});
        const bool is_leaving = context_.should_leave();
        keep();
        if (is_leaving ||
            (settings_.checkpoint_every > 0 && at_.step % settings_.checkpoint_every == 0)) {
          save();
        }
        if (is_leaving) {
          ddprun::log::info("leaving after step ", at_.step, ", as asked");
          return std::nullopt;
        }
      }
    }
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begun;
    const auto samples = static_cast<double>(at_.consumed - consumed_before);
    const double loss = mean_loss().compute(context_);
    const double accuracy = test_accuracy(*model_, test_, context_);
    if (context_.is_main_process()) {
      std::printf("%s: train loss %.4f, test accuracy %.2f %%, %.0f samples/s\n", name.c_str(),
                  loss, accuracy * 100, samples / passed.count());
      std::fflush(stdout);
    }
    ++at_.epoch;
    at_.consumed = 0;
    epoch_loss_ = {};
    save();
    return accuracy;
  }

  const Settings& settings_;
  ddprun::Context& context_;
  FashionMnist train_;
  FashionMnist test_;
  ddprun::DistributedSampler sampler_;
  ddprun::DistributedDataParallel<Net> model_;
  ddprun::optim::SGD optimizer_;
  ddprun::Mean::Total epoch_loss_;  // of the epoch that is running, on this rank
  float last_loss_ = 0;
  std::unique_ptr<ddprun::Checkpointer> checkpoints_;
  ddprun::TrainingPosition at_;
  ddprun::Recoverable recoverable_;
};

}  // namespace

int main(int argc, char** argv) {
  constexpr int kWrongUsage = 2;
  Settings settings;
  CLI::App app("Trains a small CNN on Fashion-MNIST; the last line says the accuracy reached.");
  app.option_defaults()->always_capture_default();
  app.add_option("--epochs", settings.epochs, "passes over the data")->check(CLI::PositiveNumber);
  app.add_option("--batch-size", settings.batch_size, "samples per rank and step")
      ->check(CLI::PositiveNumber);
  app.add_option("--lr", settings.lr, "learning rate")->check(CLI::PositiveNumber);
  app.add_option("--seed", settings.seed, "of the initial weights and the order of samples");
  app.add_option("--data", settings.data, "folder with the four IDX files");
  app.add_option("--limit", settings.limit, "use only the first samples of each part; 0: all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--checkpoint-dir", settings.checkpoint_dir,
                 "save there, and continue from what is there");
  app.add_option("--checkpoint-every", settings.checkpoint_every,
                 "steps between checkpoints; 0: after each epoch")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--memory-every", settings.memory_every,
         "steps between snapshots in ddprun's memory, for which --checkpoint-dir is needed; "
         "auto: as often as it takes 1 % of the time; 0: none")
      ->check(CLI::NonNegativeNumber | CLI::IsMember({"auto"}));
  app.add_option("--backend", settings.backend, "auto, shm or gloo (CPU), nccl (GPU)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  }
  try {
    const ddprun::ContextOptions options{.backend = ddprun::backend_from(settings.backend),
                                         .keep_freed_memory = true};
    // Before the Context: standbys are forked there, and have it.
    const FashionMnist train = load(settings, Split::kTrain);
    const FashionMnist test = load(settings, Split::kTest);
    return ddprun::run(
        argc, argv,
        [&](ddprun::Context& context) { Training(settings, train, test, context).run(); }, options);
  } catch (const ddprun::UsageError& error) {
    std::fprintf(stderr, "train: %s\n", error.what());
    return kWrongUsage;
  }
}
