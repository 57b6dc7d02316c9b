#include "rendezvous/common/lifetime.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

namespace ddprun::rdzv {
namespace {

TEST(Lifetime, AHandlerComesAsOftenAsItIsCalledWhileItsOwnerLives) {
  std::optional<Lifetime> lifetime(std::in_place);
  int sum = 0;
  const std::function<void(int)> handler = lifetime->guard([&](int value) { sum += value; });
  handler(1);
  handler(2);
  lifetime.reset();
  handler(4);
  EXPECT_EQ(sum, 3);
}

TEST(Lifetime, WhatWasGuardedBeforeARenewalDoesNotCome) {
  Lifetime lifetime;
  int calls = 0;
  auto before = lifetime.guard([&] { ++calls; });
  lifetime.renew();
  auto after = lifetime.guard([&] { ++calls; });
  before();
  EXPECT_EQ(calls, 0);
  after();
  EXPECT_EQ(calls, 1);
}

TEST(Lifetime, AHandlerMayEndItsOwner) {
  std::optional<Lifetime> lifetime(std::in_place);
  int calls = 0;
  auto handler = lifetime->guard([&] {
    ++calls;
    lifetime.reset();
  });
  handler();
  handler();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace ddprun::rdzv
