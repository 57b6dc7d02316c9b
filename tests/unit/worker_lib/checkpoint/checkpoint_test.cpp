#include "ddprun/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <set>
#include <tuple>

#include "ddprun/ddp.h"
#include "ddprun/optim.h"
#include "tests/unit/worker_lib/checkpoint/pack.h"
#include "tests/unit/worker_lib/gpu.h"
#include "tests/unit/worker_lib/group_of_threads.h"
#include "tests/unit/worker_lib/temp_folder.h"
#include "worker_lib/checkpoint/rng_state.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using torch::Tensor;

struct Net : torch::nn::Module {
  explicit Net(int width = 4) {
    fc = register_module("fc", torch::nn::Linear(3, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
  }
  Tensor forward(const Tensor& x) { return norm(fc(x)); }
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

void train(Net& net, torch::optim::Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    net.forward(torch::arange(15, torch::kFloat32).view({5, 3}).add(step).sin())
        .square()
        .sum()
        .backward();
    optimizer.step();
  }
}

bool equal_state(const Net& a, const Net& b) {
  const auto left = a.named_parameters();
  const auto right = b.named_parameters();
  for (const auto& item : left) {
    if (!torch::equal(item.value(), right[item.key()])) return false;
  }
  return torch::equal(a.norm->running_var, b.norm->running_var) &&
         torch::equal(a.norm->num_batches_tracked, b.norm->num_batches_tracked);
}

// Trains 3 + 3 steps, with a new model and a new optimizer from the checkpoint in between, and 6 in
// one go: the same bits.
template <typename Optimizer, typename Options>
void expect_same_bits(const Options& options) {
  test::run_ranks(1, [&](Context& context) {
    const test::TempFolder folder;
    torch::manual_seed(1);
    Net whole;
    Optimizer whole_optimizer(whole.parameters(), options);
    train(whole, whole_optimizer, 0, 6);

    torch::manual_seed(1);
    Net first;
    Optimizer first_optimizer(first.parameters(), options);
    train(first, first_optimizer, 0, 3);
    TrainingPosition position{.epoch = 2, .consumed = 30, .step = 3, .seed = 9, .world_size = 1};
    position.notes["batch_size"] = "5";
    Checkpointer(context, folder.path()).save(first, first_optimizer, position);

    torch::manual_seed(99);
    Net second;
    Optimizer second_optimizer(second.parameters(), options);
    const auto resumed = Checkpointer(context, folder.path()).resume(second, second_optimizer);
    ASSERT_TRUE(resumed);
    EXPECT_EQ(resumed->epoch, 2);
    EXPECT_EQ(resumed->consumed, 30);
    EXPECT_EQ(resumed->step, 3);
    EXPECT_EQ(resumed->seed, 9u);
    EXPECT_EQ(resumed->notes.at("batch_size"), "5");
    train(second, second_optimizer, 3, 6);
    EXPECT_TRUE(equal_state(whole, second));
  });
}

TEST(Checkpoint, ResumedSgdHasTheSameBits) {
  expect_same_bits<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
}
TEST(Checkpoint, ResumedMomentumHasTheSameBits) {
  expect_same_bits<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}
TEST(Checkpoint, ResumedAdamHasTheSameBits) {
  expect_same_bits<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
}
TEST(Checkpoint, ResumedAdamWHasTheSameBits) {
  expect_same_bits<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
}
TEST(Checkpoint, ResumedRmspropHasTheSameBits) {
  expect_same_bits<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true));
}
TEST(Checkpoint, ResumedAdagradHasTheSameBits) {
  expect_same_bits<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.01));
}

TEST(Checkpoint, ResumedOptimizersOfOursHaveTheSameBits) {
  expect_same_bits<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).fused(true));
  expect_same_bits<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true));
  expect_same_bits<optim::AdamW>(optim::AdamWOptions(0.01).foreach (true));
  expect_same_bits<optim::AdamW>(optim::AdamWOptions(0.01).amsgrad(true).fused(true));
}

