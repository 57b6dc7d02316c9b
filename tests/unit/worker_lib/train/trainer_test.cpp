#include "ddprun/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <locale>
#include <mutex>

#include "ddprun/data_loader.h"
#include "ddprun/ddp.h"
#include "ddprun/error.h"
#include "ddprun/failure_vote.h"
#include "ddprun/gradients.h"
#include "tests/unit/worker_lib/gpu.h"
#include "tests/unit/worker_lib/group_of_threads.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

using test::run_ranks;
using torch::Tensor;
using Interval = LRScheduler::Interval;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

// The threads share one default generator: layers are made by one at a time.
std::shared_ptr<Net> make_net() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(5);
  return std::make_shared<Net>();
}

struct Batch {
  Tensor inputs, targets;
};

// Without a random generator: threads share it.
Batch batch_of(int number, int rank) {
  const Tensor inputs = torch::sin(torch::arange(24, torch::kFloat32) * (number + 1) + rank);
  return {inputs.view({4, 6}), torch::tensor({0, 1, 2, number % 3}, torch::kInt64)};
}
std::vector<Batch> batches_of(int rank, int count) {
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) batches.push_back(batch_of(i, rank));
  return batches;
}

constexpr auto kLossOf = [](auto& net, const Batch& batch) {
  return torch::nn::functional::cross_entropy(net.forward(batch.inputs), batch.targets);
};

torch::optim::SGD sgd(const std::vector<Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

std::vector<Tensor> weights_of(const Net& net) {
  std::vector<Tensor> all;
  for (const Tensor& parameter : net.parameters()) all.push_back(parameter.detach().clone());
  return all;
}
bool are_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return true;
}

TrainerOptions quiet(TrainerOptions options) {
  options.enable_progress_bar = false;
  return options;
}

// What a run of the Trainer leaves.
struct Trained {
  History history;
  std::vector<Tensor> weights;
};
Trained train(Context& context, const TrainerOptions& options, int batches,
              const std::function<void(TrainerBase&)>& prepare = nullptr,
              const std::function<Metrics()>& evaluation = nullptr) {
  DistributedDataParallel model(make_net(), context);
  auto optimizer = sgd(model.parameters());
  Trainer trainer(context, model, optimizer, quiet(options));
  if (prepare) prepare(trainer);
  Trained trained;
  trained.history = trainer.fit(batches_of(context.rank(), batches), kLossOf, evaluation);
  trained.weights = weights_of(*model);
  return trained;
}

TEST(Trainer, AShortLastWindowIsTheMeanOfWhatItHas) {
  run_ranks(2, [](Context& context) {
    const Trained trained =
        train(context, {.max_epochs = 2, .accumulate_grad_batches = 3}, /*batches=*/7);

    DistributedDataParallel model(make_net(), context);
    auto optimizer = sgd(model.parameters());
    const auto batches = batches_of(context.rank(), 7);
    const std::vector<std::pair<int, int>> windows{{0, 3}, {3, 6}, {6, 7}};
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const auto& [begin, end] : windows) {
        optimizer.zero_grad();
        for (int i = begin; i < end; ++i) {
          const auto backward = [&] {
            (kLossOf(model, batches[static_cast<std::size_t>(i)]) / double(end - begin)).backward();
          };
          if (i + 1 < end) {
            const auto no_sync = model.no_sync();
            backward();
          } else {
            backward();
          }
        }
        optimizer.step();
      }
    }
    EXPECT_TRUE(are_equal(trained.weights, weights_of(*model)));
    EXPECT_EQ(trained.history.epochs.back().step, 6);
    EXPECT_EQ(trained.history.ending, History::Ending::kDone);
  });
}

// Writes down every hook, with its name in front.
struct Recorder : Callback {
  Recorder(std::string its_name, std::vector<std::string>& its_lines)
      : name(std::move(its_name)), lines(its_lines) {}
  void note(const std::string& what, const TrainingView& training) {
    lines.push_back(name + " " + what + " " + std::to_string(training.epoch()) + "." +
                    std::to_string(training.step()));
  }
  void on_train_begin(const TrainingView& training) override { note("begin", training); }
  void on_epoch_begin(const TrainingView& training) override { note("epoch", training); }
  void on_step_end(const TrainingView& training) override { note("step", training); }
  void on_evaluation_end(const TrainingView& training) override { note("evaluated", training); }
  void on_epoch_end(const TrainingView& training) override { note("epoch end", training); }
  void on_train_end(const TrainingView& training) override { note("end", training); }
  std::string name;
  std::vector<std::string>& lines;
};

