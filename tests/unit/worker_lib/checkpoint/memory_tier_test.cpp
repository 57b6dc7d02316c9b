// Snapshots of a model and its optimizer in the memory of nodes, as the ranks of a later round find them.
#include "worker_lib/checkpoint/memory_tier.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/nn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/worker_lib/group_of_threads.h"

namespace ddprun {
namespace {

using torch::Tensor;

// The files that the agents of some nodes have.
class Nodes {
 public:
  explicit Nodes(int count) {
    for (int i = 0; i < count; ++i)
      files_.emplace_back(::memfd_create("ddprun-snapshot", MFD_CLOEXEC));
  }
  std::shared_ptr<SnapshotMemory> memory(int node) const {
    return SnapshotMemory::open(
        rdzv::UniqueFd(::dup(files_[static_cast<std::size_t>(node)].get())));
  }
  void swap(int a, int b) {
    std::swap(files_[static_cast<std::size_t>(a)], files_[static_cast<std::size_t>(b)]);
  }
  int file(int node) const { return files_[static_cast<std::size_t>(node)].get(); }

 private:
  std::vector<rdzv::UniqueFd> files_;
};

// Equal on all ranks: of several types, not contiguous, empty, and of sizes that fit no share.
NamedTensors shared_state(std::int64_t step) {
  const Tensor base = torch::arange(3000, torch::kFloat32) + static_cast<double>(step);
  return {{"model.a", base.view({50, 60}).t()},
          {"model.b", base.narrow(0, 0, 1001).to(torch::kFloat64)},
          {"model.c", base.narrow(0, 0, 77).to(torch::kFloat16)},
          {"model.none", torch::empty({0, 3})},
          {"optimizer.a.step", torch::tensor(step, torch::kInt64)}};
}

NamedTensors own_buffers(std::int64_t step, int rank) {
  return {{"model.mean", torch::full({5}, static_cast<double>(100 * step + rank))}};
}

CheckpointMetadata metadata_after(std::int64_t step) {
  CheckpointMetadata metadata;
  metadata.position.step = step;
  return metadata;
}

NamedTensors zeroes_like(const NamedTensors& tensors) {
  NamedTensors zeroes;
  for (const auto& [name, tensor] : tensors) zeroes.emplace(name, torch::zeros_like(tensor));
  return zeroes;
}

// One for each place of its data.
std::vector<torch::Tensor> zeroes_for(const MemoryTier::Kept& kept, const NamedTensors& like) {
  std::vector<torch::Tensor> zeroes;
  for (const auto& place : kept.places) zeroes.push_back(torch::zeros_like(like.at(place.name)));
  return zeroes;
}

void run(int ranks, int ranks_per_node, const Nodes& nodes, int every,
         const std::function<void(Context&, MemoryTier&)>& body) {
  test::run_ranks(
      ranks,
      [&](Context& context) {
        const int node = context.rank() / ranks_per_node;
        MemoryTier tier(context, nodes.memory(node), every);
        body(context, tier);
      },
      [](int) { return Environment{}; }, {.backend = test::backend_under_test()}, ranks_per_node);
}

void keep(Context& context, MemoryTier& tier, std::int64_t step) {
  tier.keep(step, shared_state(step), own_buffers(step, context.rank()),
            [&] { return metadata_after(step); });
  context.barrier();  // as the next step is one
}

// `rank_then`: whose buffers this rank has afterwards.
void expect_state(Context& context, MemoryTier& tier, std::int64_t step, int rank_then) {
  const auto kept = tier.find();
  ASSERT_TRUE(kept) << "rank " << context.rank();
  EXPECT_EQ(kept->choice.step, step);
  EXPECT_EQ(kept->metadata.at("step"), std::to_string(step));
  const NamedTensors expected = shared_state(step);
  const auto tensors = zeroes_for(*kept, expected);
  ASSERT_EQ(tensors.size(), expected.size());
  const NamedTensors buffers = zeroes_like(own_buffers(0, 0));
  ASSERT_TRUE(tier.restore(*kept, tensors, buffers, /*seed_of_new=*/1));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = kept->places[i].name;
    EXPECT_TRUE(torch::equal(tensors[i], expected.at(name)))
        << name << " on rank " << context.rank();
  }
  EXPECT_TRUE(torch::equal(buffers.at("model.mean"), own_buffers(step, rank_then).at("model.mean")))
      << "rank " << context.rank();
}

class MemoryTierOn : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, MemoryTierOn, testing::Values(1, 2, 3));

TEST_P(MemoryTierOn, GivesTheSameBytesToAnyNumberOfRanks) {
  const Nodes nodes(1);
  run(GetParam(), GetParam(), nodes, 5, [](Context& context, MemoryTier& tier) {
    EXPECT_FALSE(tier.find());
    for (const std::int64_t step : {5, 10, 15}) keep(context, tier, step);
  });
  for (const int ranks : {1, 2, 3}) {
    run(ranks, ranks, nodes, 5, [](Context& context, MemoryTier& tier) {
      expect_state(context, tier, 15, context.rank() < GetParam() ? context.rank() : 0);
    });
  }
}

