// That TensorBoard reads these bytes is proved in tests/compat/tensorboard_test.py.
#include "worker_lib/train/event_record.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "ddprun/error.h"
#include "ddprun/tensorboard.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

TEST(EventRecord, AScalarIsTheseBytes) {
  EXPECT_EQ(event_record::scalar_event(1.0, 300, "a", 0.5f),
            std::string("\x09\0\0\0\0\0\0\xf0\x3f"  // wall_time
                        "\x10\xac\x02"              // step
                        "\x2a\x0a"                  // summary, of 10 bytes
                        "\x0a\x08"                  // value, of 8 bytes
                        "\x0a\x01"
                        "a"
                        "\x15\0\0\0\x3f",
                        24));
}

TEST(SummaryWriter, EveryScalarIsInTheFileAtOnce) {
  const test::TempFolder folder;
  SummaryWriter events(folder.path() + "/deep/er");
  const auto before = std::filesystem::file_size(events.path());
  events.add_scalar("a", 1, 1);
  EXPECT_EQ(std::filesystem::file_size(events.path()), before + 8 + 4 + 23 + 4);
}

TEST(SummaryWriter, EveryObjectHasAFileOfItsOwn) {
  const test::TempFolder folder;
  EXPECT_NE(SummaryWriter(folder.path()).path(), SummaryWriter(folder.path()).path());
}

TEST(SummaryWriter, AFolderThatCannotBeMadeIsNamed) {
  const test::TempFolder folder;
  std::ofstream(folder.path() + "/file") << "x";
  try {
    SummaryWriter events(folder.path() + "/file/runs");
    FAIL() << "it was made";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("/file/runs"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ddprun