// Steps of `From`, a checkpoint, steps of `To`: near what `To` alone makes, which without the state it is not.
template <typename From, typename To, typename FromOptions, typename ToOptions>
void expect_taken_over(const FromOptions& from_options, const ToOptions& to_options) {
  test::run_ranks(1, [&](Context& context) {
    const test::TempFolder folder;
    torch::manual_seed(1);
    Net whole;
    To whole_optimizer(whole.parameters(), to_options);
    train(whole, whole_optimizer, 0, 6);

    torch::manual_seed(1);
    Net first;
    From first_optimizer(first.parameters(), from_options);
    train(first, first_optimizer, 0, 3);
    Checkpointer(context, folder.path()).save(first, first_optimizer, {.step = 3});
    Net second;
    To second_optimizer(second.parameters(), to_options);
    std::ignore = Checkpointer(context, folder.path()).resume(second, second_optimizer);
    train(second, second_optimizer, 3, 6);
    EXPECT_TRUE(torch::allclose(second.fc->weight, whole.fc->weight, 1e-4, 1e-5))
        << "but for rounding";
    To without_state(first.parameters(), to_options);
    train(first, without_state, 3, 6);
    EXPECT_FALSE(torch::allclose(first.fc->weight, whole.fc->weight, 1e-4, 1e-5));
  });
}

TEST(Checkpoint, OursAndLibTorchsOptimizersReadEachOthersStates) {
  const auto adam = torch::optim::AdamOptions(0.01).amsgrad(true);
  expect_taken_over<torch::optim::Adam, optim::Adam>(
      adam, optim::AdamOptions(0.01).amsgrad(true).fused(true));
  expect_taken_over<optim::Adam, torch::optim::Adam>(optim::AdamOptions(0.01).amsgrad(true), adam);
  expect_taken_over<torch::optim::AdamW, optim::AdamW>(torch::optim::AdamWOptions(0.01),
                                                       optim::AdamWOptions(0.01));
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  expect_taken_over<torch::optim::SGD, optim::SGD>(sgd, optim::SGDOptions(0.1).momentum(0.9));
  expect_taken_over<optim::SGD, torch::optim::SGD>(optim::SGDOptions(0.1).momentum(0.9), sgd);
}

TEST(Checkpoint, AStateHasTheStridesOfItsParameter) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    torch::nn::Conv2d layer(2, 3, 3);
    layer->weight.set_data(layer->weight.contiguous(at::MemoryFormat::ChannelsLast));
    optim::Adam optimizer(layer->parameters(), optim::AdamOptions().fused(true));
    layer(torch::randn({1, 2, 5, 5})).sum().backward();
    optimizer.step();
    Checkpointer checkpoints(context, folder.path());
    checkpoints.save(*layer, optimizer, {.step = 1});
    const auto average = [&] {
      auto& state = *optimizer.state().at(layer->weight.unsafeGetTensorImpl());
      return static_cast<optim::AdamParamState&>(state).exp_avg();
    };
    const Tensor before = average();
    std::ignore = checkpoints.resume(*layer, optimizer);
    EXPECT_TRUE(torch::equal(average(), before));
    EXPECT_EQ(average().strides(), layer->weight.strides());
  });
}

TEST(Checkpoint, NothingThereMeansNothingResumed) {
  test::run_ranks(2, [](Context& context) {
    static const test::TempFolder folder;
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    EXPECT_FALSE(Checkpointer(context, folder.path()).resume(net, optimizer));
  });
}

TEST(Checkpoint, AllRanksContinueFromTheOneThatRankZeroChose) {
  const test::TempFolder folder;
  test::run_ranks(2, [&](Context& context) {
    // Rank 1 looks at another, empty folder: what it has there must not matter.
    Checkpointer checkpoints(context, context.is_main_process() ? folder.path() : "/nonexistent");
    Net net;
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    train(net, optimizer, 0, 2);
    checkpoints.save(net, optimizer, {.step = 1});
    checkpoints.save(net, optimizer, {.step = 2});
    context.barrier();
    if (context.is_main_process()) {
      const std::string newest = folder.file("step-000000000002.safetensors");
      std::filesystem::resize_file(newest, std::filesystem::file_size(newest) - 1);
    }
    const auto resumed = checkpoints.resume(net, optimizer);
    ASSERT_TRUE(resumed);
    EXPECT_EQ(resumed->step, 1);
    Tensor reference = net.fc->weight.detach().clone();
    context.broadcast(reference);
    EXPECT_TRUE(torch::equal(reference, net.fc->weight));
  });
}

