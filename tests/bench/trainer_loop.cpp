// A training of an MLP by the Trainer and by a loop of its own. trainer_parity.py (tests/compat) runs
// the Trainer's beside the same program in Python, trainer_loop.py; scripts/bench trainer measures
// what the Trainer costs (--compare). Run under a launcher; rank 0 prints one line of JSON:
//   {"epoch_losses": [0.41, 0.29]}
//   {"ranks": 2, "steps": 3000, "manual_us": 402.1, "trainer_us": 403.3, "ratio": 1.003,
//    "manual_cpu_us": 251.2, "trainer_cpu_us": 253.0}
// The latter is what the training thread itself computes in a step, which a loaded machine bends
// less; other threads and waiting are not in it.
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <optional>
#include <vector>

#include "ddprun/ddp.h"
#include "ddprun/run.h"
#include "ddprun/trainer.h"

namespace {

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

struct Batch {
  Tensor inputs, targets;
};

// A range of one's own: this rank's batches of an epoch.
class Batches {
 public:
  Batches(const Settings& settings, ddprun::Context& context)
      : sampler_(settings.samples, context, {.seed = 3}), batch_size_(settings.batch_size) {
    torch::manual_seed(100);
    inputs_ = torch::randn({settings.samples, kInputs});
    targets_ = torch::randint(kClasses, {settings.samples}, torch::kInt64);
  }
  const ddprun::DistributedSampler& sampler() const { return sampler_; }

  class Iterator {
   public:
    explicit Iterator(Batches* batches) : batches_(batches), batch_(batches->next()) {}
    Batch& operator*() { return *batch_; }
    Iterator& operator++() {
      batch_ = batches_->next();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return !batch_; }

   private:
    Batches* batches_;
    std::optional<Batch> batch_;
  };
  Iterator begin() { return Iterator(this); }
  std::default_sentinel_t end() { return {}; }

  std::optional<Batch> next() {
    const auto indices = sampler_.next(static_cast<std::size_t>(batch_size_));
    if (!indices) return std::nullopt;
    const Tensor rows =
        torch::tensor(std::vector<std::int64_t>(indices->begin(), indices->end()), torch::kInt64);
    return Batch{inputs_.index_select(0, rows), targets_.index_select(0, rows)};
  }