TEST(Trainer, CallsHooksInOrderAndThoseOfTheMainProcessThereAlone) {
  run_ranks(2, [](Context& context) {
    std::vector<std::string> lines;
    train(
        context, {.max_epochs = 2}, /*batches=*/2,
        [&](TrainerBase& trainer) {
          trainer.add_callback(std::make_shared<Recorder>("a", lines));
          trainer.add_callback(std::make_shared<Recorder>("main", lines),
                               Callback::On::kMainProcess);
          trainer.add_callback(std::make_shared<Recorder>("b", lines), Callback::On::kAllRanks);
        },
        [] {
          return Metrics{{"x", 1}};
        });
    std::vector<std::string> expected;
    for (const char* what :
         {"begin 0.0", "epoch 0.0", "step 0.1", "step 0.2", "evaluated 0.2", "epoch end 0.2",
          "epoch 1.2", "step 1.3", "step 1.4", "evaluated 1.4", "epoch end 1.4", "end 2.4"}) {
      expected.push_back(std::string("a ") + what);
      if (context.is_main_process()) expected.push_back(std::string("main ") + what);
      expected.push_back(std::string("b ") + what);
    }
    EXPECT_EQ(lines, expected);
  });
}

TEST(Trainer, EvaluatesAsOftenAsToldAndAfterTheLastStep) {
  const auto steps_of = [](const TrainerOptions& options, int batches) {
    std::vector<std::int64_t> steps;
    run_ranks(1, [&](Context& context) {
      const Trained trained = train(context, options, batches, nullptr, [] {
        return Metrics{{"x", 1}};
      });
      for (const auto& record : trained.history.evaluations) steps.push_back(record.step);
    });
    return steps;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(steps_of({.max_epochs = 3, .evaluate_every_epochs = 2}, 4), (Steps{8, 12}));
  EXPECT_EQ(steps_of({.max_epochs = 2, .evaluate_every_steps = 3, .evaluate_every_epochs = 0}, 4),
            (Steps{3, 6, 8}));
  // Both at step 4: once.
  EXPECT_EQ(steps_of({.max_epochs = 2, .evaluate_every_steps = 2}, 4), (Steps{2, 4, 6, 8}));
  EXPECT_EQ(steps_of({.max_epochs = 9, .max_steps = 5, .evaluate_every_epochs = 0}, 4), (Steps{5}));
}

TEST(Trainer, EvaluatesWithoutGradientsAndGivesEveryPartItsModeBack) {
  run_ranks(1, [](Context& context) {
    auto net = make_net();
    net->second->eval();  // frozen by the program
    DistributedDataParallel model(net, context);
    auto optimizer = sgd(model.parameters());
    Trainer trainer(context, model, optimizer, quiet({}));
    int evaluations = 0;
    trainer.fit(batches_of(0, 2), kLossOf, [&]() -> Metrics {
      ++evaluations;
      EXPECT_FALSE(net->is_training());
      EXPECT_FALSE(net->first->is_training());
      EXPECT_FALSE(torch::GradMode::is_enabled());
      return {};
    });
    EXPECT_EQ(evaluations, 1);
    EXPECT_TRUE(net->is_training());
    EXPECT_TRUE(net->first->is_training());
    EXPECT_FALSE(net->second->is_training());
    EXPECT_TRUE(torch::GradMode::is_enabled());
  });
}

TEST(Trainer, StopsEarlyAfterTheSameStepOnAllRanks) {
  run_ranks(3, [](Context& context) {
    // What rank 0 says counts, also for ranks that think otherwise.
    const std::vector<double> of_rank_0{0.1, 0.5, 0.5, 0.55, 0.4, 0.9, 0.9};
    std::size_t evaluations = 0;
    const auto evaluation = [&]() -> Metrics {
      const double mine = context.is_main_process() ? of_rank_0[evaluations] : 0.0;
      ++evaluations;
      return {{"accuracy", mine}};
    };
    const Trained trained =
        train(context, {.max_epochs = 7, .monitor = "accuracy", .patience = 3, .min_delta = 0.1}, 2,
              nullptr, evaluation);
    EXPECT_EQ(trained.history.ending, History::Ending::kEarlyStopped);
    EXPECT_EQ(trained.history.epochs.size(), 5u);
    EXPECT_EQ(trained.history.best("accuracy")->step, 8);
    EXPECT_EQ(trained.history.best("accuracy")->metrics.at("accuracy"), 0.55);
  });
}

TEST(Trainer, EndsAfterSoManySteps) {
  run_ranks(1, [](Context& context) {
    const Trained in_the_middle = train(context, {.max_epochs = 9, .max_steps = 6}, 4);
    EXPECT_EQ(in_the_middle.history.epochs.size(), 1u);
    // Step 8 is the last of an epoch, which is therefore complete.
    const Trained at_the_end = train(context, {.max_epochs = 9, .max_steps = 8}, 4);
    EXPECT_EQ(at_the_end.history.epochs.size(), 2u);
    // Without a number of epochs as many as that takes.
    const Trained without = train(context, {.max_steps = 8}, 4);
    EXPECT_TRUE(are_equal(without.weights, at_the_end.weights));
    EXPECT_EQ(train(context, {}, 4).history.epochs.size(), 1u);
  });
}

// C++'s parameters() has a tensor that two modules share twice; Python's has it once.
TEST(Trainer, ASharedParameterCountsOnceInTheNorm) {
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_module("first", torch::nn::Linear(6, 6));
      second = register_module("second", first);
    }
    Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
    torch::nn::Linear first{nullptr}, second{nullptr};
  };
  run_ranks(1, [](Context& context) {
    const auto net = std::make_shared<Tied>();
    const Tensor before = net->first->weight.detach().clone();
    DistributedDataParallel model(net, context);
    torch::optim::SGD optimizer(model.parameters(), 1);
    Trainer trainer(context, model, optimizer, quiet({.clip_grad_norm = 0.5}));
    trainer.fit(batches_of(0, 1), [](auto& wrapped, const Batch& batch) {
      return wrapped(batch.inputs).square().sum() * 100;
    });
    const double moved = torch::stack({(net->first->weight.detach() - before).norm(),
                                       net->first->bias.grad().norm()})
                             .norm()
                             .item<double>();
    EXPECT_NEAR(moved, 0.5, 1e-4);
    EXPECT_NEAR(clip_grad_norm_(net->parameters(), 9).item<double>(), 0.5, 1e-4);
  });
}

