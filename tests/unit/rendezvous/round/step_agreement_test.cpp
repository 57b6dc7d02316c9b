#include "rendezvous/round/step_agreement.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace ddprun::rdzv {
namespace {

constexpr auto kMax = std::numeric_limits<std::int64_t>::max();

TEST(StepAgreement, TheBoundaryIsBehindTheForemostWorker) {
  StepAgreement leave;
  EXPECT_FALSE(leave.held(NodeId{0}, 5, 3)) << "nothing was asked";
  EXPECT_TRUE(leave.wanted());
  EXPECT_FALSE(leave.wanted()) << "two nodes are preempted";
  EXPECT_FALSE(leave.held(NodeId{0}, 5, 3));
  EXPECT_FALSE(leave.held(NodeId{1}, 8, 3));
  EXPECT_FALSE(leave.held(NodeId{1}, 8, 3)) << "an answer counts once";
  EXPECT_EQ(leave.held(NodeId{2}, 0, 3), 9);
  EXPECT_FALSE(leave.held(NodeId{2}, 12, 3)) << "it is agreed";
  EXPECT_FALSE(leave.wanted());
}

TEST(StepAgreement, WhatAWorkerWritesIsClamped) {
  for (const auto& [passed, boundary] :
       {std::pair{kMax, kMax}, std::pair{-kMax, std::int64_t{1}}}) {
    StepAgreement leave;
    leave.wanted();
    EXPECT_EQ(leave.held(NodeId{0}, passed, 1), boundary);
  }
}

}  // namespace
}  // namespace ddprun::rdzv
