#include "worker_lib/optim/adam_scalars.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ddprun::optim {
namespace {

TEST(AdamScalars, AreThoseOfTheFormula) {
  const auto first = adam_scalars(0.1, 0.9, 0.75, 1);
  EXPECT_DOUBLE_EQ(first.step_size, 1.0);
  EXPECT_DOUBLE_EQ(first.bias_correction2_sqrt, 0.5);
  const auto late = adam_scalars(0.1, 0.9, 0.999, 1e6);
  EXPECT_DOUBLE_EQ(late.step_size, 0.1);
  EXPECT_DOUBLE_EQ(late.bias_correction2_sqrt, 1.0);
  EXPECT_DOUBLE_EQ(decay_factor(0.1, 0.5), 0.95);
}

// Python's numbers, from `(1 - 0.999**step) ** 0.5` and `1e-3 / (1 - 0.9**step)`.
TEST(AdamScalars, HavePythonsBits) {
  const auto third = adam_scalars(1e-3, 0.9, 0.999, 3);
  EXPECT_EQ(third.step_size, 0x1.e3a9179dc1a76p-9);
  EXPECT_EQ(third.bias_correction2_sqrt, 0x1.c078514eb6c08p-5);
}

}  // namespace
}  // namespace ddprun::optim
