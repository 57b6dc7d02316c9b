#include "worker_lib/checkpoint/checkpoint_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/error.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

CheckpointMetadata sample() {
  CheckpointMetadata metadata;
  metadata.position = {.epoch = 2, .consumed = 30, .step = 7, .seed = ~0ULL, .world_size = 3};
  metadata.position.notes["batch_size"] = "5";
  metadata.optimizer = "SGD";
  metadata.metric = 0.1 + 0.2;
  metadata.best_metric = -1e300;
  metadata.parts["schedule.warm-up"] = R"({"step": 7})";
  return metadata;
}

std::string error_of(const safetensors::Metadata& strings) {
  try {
    metadata_of(strings);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

TEST(CheckpointMetadata, WhatIsWrittenIsRead) {
  const auto read = metadata_of(strings_of(sample()));
  EXPECT_EQ(read.position.epoch, 2);
  EXPECT_EQ(read.position.consumed, 30);
  EXPECT_EQ(read.position.step, 7);
  EXPECT_EQ(read.position.seed, ~0ULL);
  EXPECT_EQ(read.position.world_size, 3);
  EXPECT_EQ(read.position.notes, sample().position.notes);
  EXPECT_EQ(read.optimizer, "SGD");
  EXPECT_EQ(read.metric, 0.1 + 0.2);
  EXPECT_EQ(read.best_metric, -1e300);
  EXPECT_EQ(read.parts, sample().parts);
}

TEST(CheckpointMetadata, FormatOneIsStillRead) {
  auto strings = strings_of(sample());
  strings["ddprun_format"] = "1";
  for (const char* later : {"metric", "best_metric", "state.schedule.warm-up"}) {
    strings.erase(later);
  }
  const auto read = metadata_of(strings);
  EXPECT_EQ(read.position.step, 7);
  EXPECT_FALSE(read.metric);
}

TEST(CheckpointMetadata, ANewerFormatIsRefusedWithBothNumbers) {
  auto strings = strings_of(sample());
  strings["ddprun_format"] = "3";
  EXPECT_THROW(metadata_of(strings), UsageError);
  EXPECT_THAT(error_of(strings), HasSubstr("newer ddprun (format 3"));
  EXPECT_THAT(error_of(strings), HasSubstr("up to format 2"));
}

TEST(CheckpointMetadata, WhatIsMissingOrNoNumberIsNamed) {
  auto strings = strings_of(sample());
  strings["step"] = "7x";
  EXPECT_THAT(error_of(strings), HasSubstr("'step'"));
  strings.erase("step");
  EXPECT_THAT(error_of(strings), HasSubstr("lacks 'step'"));
  EXPECT_THAT(error_of({{"format", "pt"}}), HasSubstr("load_weights"));
}

}  // namespace
}  // namespace ddprun