TEST(Trainer, AccumulatesWithAStaticGraphToo) {
  run_ranks(2, [](Context& context) {
    const auto trained_with = [&](const DdpOptions& ddp_options) {
      DistributedDataParallel model(make_net(), context, ddp_options);
      auto optimizer = sgd(model.parameters());
      Trainer(context, model, optimizer, quiet({.max_epochs = 2, .accumulate_grad_batches = 3}))
          .fit(batches_of(context.rank(), 7), kLossOf);
      return weights_of(*model);
    };
    const auto expected = trained_with({});
    const auto weights = trained_with({.static_graph = true});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::allclose(weights[i], expected[i]));
      for (const Tensor& other : context.all_gather(weights[i])) {
        EXPECT_TRUE(torch::equal(other, weights[i]));
      }
    }
  });
}

TEST(Trainer, MeansAreOverAllSamplesOfAllRanks) {
  run_ranks(2, [](Context& context) {
    DistributedDataParallel model(make_net(), context);
    auto optimizer = sgd(model.parameters());
    Trainer trainer(context, model, optimizer, quiet({}));
    const double mine = context.rank() == 0 ? 1 : 4;
    const History history = trainer.fit(batches_of(context.rank(), 2),
                                        [&](auto& net, const Batch& batch) -> BatchResult {
                                          // A loss of that value whatever the net says.
                                          const Tensor loss = kLossOf(net, batch);
                                          return {loss - loss.detach() + mine,
                                                  /*count=*/context.rank() == 0 ? 30 : 10,
                                                  {{"accuracy", mine / 8}}};
                                        });
    EXPECT_EQ(history.epochs[0].loss, 1.75);
    EXPECT_EQ(history.epochs[0].metrics, (Metrics{{"accuracy", 1.75 / 8}}));
  });
}