TEST(Checkpoint, NoWholeOneIsAnErrorOnEveryRank) {
  const test::TempFolder folder;
  test::write(folder.file("step-000000000001.safetensors"), "torn");
  test::run_ranks(2, [&](Context& context) {
    Checkpointer checkpoints(context, folder.path());
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    try {
      std::ignore = checkpoints.resume(net, optimizer);
      ADD_FAILURE() << "resumed from a torn file";
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("step-000000000001.safetensors"));
    }
  });
}

TEST(Checkpoint, AFolderThatCannotBeWrittenIsAnErrorOnEveryRank) {
  test::run_ranks(2, [&](Context& context) {
    EXPECT_THROW(Checkpointer(context, "/proc/no-such-folder"), UsageError);
  });
}

TEST(Checkpoint, AnotherModelsIsRefusedWithTheNamesThatDiffer) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    Checkpointer checkpoints(context, folder.path());
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    checkpoints.save(net, optimizer, {});

    Net wider(5);
    torch::optim::SGD wider_optimizer(wider.parameters(), 0.1);
    const Tensor before = wider.fc->weight.detach().clone();
    try {
      std::ignore = checkpoints.resume(wider, wider_optimizer);
      ADD_FAILURE() << "accepted another shape";
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("model.fc.weight"));
      EXPECT_THAT(failure.what(), HasSubstr("step-000000000000.safetensors"));
    }
    EXPECT_TRUE(torch::equal(before, wider.fc->weight)) << "a refused checkpoint changed the model";

    torch::nn::Linear other(3, 4);
    torch::optim::SGD other_optimizer(other->parameters(), 0.1);
    try {
      std::ignore = checkpoints.resume(*other, other_optimizer);
      ADD_FAILURE() << "accepted other names";
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("lacks model.bias and model.weight"));
      EXPECT_THAT(failure.what(), HasSubstr("model.fc.bias"));
    }

    torch::optim::Adam adam(net.parameters());
    EXPECT_THROW(std::ignore = checkpoints.resume(net, adam), Failure);
  });
}

TEST(Checkpoint, WhatCannotBeKeptWholeIsRefused) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    Checkpointer checkpoints(context, folder.path());
    Net net;
    torch::optim::LBFGS unknown(net.parameters());
    EXPECT_THROW(checkpoints.save(net, unknown, {}), UsageError);

    auto parameters = net.parameters();
    parameters.push_back(torch::zeros({3}, torch::requires_grad()));  // a loss' own, perhaps
    torch::optim::SGD of_more(parameters, 0.1);
    try {
      checkpoints.save(net, of_more, {});
      ADD_FAILURE() << "left out a parameter's state";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("[3]"));
    }
    EXPECT_THROW(Checkpointer(context, folder.path(), {.keep_last = 0}), UsageError);
  });
}

TEST(Checkpoint, TheWrappedAndTheBareModuleResumeEachOther) {
  const test::TempFolder folder;
  test::run_ranks(2, [&](Context& context) {
    Checkpointer checkpoints(context, folder.path());
    torch::manual_seed(1);
    DistributedDataParallel wrapped(std::make_shared<Net>(), context);
    torch::optim::SGD optimizer(wrapped.parameters(), 0.1);
    checkpoints.save(wrapped, optimizer, {.step = 1});

    const auto bare = std::make_shared<Net>();
    torch::optim::SGD bare_optimizer(bare->parameters(), 0.1);
    ASSERT_TRUE(checkpoints.resume(*bare, bare_optimizer));
    EXPECT_TRUE(equal_state(*wrapped, *bare));
    checkpoints.save(bare, bare_optimizer, {.step = 2});
    EXPECT_EQ(checkpoints.resume(wrapped, optimizer)->step, 2);
  });
}

struct Counter : Stateful {
  int count = 0;
  std::string state_dict() const override { return std::to_string(count); }
  void load_state_dict(const std::string& state) override {
    if (state.find_first_not_of("0123456789") != std::string::npos) throw UsageError("no number");
    count = std::stoi(state);
  }
};

struct Word : Stateful {
  std::string state_dict() const override { return "a word"; }
  void load_state_dict(const std::string&) override {}
};

