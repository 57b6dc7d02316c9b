#include "rendezvous/common/worker_abi/untried_arch.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(UntriedArch, IsRefusedByNameUnlessTheUserTriesIt) {
  EXPECT_EQ(
      why_untried_arch("shared memory", nullptr, "aarch64"),
      "shared memory was not run on hardware of aarch64 yet (DDPRUN_UNTRIED_ARCH=1 tries it)");
  EXPECT_NE(why_untried_arch("shared memory", "0", "aarch64"), "");
  EXPECT_EQ(why_untried_arch("shared memory", "1", "aarch64"), "");
  EXPECT_EQ(why_untried_arch("shared memory", nullptr, ""), "");
}

TEST(UntriedArch, IsEveryOneButX86) {
#if defined(__x86_64__)
  EXPECT_EQ(why_untried_arch("shared memory", nullptr), "");
#else
  EXPECT_NE(why_untried_arch("shared memory", nullptr), "");
#endif
}

}  // namespace
}  // namespace ddprun