TEST(Trainer, MovesTheRateByStepOrByEpoch) {
  for (const Interval interval : {Interval::kStep, Interval::kEpoch}) {
    run_ranks(1, [interval](Context& context) {
      DistributedDataParallel model(make_net(), context);
      auto optimizer = sgd(model.parameters());
      LRScheduler schedule(optimizer, lr_scheduler::exponential_lr(0.5));
      Trainer trainer(context, model, optimizer, quiet({.max_epochs = 2}));
      trainer.use(schedule, interval);
      const History history = trainer.fit(batches_of(0, 3), kLossOf);
      EXPECT_EQ(schedule.steps(), interval == Interval::kStep ? 6 : 2);
      EXPECT_EQ(history.epochs[0].learning_rate, interval == Interval::kStep ? 0.025 : 0.1);
      EXPECT_EQ(history.epochs[1].learning_rate, interval == Interval::kStep ? 0.1 / 32 : 0.05);
    });
  }
}

TEST(Trainer, UnscalesBeforeItClipsAndStepsThroughTheScaler) {
  run_ranks(1, [](Context& context) {
    GradScaler scaler({.init_scale = 4, .growth_interval = 1});
    const TrainerOptions options{
        .max_steps = 1, .accumulate_grad_batches = 2, .clip_grad_norm = 0.01};
    const Trained scaled =
        train(context, options, 2, [&](TrainerBase& trainer) { trainer.use(scaler); });
    EXPECT_EQ(scaler.get_scale(), 8) << "one step, one update";
    EXPECT_TRUE(are_equal(scaled.weights, train(context, options, 2).weights));
    EXPECT_FALSE(are_equal(
        scaled.weights, train(context, {.max_steps = 1, .accumulate_grad_batches = 2}, 2).weights));
  });
}

// What fit() throws on this rank.
template <typename Function>
std::string thrown_by(Function&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Trainer, ANanOnOneRankEndsAllAndNamesIt) {
  run_ranks(3, [](Context& context) {
    const auto train_until_nan = [&](std::int64_t epochs, std::int64_t evaluate_every_steps,
                                     std::int64_t& evaluations) {
      DistributedDataParallel model(make_net(), context);
      auto optimizer = sgd(model.parameters());
      Trainer trainer(context, model, optimizer,
                      quiet({.max_epochs = epochs, .evaluate_every_steps = evaluate_every_steps}));
      int calls = 0;
      trainer.fit(
          batches_of(context.rank(), 4),
          [&](auto& net, const Batch& batch) {
            const Tensor loss = kLossOf(net, batch);
            return ++calls == 3 && context.rank() == 1 ? loss * std::nan("") : loss;
          },
          [&]() -> Metrics {
            ++evaluations;
            return {};
          });
    };
    std::int64_t evaluations = 0;
    // Noticed by a vote on the way, or at the latest by the one before an evaluation.
    EXPECT_EQ(thrown_by([&] {
                train_until_nan(100000, 0, evaluations);
              }).find("rank 1: the loss of step 3 is NaN"),
              0u);
    evaluations = 0;
    EXPECT_EQ(thrown_by([&] {
                train_until_nan(1, 2, evaluations);
              }).find("rank 1: the loss of step 3 is NaN"),
              0u);
    EXPECT_EQ(evaluations, 1);
  });
}

struct ThrowsAt : Callback {
  explicit ThrowsAt(std::int64_t at) : step(at) {}
  void on_step_end(const TrainingView& training) override {
    if (training.step() == step) throw std::out_of_range("no such chart");
  }
  std::int64_t step;
};

