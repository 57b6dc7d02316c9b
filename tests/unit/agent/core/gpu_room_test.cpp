// How far a standby is prepared by what its GPU has free.
#include "agent/core/gpu_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace ddprun::agent {
namespace {

using link::GpuUse;
using link::Preparation;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

GpuUse use(std::uint64_t id, std::uint64_t free_gib, std::uint64_t used_gib) {
  return {.id = id, .index = 3, .free_bytes = free_gib * kGiB, .used_bytes = used_gib * kGiB};
}

Preparation of_first(const std::vector<GpuUse>& uses,
                     std::vector<std::optional<Preparation>> standbys = {}) {
  standbys.resize(uses.size());
  return preparation_of(0, uses, standbys);
}

TEST(GpuRoom, ASecondModelNeedsItsBytesAndAContext) {
  EXPECT_EQ(of_first({use(7, 41, 40)}), Preparation::kWhole);
  EXPECT_EQ(of_first({use(7, 40, 40)}), Preparation::kContext);
  EXPECT_EQ(of_first({use(7, 1, 40)}), Preparation::kContext);
  EXPECT_EQ(of_first({use(7, 0, 40)}), Preparation::kNothing);
  EXPECT_EQ(of_first({GpuUse{}}), Preparation::kWhole) << "on the CPU";
}

TEST(GpuRoom, OtherStandbysOfThisGpuKeepTheirs) {
  const std::vector<GpuUse> uses{use(7, 24, 10), use(7, 24, 12), use(8, 1, 12)};
  EXPECT_EQ(of_first(uses), Preparation::kWhole);
  EXPECT_EQ(of_first(uses, {std::nullopt, Preparation::kContext}), Preparation::kWhole);
  EXPECT_EQ(of_first(uses, {std::nullopt, Preparation::kWhole}), Preparation::kWhole);
  EXPECT_EQ(of_first({use(7, 23, 10), use(7, 23, 12)}, {std::nullopt, Preparation::kWhole}),
            Preparation::kContext);
  EXPECT_EQ(of_first(uses, {Preparation::kWhole, std::nullopt, Preparation::kWhole}),
            Preparation::kWhole)
      << "one on another GPU, and the one that was before";
}

TEST(GpuRoom, TheLeastThatAWorkerHasSeenIsFree) {
  EXPECT_EQ(of_first({use(7, 60, 10), use(7, 5, 10)}), Preparation::kContext);
  GpuUse unknown = use(7, 0, 0);
  EXPECT_EQ(of_first({use(7, 60, 10), unknown}), Preparation::kWhole);
}

TEST(GpuRoom, AWorkerMayWriteAnything) {
  const GpuUse mad{.id = 1, .index = 0, .free_bytes = UINT64_MAX, .used_bytes = UINT64_MAX};
  EXPECT_EQ(of_first({mad}), Preparation::kWhole);
  EXPECT_EQ(of_first({mad, mad, mad}, {std::nullopt, Preparation::kWhole, Preparation::kWhole}),
            Preparation::kNothing);
}

TEST(GpuRoom, SaysWhy) {
  EXPECT_EQ(
      why_not_whole(
          {.id = 1, .index = 3, .free_bytes = kGiB + kGiB / 2, .used_bytes = 40 * kGiB + kGiB / 4}),
      "GPU 3 has 1.5 GiB free, and a second process of its rank would need 41.3");
}

}  // namespace
}  // namespace ddprun::agent
