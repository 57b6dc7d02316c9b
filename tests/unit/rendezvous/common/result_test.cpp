#include "rendezvous/common/result.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <string>

namespace ddprun {
namespace {

Result<int> half_of(int value) {
  if (value % 2 != 0) return fail(ErrorCode::kInvalidArgument, "7 is odd; give an even number");
  return value / 2;
}

TEST(Result, CarriesAValueOrAnError) {
  EXPECT_EQ(*half_of(8), 4);
  const auto odd = half_of(7);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code, ErrorCode::kInvalidArgument);
}

TEST(Result, ContextGrowsOnTheWayUpInOrder) {
  const Error error =
      Error{ErrorCode::kTimeout, "no answer", {}}.with("host", "node1").with("rank", "3");
  EXPECT_EQ(error.to_string(), "no answer (host: node1, rank: 3)");
  EXPECT_EQ((Error{ErrorCode::kTimeout, "no answer", {}}.to_string()), "no answer");
}

TEST(Result, ErrnoBecomesACodeAndASentence) {
  const Error taken = error_from_errno(EADDRINUSE, "bind 127.0.0.1:29500");
  EXPECT_EQ(taken.code, ErrorCode::kAddressInUse);
  EXPECT_EQ(taken.message, "bind 127.0.0.1:29500: Address already in use");
  EXPECT_EQ(error_from_errno(EMFILE, "socket").code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_from_errno(EIO, "read").code, ErrorCode::kIo);
}

TEST(Result, ALimitThatWasMetIsNamedWithWhatToTry) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  EXPECT_EQ(error_from_errno(EMFILE, "socket").message,
            "socket: Too many open files; the limit is " + std::to_string(files.rlim_cur) +
                " open files per process: raise it (ulimit -n)");
  const Error start = error_of_start(EAGAIN, "cannot start a thread");
  EXPECT_EQ(start.code, ErrorCode::kResourceExhausted);
  EXPECT_NE(start.message.find("pids.max"), std::string::npos) << start.message;
  EXPECT_EQ(error_of_start(ENOENT, "cannot start x").message,
            "cannot start x: No such file or directory");
}

}  // namespace
}  // namespace ddprun
