// What a reader must say of a file that it cannot use: which one, and what is wrong with it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "rendezvous/common/result.h"

namespace ddprun::test {

template <typename T>
void expect_refused(const Result<T>& read, const std::string& path, const std::string& said) {
  ASSERT_FALSE(read) << said;
  EXPECT_THAT(read.error().message, testing::HasSubstr(path));
  EXPECT_THAT(read.error().message, testing::HasSubstr(said));
}

template <typename T>
void expect_damaged(const Result<T>& read, const std::string& path, const std::string& said) {
  expect_refused(read, path, said);
  if (!read) {
    EXPECT_EQ(read.error().code, ErrorCode::kDataLoss);
  }
}

}  // namespace ddprun::test