TEST(Checkpoint, OtherPartsComeBackByTheirNames) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    Counter schedule;
    Counter scaler;
    {
      Checkpointer checkpoints(context, folder.path());
      checkpoints.register_for_checkpointing("schedule", schedule);
      checkpoints.register_for_checkpointing("scaler", scaler);
      EXPECT_THROW(checkpoints.register_for_checkpointing("scaler", schedule), UsageError);
      schedule.count = 3;
      scaler.count = 65536;
      checkpoints.save(net, optimizer, {});
    }
    schedule.count = scaler.count = 0;
    Counter new_one;
    new_one.count = 7;
    Checkpointer checkpoints(context, folder.path());
    checkpoints.register_for_checkpointing("scaler", scaler);
    checkpoints.register_for_checkpointing("schedule", schedule);
    checkpoints.register_for_checkpointing("new", new_one);  // not in the file: a warning
    ASSERT_TRUE(checkpoints.resume(net, optimizer));
    EXPECT_EQ(schedule.count, 3);
    EXPECT_EQ(scaler.count, 65536);
    EXPECT_EQ(new_one.count, 7);
  });
}

TEST(Checkpoint, APartThatRefusesItsStateIsNamed) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    Word word;
    {
      Checkpointer checkpoints(context, folder.path());
      checkpoints.register_for_checkpointing("schedule", word);
      checkpoints.save(net, optimizer, {});
    }
    Counter counter;
    Checkpointer checkpoints(context, folder.path());
    checkpoints.register_for_checkpointing("schedule", counter);
    try {
      std::ignore = checkpoints.resume(net, optimizer);
      ADD_FAILURE() << "a counter became a word";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("schedule"));
      EXPECT_THAT(error.what(), HasSubstr("step-000000000000.safetensors"));
    }
  });
}

// The generator is the process', so one rank here; ranks of their own are in the integration tests.
TEST(Checkpoint, RandomNumbersGoOnWhereTheyWere) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    Checkpointer checkpoints(context, folder.path());
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    torch::manual_seed(5);
    torch::randn({3});  // an odd count: half of a pair of normal numbers is kept inside
    checkpoints.save(net, optimizer, {});
    const Tensor expected = torch::randn({20});
    torch::manual_seed(6);
    std::ignore = checkpoints.resume(net, optimizer);
    EXPECT_TRUE(torch::equal(torch::randn({20}), expected));
  });
}

TEST(Checkpoint, ARankThatWasNotThereIsSeededByItsPlaceAndTheStep) {
  test::run_ranks(1, [](Context& context) {
    torch::manual_seed(1);
    restore_rng(gather_rng(context), context, 7);
    const Tensor kept = torch::rand({4});
    torch::manual_seed(1);
    EXPECT_TRUE(torch::equal(torch::rand({4}), kept));

    restore_rng({{"rng.cpu", torch::zeros({0, 5056}, torch::kUInt8)}}, context, 7);
    const Tensor seeded = torch::rand({4});
    torch::manual_seed(7);
    EXPECT_TRUE(torch::equal(torch::rand({4}), seeded));
  });
  std::set<std::uint64_t> seeds;
  for (int step = 0; step < 10; ++step) {
    for (int rank = 0; rank < 10; ++rank) seeds.insert(seed_of_new_rank(1, step, rank));
  }
  EXPECT_EQ(seeds.size(), 100u);
}

TEST(Checkpoint, TheBestIsRememberedByTheNextRun) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    const auto best = [&] {
      return std::filesystem::read_symlink(folder.file("best.safetensors")).string();
    };
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    const CheckpointOptions options{.keep_last = 1, .best = MetricMode::kMin};
    {
      Checkpointer checkpoints(context, folder.path(), options);
      checkpoints.save(net, optimizer, {.step = 1}, 0.5);
      checkpoints.save(net, optimizer, {.step = 2}, std::nan(""));
      checkpoints.save(net, optimizer, {.step = 3}, 0.6);
      checkpoints.save(net, optimizer, {.step = 4});
      EXPECT_EQ(best(), "step-000000000001.safetensors");
    }
    Checkpointer checkpoints(context, folder.path(), options);
    ASSERT_EQ(checkpoints.resume(net, optimizer)->step, 4);
    checkpoints.save(net, optimizer, {.step = 5}, 0.55);
    EXPECT_EQ(best(), "step-000000000001.safetensors");
    checkpoints.save(net, optimizer, {.step = 6}, 0.45);
    EXPECT_EQ(best(), "step-000000000006.safetensors");
    EXPECT_FALSE(std::filesystem::exists(folder.file("step-000000000001.safetensors")));
  });
}