TEST(Trainer, WhatTheMainProcessCallbackThrowsEndsAllRanks) {
  run_ranks(3, [](Context& context) {
    const auto fit = [&] {
      train(context, {.max_epochs = 100000}, 2, [](TrainerBase& trainer) {
        trainer.add_callback(std::make_shared<ThrowsAt>(5), Callback::On::kMainProcess);
      });
    };
    if (context.is_main_process()) {
      EXPECT_THROW(fit(), std::out_of_range);
    } else {
      EXPECT_EQ(thrown_by(fit), "rank 0: no such chart");
    }
  });
}

TEST(Trainer, RefusesOptionsAndResultsThatCannotBe) {
  run_ranks(1, [](Context& context) {
    DistributedDataParallel model(make_net(), context);
    auto optimizer = sgd(model.parameters());
    const auto make = [&](const TrainerOptions& options) {
      return thrown_by([&] { Trainer(context, model, optimizer, options); });
    };
    EXPECT_NE(make({.max_epochs = -1}).find("number of epochs is negative"), std::string::npos);
    torch::optim::LBFGS lbfgs(model.parameters());
    EXPECT_NE(thrown_by([&] { Trainer(context, model, lbfgs); }).find("LBFGS"), std::string::npos);
    EXPECT_NE(thrown_by([&] {
                Trainer(context, model, optimizer).add_callback(nullptr);
              }).find("null pointer"),
              std::string::npos);
    EXPECT_NE(make({.accumulate_grad_batches = 0}).find("accumulate_grad_batches"),
              std::string::npos);
    EXPECT_NE(make({.patience = 2}).find("by which metric"), std::string::npos);

    const auto fit = [&](auto&& batches, auto&& loss_of, const TrainerOptions& options,
                         std::function<Metrics()> evaluation) {
      return thrown_by([&] {
        Trainer(context, model, optimizer, quiet(options)).fit(batches, loss_of, evaluation);
      });
    };
    EXPECT_NE(fit(std::vector<Batch>{}, kLossOf, {}, nullptr).find("dataset empty"),
              std::string::npos);
    const auto whole = [](auto& net, const Batch& batch) { return net(batch.inputs); };
    EXPECT_NE(fit(batches_of(0, 1), whole, {}, nullptr).find("not of shape [4, 3]"),
              std::string::npos);
    const auto evaluation = [] { return Metrics{{"loss", 1}}; };
    EXPECT_NE(fit(batches_of(0, 1), kLossOf, {.monitor = "accuracy"}, evaluation)
                  .find("no 'accuracy', only loss 1"),
              std::string::npos);
    EXPECT_NE(fit(batches_of(0, 1), kLossOf, {.monitor = "accuracy"}, nullptr)
                  .find("there is no evaluation"),
              std::string::npos);
  });
}

// A dataset of 50 samples for a DataLoader.
struct Samples {
  std::size_t size() const { return 50; }
  torch::data::Example<> get(std::size_t index) const {
    const Tensor inputs = torch::cos(torch::arange(6, torch::kFloat32) * double(index + 1));
    return {inputs, torch::tensor(std::int64_t(index % 3), torch::kInt64)};
  }
};

struct Interrupted {};
struct InterruptAt : Callback {
  explicit InterruptAt(std::int64_t at) : step(at) {}
  void on_step_end(const TrainingView& training) override {
    if (training.step() == step) throw Interrupted();
  }
  std::int64_t step;
};

