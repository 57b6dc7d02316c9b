// getenv() of ddprun::standby, in a program whose dlsym() asks for a variable itself, as that of an allocator may.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>

#include "worker_lib/process/zygote.h"

namespace {

int calls_of_dlsym = 0;
std::string seen_within;  // by the first call

}  // namespace

extern "C" void* dlsym(void* handle, const char* name) noexcept {
  static auto* const next =
      reinterpret_cast<void* (*)(void*, const char*)>(::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"));
  if (std::string_view(name) == "getenv" && ++calls_of_dlsym == 1) {
    const char* const value = std::getenv("PATH");
    seen_within = value == nullptr ? "nothing" : value;
  }
  return next(handle, name);
}

namespace ddprun::zygote {
namespace {

TEST(EarlyGetenv, AnswersWithinDlsymAndNotesTheFirstVariableOfAWorker) {
  ASSERT_TRUE(is_linked());
  EXPECT_EQ(std::getenv("DDPRUN_TEST_THAT_IS_NOT_SET"), nullptr);
  // Here, or before main() if something asked then: one call, and within it the answer was right.
  EXPECT_EQ(calls_of_dlsym, 1);
  EXPECT_EQ(seen_within, std::getenv("PATH"));
  EXPECT_EQ(calls_of_dlsym, 1);
  EXPECT_EQ(variable_read_early(), nullptr);
  std::ignore = std::getenv("LOCAL_RANK");
  std::ignore = std::getenv("RANK");
  EXPECT_STREQ(variable_read_early(), "LOCAL_RANK");
}

}  // namespace
}  // namespace ddprun::zygote
