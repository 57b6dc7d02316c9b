#include "rendezvous/common/loop/lifetime.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

namespace ddprun {
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

TEST(Lifetime, AWatchExpiresWithIt) {
  std::optional<Lifetime> lifetime(std::in_place);
  const auto watch = lifetime->watch();
  EXPECT_FALSE(watch.expired());
  lifetime.reset();
  EXPECT_TRUE(watch.expired());
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
}  // namespace ddprun
