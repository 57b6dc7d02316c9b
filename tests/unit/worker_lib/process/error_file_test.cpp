#include "worker_lib/process/error_file.h"

#include <gtest/gtest.h>

#include "tests/unit/worker_lib/outcome.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

FailureDescription sample() {
  return {"std::runtime_error", "it \"broke\"\nhere", "frame 0",
          std::chrono::system_clock::time_point(std::chrono::seconds(1790000000))};
}

TEST(ErrorFile, IsWhatTheRecordDecoratorWrites) {
  EXPECT_EQ(error_file_json(sample()),
            R"({"message":{"message":"std::runtime_error: it \"broke\"\nhere",)"
            R"("extraInfo":{"py_callstack":"frame 0","timestamp":"1790000000"}}})");
}

TEST(ErrorFile, IsWrittenWhole) {
  const test::TempFolder folder;
  write_error_file(folder.file("error.json"), sample());
  EXPECT_EQ(test::read(folder.file("error.json")), error_file_json(sample()));
}

TEST(ErrorFile, AFolderThatIsNotThereIsAnErrorThatNamesTheFile) {
  const auto written = test::outcome([] { write_error_file("/nonexistent/error.json", sample()); });
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().message.find("/nonexistent/error.json"), std::string::npos);
}

}  // namespace
}  // namespace ddprun
