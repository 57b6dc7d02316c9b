#include "rendezvous/base/result.h"

#include <gtest/gtest.h>
#include <cerrno>

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
  Error error = Error{ErrorCode::kTimeout, "no answer", {}}.with("host", "node1");
  error.with("rank", "3");
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

TEST(Result, EveryCodeHasItsOwnName) {
  EXPECT_EQ(name_of(ErrorCode::kInvalidArgument), "invalid_argument");
  EXPECT_EQ(name_of(ErrorCode::kDataLoss), "data_loss");
  EXPECT_EQ(name_of(ErrorCode::kIo), "io");
}

}  // namespace
}  // namespace ddprun