TEST(Checkpoint, OneThatWasNotWrittenIsNotTheBest) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    Checkpointer checkpoints(context, folder.path(), {.best = MetricMode::kMax});
    std::filesystem::create_symlink("/dev/full",
                                    folder.file("step-000000000001.safetensors.unfinished"));
    EXPECT_THROW(checkpoints.save(net, optimizer, {.step = 1}, 0.9), Failure);
    checkpoints.save(net, optimizer, {.step = 2}, 0.8);
    EXPECT_EQ(std::filesystem::read_symlink(folder.file("best.safetensors")),
              "step-000000000002.safetensors");
  });
}

TEST(Checkpoint, AnAsynchronousOneIsOfTheMomentOfTheCall) {
  test::run_ranks(2, [](Context& context) {
    static const test::TempFolder now;
    static const test::TempFolder later;
    torch::manual_seed(1);
    Net net;
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    train(net, optimizer, 0, 2);
    Checkpointer(context, now.path()).save(net, optimizer, {.step = 2});
    Checkpointer asynchronous(context, later.path(), {.async_save = true});
    asynchronous.save(net, optimizer, {.step = 2});
    train(net, optimizer, 2, 4);  // over the same memory
    asynchronous.save(net, optimizer, {.step = 4});
    train(net, optimizer, 4, 6);
    asynchronous.wait();
    if (!context.is_main_process()) return;
    const std::string name = "step-000000000002.safetensors";
    EXPECT_EQ(test::read(now.file(name)), test::read(later.file(name)));
    EXPECT_EQ(std::filesystem::read_symlink(later.file("latest.safetensors")),
              "step-000000000004.safetensors");
  });
}

TEST(Checkpoint, MemoryThatWasGivenBackIsTakenAgain) {
  test::run_ranks(2, [](Context& context) {
    static const test::TempFolder folder;
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    Checkpointer checkpoints(context, folder.path(), {.async_save = true});
    checkpoints.release_memory();
    checkpoints.save(net, optimizer, {.step = 1});
    checkpoints.release_memory();  // while it is being written
    const std::string first = folder.file("step-000000000001.safetensors");
    if (context.is_main_process()) {
      EXPECT_TRUE(std::filesystem::exists(first));
    }
    checkpoints.save(net, optimizer, {.step = 2});
    checkpoints.wait();
    EXPECT_EQ(checkpoints.resume(net, optimizer)->step, 2);
  });
}

TEST(Checkpoint, AnAsynchronousOneIsOnTheDiskWhenItsCheckpointerIsGone) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    Checkpointer(context, folder.path(), {.async_save = true}).save(net, optimizer, {});
    EXPECT_TRUE(std::filesystem::exists(folder.file("latest.safetensors")));
  });
}

TEST(Checkpoint, AFullDiskIsAnErrorOnEveryRankAndTheOneBeforeRemains) {
  for (const bool is_asynchronous : {false, true}) {
    SCOPED_TRACE(is_asynchronous);
    const test::TempFolder folder;
    test::run_ranks(2, [&](Context& context) {
      Checkpointer checkpoints(context, folder.path(), {.async_save = is_asynchronous});
      Net net;
      torch::optim::SGD optimizer(net.parameters(), 0.1);
      checkpoints.save(net, optimizer, {.step = 1});
      checkpoints.wait();
      if (context.is_main_process()) {
        std::filesystem::create_symlink("/dev/full",
                                        folder.file("step-000000000002.safetensors.unfinished"));
      }
      try {
        checkpoints.save(net, optimizer, {.step = 2});
        EXPECT_TRUE(is_asynchronous);
        checkpoints.save(net, optimizer, {.step = 3});
        ADD_FAILURE() << "the error of step 2 is lost";
      } catch (const Failure& failure) {
        EXPECT_EQ(failure.error().code, ErrorCode::kResourceExhausted);
        EXPECT_THAT(failure.what(), HasSubstr("step-000000000002.safetensors"));
        EXPECT_THAT(failure.what(), HasSubstr("No space left"));
      }
      EXPECT_EQ(checkpoints.resume(net, optimizer)->step, 1);
      checkpoints.save(net, optimizer, {.step = 4});
      checkpoints.wait();
      EXPECT_EQ(checkpoints.resume(net, optimizer)->step, 4);
    });
  }
}