// Everything that has a state, and a run that ends after `interrupt_at` steps; 0: not.
Trained train_resumably(Context& context, const std::string& folder, bool with_loader,
                        std::int64_t interrupt_at) {
  DistributedDataParallel model(make_net(), context);
  auto optimizer = sgd(model.parameters());
  LRScheduler schedule(optimizer, lr_scheduler::one_cycle_lr({.max_lr = {0.2}, .total_steps = 40}));
  Checkpointer checkpoints(context, folder, {.best = MetricMode::kMin});
  const int accumulate_grad_batches = 2;
  Trainer trainer(context, model, optimizer,
                  quiet({.max_epochs = 4,
                         .accumulate_grad_batches = accumulate_grad_batches,
                         .evaluate_every_steps = 3,
                         .monitor = "loss",
                         .mode = MetricMode::kMin,
                         .patience = 100}));
  trainer.use(schedule, Interval::kStep);
  trainer.use(checkpoints, {.every_steps = 2});
  if (interrupt_at > 0) trainer.add_callback(std::make_shared<InterruptAt>(interrupt_at));

  const auto evaluation = [&]() -> Metrics {
    return {{"loss", kLossOf(*model.module(), batch_of(99, 0)).item<double>()}};
  };
  Trained trained;
  try {
    if (with_loader) {
      DistributedSampler sampler(50, context, {.seed = 3});
      DataLoader loader(Samples(), sampler, {.batch_size = 3, .num_workers = 1});
      const auto loss_of = [](auto& net, const torch::data::Example<>& batch) {
        BatchResult result{torch::nn::functional::cross_entropy(net(batch.data), batch.target)};
        result.count = batch.target.size(0);
        result.metrics = {{"third", result.loss.item<double>() / 3}};
        return result;
      };
      trained.history = trainer.fit(loader, loss_of, evaluation);
    } else {
      trained.history = trainer.fit(batches_of(context.rank(), 7), kLossOf, evaluation);
    }
  } catch (const Interrupted&) {
  }
  trained.weights = weights_of(*model);
  return trained;
}

MATCHER(MetricIs, "") {
  const auto& [own, expected] = arg;
  return own.first == expected.first &&
         testing::Matches(testing::DoubleEq(expected.second))(own.second);
}

TEST(Trainer, AResumedRunEqualsTheUninterruptedOne) {
  for (const bool with_loader : {false, true}) {
    // Three ranks: the order of summation depends on the layout of the buckets then.
    const test::TempFolder undisturbed, disturbed;
    run_ranks(3, [&](Context& context) {
      const Trained whole = train_resumably(context, undisturbed.path(), with_loader, 0);
      ASSERT_EQ(whole.history.epochs.size(), 4u);
      // Inside an epoch after a checkpoint, right after one, at the end of an epoch, ...
      for (const std::int64_t at : {3, 4, 8, 11}) {
        train_resumably(context, disturbed.path(), with_loader, at);
      }
      const Trained resumed = train_resumably(context, disturbed.path(), with_loader, 0);
      EXPECT_TRUE(are_equal(resumed.weights, whole.weights)) << with_loader;
      EXPECT_EQ(resumed.history.evaluations, whole.history.evaluations);
      ASSERT_EQ(resumed.history.epochs.size(), 4u);
      for (std::size_t i = 0; i < 4; ++i) {
        // Sums of doubles, interrupted: equal but for their rounding.
        EXPECT_DOUBLE_EQ(resumed.history.epochs[i].loss, whole.history.epochs[i].loss) << i;
        EXPECT_THAT(resumed.history.epochs[i].metrics,
                    testing::Pointwise(MetricIs(), whole.history.epochs[i].metrics))
            << i;
        EXPECT_EQ(resumed.history.epochs[i].step, whole.history.epochs[i].step);
        EXPECT_EQ(resumed.history.epochs[i].learning_rate, whole.history.epochs[i].learning_rate);
      }
      // And a run that is complete does nothing more.
      const Trained again = train_resumably(context, disturbed.path(), with_loader, 0);
      EXPECT_TRUE(are_equal(again.weights, whole.weights));
      EXPECT_EQ(again.history.evaluations, whole.history.evaluations);
    });
    EXPECT_TRUE(std::filesystem::exists(disturbed.path() + "/best.safetensors"));
  }
}

// Evaluated only after the last step: its number is in the checkpoint, and may be the best.
TEST(Trainer, TheLastEvaluationIsSavedToo) {
  const test::TempFolder folder;
  run_ranks(2, [&](Context& context) {
    const auto run = [&] {
      Checkpointer checkpoints(context, folder.path(), {.best = MetricMode::kMax});
      return train(
          context, {.max_epochs = 2, .evaluate_every_epochs = 0, .monitor = "m"}, 3,
          [&](TrainerBase& trainer) { trainer.use(checkpoints); },
          [] {
            return Metrics{{"m", 1}};
          });
    };
    const Trained first = run();
    ASSERT_EQ(first.history.evaluations.size(), 1u);
    EXPECT_TRUE(std::filesystem::exists(folder.file("best.safetensors")));
    EXPECT_EQ(run().history.evaluations, first.history.evaluations);
  });
}

