#include "worker_lib/process/page_memory.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <new>
#include <utility>

namespace ddprun {
namespace {

constexpr const char* kNoDriver = "libno-such-driver.so.1";

std::size_t pinned_bytes() {
  void* const driver = dlopen(DDPRUN_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  return *static_cast<std::size_t*>(dlsym(driver, "fake_pinned_bytes"));
}

TEST(PageMemory, IsWholePagesOfZeroes) {
  const PageMemory none;
  EXPECT_EQ(none.size(), 0U);
  EXPECT_EQ(PageMemory(0, true, DDPRUN_FAKE_CUDA).size(), 0U);
  const PageMemory memory(3 * 4096 + 1, false);
  EXPECT_EQ(memory.size(), 4 * 4096U);
  EXPECT_FALSE(memory.is_pinned());
  EXPECT_EQ(memory.data()[memory.size() - 1], 0);
}

TEST(PageMemory, IsPinnedForAsLongAsItIsThere) {
  {
    PageMemory memory(4097, true, DDPRUN_FAKE_CUDA);
    EXPECT_TRUE(memory.is_pinned());
    EXPECT_EQ(pinned_bytes(), 8192U);
    const PageMemory moved(std::move(memory));
    EXPECT_EQ(pinned_bytes(), 8192U);
    EXPECT_EQ(memory.data(),
              nullptr);  // NOLINT(clang-analyzer-cplusplus.Move,bugprone-use-after-move)
    EXPECT_EQ(moved.size(), 8192U);
  }
  EXPECT_EQ(pinned_bytes(), 0U);
}

TEST(PageMemory, IsAsAnyOtherWhereItCannotBePinned) {
  EXPECT_FALSE(PageMemory(1, true, kNoDriver).is_pinned());
  EXPECT_FALSE(PageMemory(1, true, "libz.so.1").is_pinned()) << "a library that is no driver";
  const PageMemory first(1, true, DDPRUN_FAKE_CUDA);
  const PageMemory refused(1, true, DDPRUN_FAKE_CUDA);
  EXPECT_FALSE(refused.is_pinned());
  EXPECT_EQ(refused.data()[0], 0);
}

TEST(PageMemory, SaysWhenThereIsNone) {
  EXPECT_THROW(PageMemory(std::size_t{1} << 60, false), std::bad_alloc);
}

}  // namespace
}  // namespace ddprun