// What a file of the given format holds, made from one of ours.
void change_format(const std::string& path, const std::string& format) {
  const std::string bytes = test::read(path);
  auto content = safetensors::unpack(bytes);
  content.metadata["ddprun_format"] = format;
  if (format == "1") {
    std::erase_if(content.arrays, [](const auto& array) { return array.name == "rng.cpu"; });
  }
  test::write(path, safetensors::pack(content));
}

struct Throws : Stateful {
  std::string state_dict() const override { throw std::runtime_error("no state today"); }
  void load_state_dict(const std::string&) override {}
};

// Rank 0 alone asks for the state: the others hear of what it throws.
TEST(Checkpoint, WhatCannotBeResumedIsNotSavedAndAllRanksHearOfIt) {
  const test::TempFolder folder;
  test::run_ranks(2, [&](Context& context) {
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    const auto thrown = [&](Checkpointer& checkpoints, const TrainingPosition& position) {
      try {
        checkpoints.save(net, optimizer, position);
      } catch (const std::exception& error) {
        return std::string(error.what());
      }
      return std::string("saved");
    };
    {
      Checkpointer checkpoints(context, folder.path());
      EXPECT_THAT(thrown(checkpoints, {.step = -1}), HasSubstr("a checkpoint of step -1"));
      EXPECT_THAT(thrown(checkpoints, {.step = 1'000'000'000'000}), HasSubstr("counted from 0"));
      TrainingPosition position{.step = 1};
      position.notes["place"] = "caf\xe9";
      EXPECT_THAT(thrown(checkpoints, position), HasSubstr("not UTF-8"));
    }
    Throws part;
    Checkpointer checkpoints(context, folder.path());
    checkpoints.register_for_checkpointing("part", part);
    EXPECT_THAT(thrown(checkpoints, {.step = 1}), HasSubstr("no state today"));
    EXPECT_FALSE(checkpoints.resume(net, optimizer));
  });
}

TEST(Checkpoint, FormatOneIsResumedAndANewerOneRefusedOnEveryRank) {
  const test::TempFolder folder;
  test::run_ranks(2, [&](Context& context) {
    Checkpointer checkpoints(context, folder.path());
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    checkpoints.save(net, optimizer, {.step = 1});
    const std::string path = folder.file("step-000000000001.safetensors");
    if (context.is_main_process()) change_format(path, "1");
    EXPECT_EQ(checkpoints.resume(net, optimizer)->step, 1);
    if (context.is_main_process()) change_format(path, "3");
    try {
      std::ignore = checkpoints.resume(net, optimizer);
      ADD_FAILURE() << "read what it cannot know";
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("written by a newer ddprun"));
      EXPECT_THAT(failure.what(), HasSubstr(path));
    }
  });
}

TEST(Checkpoint, ResumesOnAnotherDevice) {
  if (!test::has_gpu()) GTEST_SKIP() << "no GPU here";
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    Checkpointer checkpoints(context, folder.path());
    const auto train_on = [](Net& net, torch::optim::Optimizer& optimizer, torch::Device device) {
      optimizer.zero_grad();
      net.forward(torch::ones({5, 3}, device)).square().sum().backward();
      optimizer.step();
    };
    Net on_cpu;
    torch::optim::Adam optimizer(on_cpu.parameters());
    train_on(on_cpu, optimizer, torch::kCPU);
    checkpoints.save(on_cpu, optimizer, {.step = 1});
    Net on_gpu;
    on_gpu.to(torch::kCUDA);
    torch::optim::Adam gpu_optimizer(on_gpu.parameters());
    ASSERT_TRUE(checkpoints.resume(on_gpu, gpu_optimizer));
    EXPECT_TRUE(torch::equal(on_gpu.fc->weight.cpu(), on_cpu.fc->weight));
    train_on(on_gpu, gpu_optimizer, torch::kCUDA);
    checkpoints.save(on_gpu, gpu_optimizer, {.step = 2});
    ASSERT_TRUE(checkpoints.resume(on_cpu, optimizer));
    EXPECT_TRUE(torch::equal(on_gpu.fc->weight.cpu(), on_cpu.fc->weight));
    train_on(on_cpu, optimizer, torch::kCPU);
  });
}

}  // namespace
}  // namespace ddprun
