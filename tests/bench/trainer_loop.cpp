// A training of an MLP by the Trainer and by a loop of its own. trainer_parity.py (tests/compat) runs
// the Trainer's beside the same program in Python, trainer_loop.py; scripts/bench trainer measures
// what the Trainer costs (--compare). Run under a launcher; rank 0 prints one line of JSON:
//   {"epoch_losses": [0.41, 0.29]}
//   {"ranks": 2, "steps": 3000, "manual_us": 402.1, "trainer_us": 403.3, "ratio": 1.003,
//    "control": 0.999}
// The control is the loop by hand compared with itself: what of a ratio is the machine's.
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <optional>
#include <vector>

#include "ddprun/ddp.h"
#include "ddprun/run.h"
#include "ddprun/trainer.h"
#include "tests/bench/timing.h"
#include "tests/support/random_batches.h"

namespace {

using ddprun::bench::median;

using torch::Tensor;
using Clock = std::chrono::steady_clock;

constexpr int kInputs = 100;
constexpr int kClasses = 10;

struct Settings {
  int hidden = 64;
  std::int64_t samples = 1000;
  int batch_size = 32;
  int epochs = 2;
  int update_every = 1;
  double clip_norm = 0;
  std::string loss_file, weights_file, tensorboard;
  int compare = 0;
  std::string backend = "gloo";
};

struct Mlp : torch::nn::Module {
  explicit Mlp(int hidden) {
    // One layer per statement: they draw from the generator in this order.
    fc1 = register_module("fc1", torch::nn::Linear(kInputs, hidden));
    fc2 = register_module("fc2", torch::nn::Linear(hidden, hidden));
    fc3 = register_module("fc3", torch::nn::Linear(hidden, kClasses));
  }
  Tensor forward(const Tensor& x) { return fc3(torch::relu(fc2(torch::relu(fc1(x))))); }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr};
};

using Batch = ddprun::test::RandomBatch;
using Batches = ddprun::test::RandomBatches;

class Training {
 public:
  Training(const Settings& settings, ddprun::Context& context)
      : settings_(settings),
        context_(context),
        batches_(context, {.samples = settings.samples,
                           .inputs = kInputs,
                           .classes = kClasses,
                           .batch = static_cast<std::size_t>(settings.batch_size)}),
        model_(make_net(settings), context),
        optimizer_(model_.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        schedule_(optimizer_,
                  ddprun::lr_scheduler::one_cycle_lr({.max_lr = {0.2}, .total_steps = 100000})) {
    if (settings.loss_file.empty()) return;
    const std::string name = settings.loss_file + ".rank" + std::to_string(context.rank());
    losses_ = std::fopen(name.c_str(), "w");
    if (losses_ == nullptr) throw ddprun::UsageError("cannot write " + name);
  }
  ~Training() {
    if (losses_ != nullptr) std::fclose(losses_);
  }

  // Each loop's last loss.
  float by_hand() {
    for (int epoch = 0; epoch < settings_.epochs; ++epoch) {
      ddprun::DistributedSampler sampler = batches_.sampler();
      sampler.set_epoch(epoch);
      for (const Batch& batch : batches_) step_by_hand(batch);
    }
    return last_loss_;
  }

  float by_trainer() { return by_trainer(batches_, settings_.epochs); }

  template <typename Range>
  float by_trainer(Range& batches, int epochs) {
    ddprun::Trainer trainer(context_, model_, optimizer_,
                            {.max_epochs = epochs,
                             .accumulate_grad_batches = settings_.update_every,
                             .clip_grad_norm = settings_.clip_norm});
    trainer.use(schedule_, ddprun::LRScheduler::Interval::kStep);
    if (!settings_.tensorboard.empty()) {
      trainer.add_callback(std::make_shared<ddprun::TensorBoard>(settings_.tensorboard),
                           ddprun::Callback::On::kMainProcess);
    }
    history_ = trainer.fit(batches, [this](auto&, const Batch& batch) {
      return ddprun::BatchResult{loss_of(batch), batch.targets.size(0)};
    });
    return last_loss_;
  }

  void step_by_hand(const Batch& batch) {
    optimizer_.zero_grad();
    const Tensor loss = loss_of(batch);
    loss.backward();
    optimizer_.step();
    schedule_.step();
    loss_sum_ += loss.item<double>();
  }

  // As many as there may be: epochs follow each other.
  Batch next_batch() {
    for (;;) {
      if (auto batch = batches_.next()) return *batch;
      ddprun::DistributedSampler sampler = batches_.sampler();
      sampler.set_epoch(++epoch_);
    }
  }

  const ddprun::History& history() const { return history_; }
  const Mlp& net() const { return *model_; }

 private:
  static std::shared_ptr<Mlp> make_net(const Settings& settings) {
    torch::manual_seed(1);
    return std::make_shared<Mlp>(settings.hidden);
  }

  Tensor loss_of(const Batch& batch) {
    const Tensor loss = torch::nn::functional::cross_entropy(model_(batch.inputs), batch.targets);
    last_loss_ = loss.item<float>();
    if (losses_ != nullptr) std::fprintf(losses_, "%a\n", static_cast<double>(last_loss_));
    return loss;
  }

  const Settings& settings_;
  ddprun::Context& context_;
  Batches batches_;
  ddprun::DistributedDataParallel<Mlp> model_;
  torch::optim::SGD optimizer_;
  ddprun::LRScheduler schedule_;
  std::FILE* losses_ = nullptr;
  float last_loss_ = 0;
  double loss_sum_ = 0;  // as somebody would keep it who wants to see it
  std::int64_t epoch_ = 0;
  ddprun::History history_;
};

void check_same_work(const Settings& settings, ddprun::Context& context) {
  Training by_hand(settings, context), by_trainer(settings, context);
  if (by_hand.by_hand() != by_trainer.by_trainer()) {
    throw std::runtime_error("the two loops did not do the same work");
  }
}

// A range of batches for one fit(): whenever the Trainer has made a turn of steps, and asks for the
// next batch, turns by hand are made in between. So the two alternate within milliseconds with one
// and the same model, optimizer and data, and a Trainer's turn has in it whatever it does only now
// and then (votes, a line of progress), as often as in a long training.
class Turns {
 public:
  static constexpr int kSteps = 20;

