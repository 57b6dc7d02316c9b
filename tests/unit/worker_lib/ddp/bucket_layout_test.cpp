#include "worker_lib/ddp/bucket_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/error.h"

namespace ddprun {
namespace {

TEST(BucketLayout, SurvivesBeingWritten) {
  const BucketLayout layout{{3, 2}, {1, 0}};
  EXPECT_EQ(text_of(layout), R"({"buckets":[[3,2],[1,0]]})");
  EXPECT_EQ(bucket_layout_from(text_of(layout), 4), layout);
}

TEST(BucketLayout, OneThatIsNotKnownYetFitsEveryModel) {
  EXPECT_TRUE(bucket_layout_from(text_of({}), 7).empty());
}

TEST(BucketLayout, WhatDoesNotFitIsRefusedWithTheReason) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      bucket_layout_from(text, 3);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal("nonsense"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(R"({"buckets":[[0,-1,2]]})"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(R"({"buckets":[[0,1,2],[]]})"), HasSubstr("without parameters"));
  EXPECT_THAT(refusal(R"({"buckets":[[0,1,3]]})"), HasSubstr("places parameter 3"));
  EXPECT_THAT(refusal(R"({"buckets":[[0,1],[1]]})"), HasSubstr("parameter 1 twice"));
  EXPECT_THAT(refusal(R"({"buckets":[[0],[1]]})"), HasSubstr("places 2 parameters"));
}

}  // namespace
}  // namespace ddprun