struct InterruptAtEpochEnd : Callback {
  void on_epoch_end(const TrainingView& training) override {
    losses.push_back(training.loss());
    if (throws) throw Interrupted();
  }
  bool throws = true;
  std::vector<double> losses;
};

// All steps of the epoch are done, and it has not ended: nothing is trained, and all is recorded.
TEST(Trainer, ARunThatIsResumedBeforeItsEpochsEndRecordsTheEpochAsItWas) {
  for (const TrainerOptions& options :
       {TrainerOptions{.max_epochs = 1}, TrainerOptions{.max_epochs = 2, .max_steps = 3},
        TrainerOptions{
            .max_epochs = 2, .evaluate_every_steps = 1, .monitor = "m", .patience = 2}}) {
    const test::TempFolder folder;
    run_ranks(1, [&](Context& context) {
      const auto run = [&](bool throws) {
        Checkpointer checkpoints(context, folder.path());
        const auto callback = std::make_shared<InterruptAtEpochEnd>();
        callback->throws = throws;
        Trained trained;
        try {
          trained = train(
              context, options, 3,
              [&](TrainerBase& trainer) {
                trainer.use(checkpoints, {.every_steps = 1, .every_epochs = 0});
                trainer.add_callback(callback);
              },
              [] {
                return Metrics{{"m", 1}};
              });
        } catch (const Interrupted&) {
        }
        EXPECT_EQ(callback->losses.size(), 1u);
        EXPECT_TRUE(std::isfinite(callback->losses.at(0)));
        return std::pair(trained, callback->losses);
      };
      const auto interrupted = run(true);
      const auto resumed = run(false);
      EXPECT_EQ(resumed.second, interrupted.second);
      ASSERT_EQ(resumed.first.history.epochs.size(), 1u);
      EXPECT_EQ(resumed.first.history.epochs[0].learning_rate, 0.1);
      EXPECT_EQ(resumed.first.history.epochs[0].step, 3);
      EXPECT_EQ(resumed.first.history.ending,
                options.patience > 0 ? History::Ending::kEarlyStopped : History::Ending::kDone);
    });
  }
}

// A range that sets its sampler's epoch itself, which would begin it anew.
TEST(Trainer, ARangeOfASamplerThatWasGivenGoesOnWhereItStopped) {
  struct Numbers {
    explicit Numbers(Context& context) : sampler(8, context, {.shuffle = false}) {}
    void set_epoch(std::int64_t epoch) { sampler.set_epoch(epoch); }
    struct Iterator {
      Numbers* numbers;
      std::optional<std::vector<std::size_t>> batch;
      std::vector<std::size_t>& operator*() { return *batch; }
      Iterator& operator++() {
        batch = numbers->sampler.next(2);
        return *this;
      }
      bool operator!=(std::default_sentinel_t) const { return batch.has_value(); }
    };
    Iterator begin() {
      sampler.reset();
      return {this, sampler.next(2)};
    }
    std::default_sentinel_t end() { return {}; }
    DistributedSampler sampler;
  };
  const test::TempFolder folder;
  run_ranks(1, [&](Context& context) {
    std::vector<std::size_t> seen;
    for (const bool is_first : {true, false}) {
      DistributedDataParallel model(make_net(), context);
      auto optimizer = sgd(model.parameters());
      Checkpointer checkpoints(context, folder.path());
      Trainer trainer(context, model, optimizer, quiet({.max_epochs = 1}));
      Numbers numbers(context);
      trainer.use(checkpoints, {.every_steps = 1});
      trainer.use(numbers.sampler);
      if (is_first) trainer.add_callback(std::make_shared<InterruptAt>(3));
      try {
        trainer.fit(numbers, [&](auto& net, const std::vector<std::size_t>& indices) {
          seen.insert(seen.end(), indices.begin(), indices.end());
          return kLossOf(net, batch_of(0, 0));
        });
      } catch (const Interrupted&) {
      }
    }
    // The third step came after the second checkpoint.
    EXPECT_EQ(seen, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 4, 5, 6, 7}));
  });
}