  Turns(Training& training, int turns) : training_(training), turns_left_(turns) {}

  struct Turn {
    double by_hand_us = 0, trainer_us = 0, again_us = 0;
  };
  const std::vector<Turn>& turns() const { return turns_; }

  class Iterator {
   public:
    explicit Iterator(Turns* turns) : turns_(turns), batch_(turns->next()) {}
    Batch& operator*() { return *batch_; }
    Iterator& operator++() {
      batch_ = turns_->next();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return !batch_; }

   private:
    Turns* turns_;
    std::optional<Batch> batch_;
  };
  Iterator begin() { return Iterator(this); }
  std::default_sentinel_t end() { return {}; }

 private:
  std::optional<Batch> next() {
    if (steps_left_ == 0) {
      if (!turns_.empty()) {
        turns_.back().trainer_us = us_since(begun_);
        turns_.back().again_us = turn_by_hand();
      }
      if (turns_left_-- == 0) return std::nullopt;
      turns_.push_back({.by_hand_us = turn_by_hand()});
      steps_left_ = kSteps;
      begun_ = Clock::now();
    }
    --steps_left_;
    return training_.next_batch();
  }

  double turn_by_hand() {
    const auto begun = Clock::now();
    for (int i = 0; i < kSteps; ++i) training_.step_by_hand(training_.next_batch());
    return us_since(begun);
  }

  static double us_since(Clock::time_point begun) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begun).count() / kSteps;
  }

  Training& training_;
  int turns_left_;
  int steps_left_ = 0;
  Clock::time_point begun_;
  std::vector<Turn> turns_;
};

void compare(const Settings& settings, ddprun::Context& context) {
  check_same_work(settings, context);
  Training training(settings, context);
  Turns turns(training, settings.compare);
  training.by_trainer(turns, 1);
  if (!context.is_main_process()) return;
  const auto median_of = [&](const auto& value) {
    std::vector<double> values;
    for (const Turns::Turn& turn : turns.turns()) values.push_back(value(turn));
    return median(std::move(values));
  };
  std::printf(
      "{\"ranks\": %d, \"steps\": %zu, \"manual_us\": %.2f, \"trainer_us\": %.2f, \"ratio\": "
      "%.4f, \"control\": %.4f}\n",
      context.world_size(), turns.turns().size() * Turns::kSteps,
      median_of([](const auto& turn) { return (turn.by_hand_us + turn.again_us) / 2; }),
      median_of([](const auto& turn) { return turn.trainer_us; }), median_of([](const auto& turn) {
        return turn.trainer_us / ((turn.by_hand_us + turn.again_us) / 2);
      }),
      median_of([](const auto& turn) { return turn.again_us / turn.by_hand_us; }));
}

void train(const Settings& settings, ddprun::Context& context) {
  Training training(settings, context);
  training.by_trainer();
  if (!context.is_main_process()) return;
  if (!settings.weights_file.empty()) ddprun::save_weights(training.net(), settings.weights_file);
  std::printf("{\"epoch_losses\": [");
  for (const auto& epoch : training.history().epochs) {
    std::printf("%s%.17g", epoch.epoch == 0 ? "" : ", ", epoch.loss);
  }
  std::printf("]}\n");
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Trains an MLP by the Trainer, and by hand.");
  app.add_option("--hidden", settings.hidden, "width")->check(CLI::PositiveNumber);
  app.add_option("--samples", settings.samples, "in an epoch")->check(CLI::PositiveNumber);
  app.add_option("--batch-size", settings.batch_size, "per rank")->check(CLI::PositiveNumber);
  app.add_option("--epochs", settings.epochs, "of each training")->check(CLI::PositiveNumber);
  app.add_option("--update-every", settings.update_every, "batches")->check(CLI::PositiveNumber);
  app.add_option("--clip-norm", settings.clip_norm, "0: not")->check(CLI::NonNegativeNumber);
  app.add_option("--loss-file", settings.loss_file, "each batch's loss, to NAME.rank<N>");
  app.add_option("--weights-file", settings.weights_file, "the final ones, as safetensors");
  app.add_option("--tensorboard", settings.tensorboard, "a folder for event files");
  app.add_option("--compare", settings.compare, "turns of both loops, measured")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--backend", settings.backend, "gloo or shm");
  CLI11_PARSE(app, argc, argv);
  return ddprun::run(
      argc, argv,
      [&](ddprun::Context& context) {
        if (settings.compare > 0) {
          compare(settings, context);
        } else {
          train(settings, context);
        }
      },
      {.backend = ddprun::backend_from(settings.backend), .keep_freed_memory = true});
}
