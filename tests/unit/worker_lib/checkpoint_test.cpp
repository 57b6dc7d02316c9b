#include "ddprun/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "group_of_threads.h"
#include "temp_folder.h"

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
      checkpoints.resume(net, optimizer);
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
      checkpoints.resume(wider, wider_optimizer);
      ADD_FAILURE() << "accepted another shape";
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("model.fc.weight"));
      EXPECT_THAT(failure.what(), HasSubstr("step-000000000000.safetensors"));
    }
    EXPECT_TRUE(torch::equal(before, wider.fc->weight)) << "a refused checkpoint changed the model";

    torch::nn::Linear other(3, 4);
    torch::optim::SGD other_optimizer(other->parameters(), 0.1);
    try {
      checkpoints.resume(*other, other_optimizer);
      ADD_FAILURE() << "accepted other names";
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("lacks model.bias, model.weight"));
      EXPECT_THAT(failure.what(), HasSubstr("model.fc.bias"));
    }

    torch::optim::Adam adam(net.parameters());
    EXPECT_THROW(checkpoints.resume(net, adam), Failure);
  });
}

TEST(Checkpoint, AnOptimizerThatIsNotKnownIsRefused) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    Net net;
    torch::optim::RMSprop optimizer(net.parameters());
    EXPECT_THROW(Checkpointer(context, folder.path()).save(net, optimizer, {}), UsageError);
  });
}

}  // namespace
}  // namespace ddprun