// As a program has it that calls std::locale::global(std::locale("")) in Germany.
struct Grouping : std::numpunct<char> {
  char do_thousands_sep() const override { return '.'; }
  char do_decimal_point() const override { return ','; }
  std::string do_grouping() const override { return "\3"; }
};
TEST(Trainer, ACheckpointDoesNotDependOnTheLocale) {
  const test::TempFolder folder;
  run_ranks(1, [&](Context& context) {
    const auto whole = train_resumably(context, test::TempFolder().path(), true, 0);
    const std::locale before =
        std::locale::global(std::locale(std::locale::classic(), new Grouping));
    train_resumably(context, folder.path(), true, 3);
    std::locale::global(before);
    const auto resumed = train_resumably(context, folder.path(), true, 0);
    EXPECT_TRUE(are_equal(resumed.weights, whole.weights));
    EXPECT_EQ(resumed.history.evaluations, whole.history.evaluations);
  });
}

TEST(Trainer, ARangeWithoutASamplerGoesOnOnlyAtTheSameSize) {
  const test::TempFolder folder;
  run_ranks(2, [&](Context& context) {
    train_resumably(context, folder.path(), /*with_loader=*/false, 3);
  });
  run_ranks(1, [&](Context& context) {
    EXPECT_NE(thrown_by([&] {
                train_resumably(context, folder.path(), /*with_loader=*/false, 0);
              }).find("2 ranks, and there are 1 now"),
              std::string::npos);
  });
}

TEST(Trainer, ACheckpointOfAnotherOrderOfSamplesIsRefused) {
  const test::TempFolder folder;
  run_ranks(1, [&](Context& context) {
    const auto fit = [&](std::uint64_t seed) {
      DistributedDataParallel model(make_net(), context);
      auto optimizer = sgd(model.parameters());
      Checkpointer checkpoints(context, folder.path());
      Trainer trainer(context, model, optimizer, quiet({}));
      trainer.use(checkpoints);
      trainer.use(DistributedSampler(4, context, {.seed = seed}));
      trainer.fit(batches_of(0, 1), kLossOf);
    };
    fit(7);
    EXPECT_NE(thrown_by([&] { fit(8); }).find("seed 7, and this program's has seed 8"),
              std::string::npos);
  });
}

TEST(FailureVote, NamesTheEarliestStepAndThenTheLowestRank) {
  run_ranks(3, [](Context& context) {
    FailureVote failures(context);
    failures.settle();
    failures.report(context.rank() == 0 ? 9 : 7, "trouble " + std::to_string(context.rank()));
    failures.report(1, "a later report");
    EXPECT_EQ(thrown_by([&] { failures.settle(); }), "rank 1: trouble 1");
  });
}

TEST(FailureVote, PollNoticesAReportWithinSeconds) {
  run_ranks(2, [](Context& context) {
    FailureVote failures(context);
    const auto begun = std::chrono::steady_clock::now();
    std::int64_t calls = 0;
    EXPECT_EQ(thrown_by([&] {
                for (;; ++calls) {
                  failures.poll();
                  if (calls == 1000 && context.rank() == 1) failures.report(calls, "enough");
                }
              }),
              "rank 1: enough");
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
  });
}

TEST(FiniteGuard, ALossOnAGpuIsLookedAtBeforeAVote) {
  if (!test::has_gpu()) GTEST_SKIP() << "no GPU here";
  run_ranks(1, [](Context& context) {
    FailureVote failures(context);
    FiniteGuard finite(failures);
    std::int64_t step = 0;
    for (const double loss : {1.0, 2.0, std::nan(""), 3.0, HUGE_VAL}) {
      finite.watch(torch::tensor(loss, torch::kCUDA), ++step);
    }
    EXPECT_EQ(thrown_by([&] { failures.settle(); }).find("rank 0: the loss of step 3 is"), 0u);
  });
}

}  // namespace
}  // namespace ddprun