 private:
  ddprun::DistributedSampler sampler_;
  int batch_size_;
  Tensor inputs_, targets_;
};

double thread_cpu_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

struct Run {
  std::vector<double> step_us;
  std::vector<double> cpu_us;
  float last_loss = 0;
};

class Training {
 public:
  Training(const Settings& settings, ddprun::Context& context)
      : settings_(settings),
        context_(context),
        batches_(settings, context),
        model_(make_net(settings), context),
        optimizer_(model_.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        schedule_(optimizer_,
                  ddprun::schedules::one_cycle({.max_lr = {0.2}, .total_steps = 100000})) {
    if (settings.loss_file.empty()) return;
    const std::string name = settings.loss_file + ".rank" + std::to_string(context.rank());
    losses_ = std::fopen(name.c_str(), "w");
    if (losses_ == nullptr) throw ddprun::UsageError("cannot write " + name);
  }
  ~Training() {
    if (losses_ != nullptr) std::fclose(losses_);
  }

  Run by_hand() {
    begin_run();
    double loss_sum = 0;
    for (int epoch = 0; epoch < settings_.epochs; ++epoch) {
      ddprun::DistributedSampler sampler = batches_.sampler();
      sampler.set_epoch(epoch);
      for (const Batch& batch : batches_) {
        optimizer_.zero_grad();
        const Tensor loss = loss_of(batch);
        loss.backward();
        optimizer_.step();
        schedule_.step();
        loss_sum += loss.item<double>();
      }
    }
    return run_;
  }

  Run by_trainer() {
    begin_run();
    ddprun::Trainer trainer(context_, model_, optimizer_,
                            {.epochs = settings_.epochs,
                             .update_every = settings_.update_every,
                             .clip_norm = settings_.clip_norm});
    trainer.use(schedule_, ddprun::Every::kStep);
    if (!settings_.tensorboard.empty()) {
      trainer.add(std::make_shared<ddprun::TensorBoard>(settings_.tensorboard),
                  ddprun::On::kMainProcess);
    }
    history_ = trainer.fit(batches_, [this](auto&, const Batch& batch) {
      return ddprun::BatchResult{loss_of(batch), batch.targets.size(0)};
    });
    return run_;
  }

  const ddprun::History& history() const { return history_; }
  const Mlp& net() const { return *model_; }

 private:
  static std::shared_ptr<Mlp> make_net(const Settings& settings) {
    torch::manual_seed(1);
    return std::make_shared<Mlp>(settings.hidden);
  }

  void begin_run() {
    run_ = {};
    last_call_.reset();
  }

  // From one call to the next is one step, with all that the loop does around it.
  Tensor loss_of(const Batch& batch) {
    const auto now = Clock::now();
    const double cpu = thread_cpu_us();
    if (last_call_) {
      run_.step_us.push_back(std::chrono::duration<double, std::micro>(now - *last_call_).count());
      run_.cpu_us.push_back(cpu - last_cpu_us_);
    }
    last_call_ = now;
    last_cpu_us_ = cpu;
    const Tensor loss = torch::nn::functional::cross_entropy(model_(batch.inputs), batch.targets);
    run_.last_loss = loss.item<float>();
    if (losses_ != nullptr) std::fprintf(losses_, "%a\n", static_cast<double>(run_.last_loss));
    return loss;
  }

  const Settings& settings_;
  ddprun::Context& context_;
  Batches batches_;
  ddprun::DistributedDataParallel<Mlp> model_;
  torch::optim::SGD optimizer_;
  ddprun::Schedule schedule_;
  std::FILE* losses_ = nullptr;
  std::optional<Clock::time_point> last_call_;
  double last_cpu_us_ = 0;
  Run run_;
  ddprun::History history_;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void check_same_work(const Settings& settings, ddprun::Context& context) {
  Training by_hand(settings, context), by_trainer(settings, context);
  if (by_hand.by_hand().last_loss != by_trainer.by_trainer().last_loss) {
    throw std::runtime_error("the two loops did not do the same work");
  }
}

// The two take turns with one and the same model, optimizer and data: where those lie in memory
// changes a step by more than a loop can cost. A turn is short, so that both of a pair see the same
// machine; the ratio is the median of those of the pairs.
void compare(const Settings& settings, ddprun::Context& context) {
  check_same_work(settings, context);
  Training training(settings, context);
  std::vector<double> by_hand, by_trainer, ratios, cpu_by_hand, cpu_by_trainer;
  std::size_t steps = 0;
  for (int turn = 0; turn <= settings.compare; ++turn) {
    Run manual, trainer;
    for (const bool is_trainers : {turn % 2 == 0, turn % 2 != 0}) {
      (is_trainers ? trainer : manual) = is_trainers ? training.by_trainer() : training.by_hand();
    }
    if (turn == 0) continue;  // to warm up
    steps += manual.step_us.size();
    by_hand.push_back(median(manual.step_us));
    by_trainer.push_back(median(trainer.step_us));
    ratios.push_back(by_trainer.back() / by_hand.back());
    cpu_by_hand.push_back(median(manual.cpu_us));
    cpu_by_trainer.push_back(median(trainer.cpu_us));
  }
  if (!context.is_main_process()) return;
  std::printf(
      "{\"ranks\": %d, \"steps\": %zu, \"manual_us\": %.2f, \"trainer_us\": %.2f, \"ratio\": "
      "%.4f, \"manual_cpu_us\": %.2f, \"trainer_cpu_us\": %.2f}\n",
      context.world_size(), steps, median(by_hand), median(by_trainer), median(ratios),
      median(cpu_by_hand), median(cpu_by_trainer));
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
  CLI11_PARSE(app, argc, argv);
  return ddprun::run(argc, argv,
                     [&](ddprun::Context& context) {
                       if (settings.compare > 0) {
                         compare(settings, context);
                       } else {
                         train(settings, context);
                       }
                     },
                     {.backend = ddprun::Backend::kGloo});
}