TEST(MemoryTier, GoesBackToTheOneBeforeWhereTheNewestIsDamaged) {
  const Nodes nodes(1);
  run(2, 2, nodes, 5, [](Context& context, MemoryTier& tier) {
    keep(context, tier, 5);
    keep(context, tier, 10);
  });
  // The end of the second slot's data, which rank 1 wrote.
  const off_t size = ::lseek(nodes.file(0), 0, SEEK_END);
  const std::string page(4096, '\0');
  ASSERT_EQ(::pwrite(nodes.file(0), page.data(), page.size(), size - 2 * 4096), 4096);
  run(2, 2, nodes, 5, [](Context& context, MemoryTier& tier) {
    const auto damaged = tier.find();
    ASSERT_TRUE(damaged);
    EXPECT_EQ(damaged->choice.step, 10);
    const auto tensors = zeroes_for(*damaged, shared_state(10));
    EXPECT_FALSE(tier.restore(*damaged, tensors, zeroes_like(own_buffers(0, 0)), 1));
    expect_state(context, tier, 5, context.rank());
  });
}

TEST(MemoryTier, IsFoundOnNodesThatHaveChangedTheirPlaces) {
  Nodes nodes(2);
  run(4, 2, nodes, 5, [](Context& context, MemoryTier& tier) { keep(context, tier, 5); });
  nodes.swap(0, 1);
  run(4, 2, nodes, 5,
      [](Context& context, MemoryTier& tier) { expect_state(context, tier, 5, context.rank()); });
}

TEST(MemoryTier, IsGivenToANodeThatHasCome) {
  const Nodes nodes(2);
  run(2, 2, nodes, 5, [](Context& context, MemoryTier& tier) { keep(context, tier, 5); });
  run(4, 2, nodes, 5, [](Context& context, MemoryTier& tier) {
    expect_state(context, tier, 5, context.rank() < 2 ? context.rank() : 0);
  });
}

TEST(MemoryTier, IsNotUsedWhereANodeWasLostAndTheWorldIsTheSame) {
  const Nodes nodes(2);
  const Nodes other(1);
  run(4, 2, nodes, 5, [](Context& context, MemoryTier& tier) { keep(context, tier, 5); });
  test::run_ranks(
      4,
      [&](Context& context) {
        MemoryTier tier(context, context.rank() < 2 ? nodes.memory(0) : other.memory(0), 5);
        EXPECT_FALSE(tier.find());
      },
      [](int) { return Environment{}; }, {.backend = test::backend_under_test()}, 2);
}

TEST(MemoryTier, IsOffWhereTheStateChangesItsShape) {
  const Nodes nodes(1);
  run(2, 2, nodes, 1, [](Context& context, MemoryTier& tier) {
    keep(context, tier, 1);
    NamedTensors other = shared_state(2);
    other.emplace("model.more", torch::zeros({7}));
    tier.keep(2, other, own_buffers(2, context.rank()), [] { return metadata_after(2); });
    keep(context, tier, 3);
  });
  run(2, 2, nodes, 1,
      [](Context& context, MemoryTier& tier) { expect_state(context, tier, 1, context.rank()); });
}

TEST(MemoryTier, WhatIsLaterThanTheDisksCheckpointIsForgotten) {
  const Nodes nodes(1);
  run(2, 2, nodes, 1, [](Context& context, MemoryTier& tier) {
    keep(context, tier, 1);
    keep(context, tier, 2);
    tier.continue_from(1);
  });
  run(2, 2, nodes, 1,
      [](Context& context, MemoryTier& tier) { expect_state(context, tier, 1, context.rank()); });
}

// Snapshots that cost nothing beside a step are made often, and all ranks agree on when.
TEST(MemoryTier, MakesThemAsOftenAsTheyAreCheap) {
  const Nodes nodes(1);
  run(2, 2, nodes, kMemoryAuto, [](Context& context, MemoryTier& tier) {
    std::vector<int> made;
    for (std::int64_t step = 1; step <= 12; ++step) {
      context.barrier();
      if (step > 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the step
      const bool is_due = tier.is_due(step);
      EXPECT_EQ(context.all_reduce(is_due ? 1 : 0), is_due ? 2 : 0) << step;
      if (!is_due) continue;
      keep(context, tier, step);
      made.push_back(static_cast<int>(step));
    }
    ASSERT_GE(made.size(), 3U);
    EXPECT_EQ(made[2], 3);
  });
}

TEST(MemoryTier, IsNotThereWithoutMemoryOnEveryRank) {
  const Nodes nodes(1);
  test::run_ranks(2, [&](Context& context) {
    MemoryTier tier(context, context.rank() == 0 ? nodes.memory(0) : nullptr, 1);
    EXPECT_FALSE(tier.is_due(1));
    EXPECT_FALSE(tier.find());
  });
}

}  // namespace
}  // namespace ddprun
