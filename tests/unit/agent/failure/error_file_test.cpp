#include "agent/failure/error_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "rendezvous/common/limits.h"
#include "tests/support/temporary_tree.h"

namespace ddprun::agent {
namespace {

TEST(ErrorFile, ReadsWhatTorchsRecordWrites) {
  const WorkerError error = parse_error_file(
      R"({"message": {"message": "ValueError: lr must be positive", "extraInfo": )"
      R"({"py_callstack": "Traceback (most recent call last):\n  File", "timestamp": "1760000000"}}})");
  EXPECT_EQ(error.message, "ValueError: lr must be positive");
  EXPECT_EQ(error.callstack, "Traceback (most recent call last):\n  File");
}

TEST(ErrorFile, ReadsAPlainMessage) {
  const WorkerError error =
      parse_error_file(R"({"message": "no data on this node", "timestamp": 1760000000})");
  EXPECT_EQ(error.message, "no data on this node");
  EXPECT_EQ(error.callstack, "");
}

TEST(ErrorFile, WhatCannotBeUnderstoodIsShownAsItIs) {
  for (const char* text : {"not json", "{\"message\": ", "[1, 2]", "{\"other\": 1}", "null"}) {
    EXPECT_EQ(parse_error_file(text).message, text);
  }
  EXPECT_EQ(parse_error_file(R"({"message": {"message": 7}})").message, "7");
  EXPECT_EQ(parse_error_file(R"({"message": {}})").message, "");
}

TEST(ErrorFile, AMessageIsCutToWhatOtherNodesAreTold) {
  const auto path =
      std::filesystem::temp_directory_path() / ("error_file_cut." + std::to_string(::getpid()));
  std::ofstream(path) << R"({"message": ")" << std::string(900'000, 'x') << R"("})";
  const std::string message = read_error_file(path)->message;
  std::filesystem::remove(path);
  EXPECT_EQ(message.size(), rdzv::limits::kMaxTextBytes);
  EXPECT_TRUE(message.ends_with("x…"));
}

TEST(ErrorFile, AFileThatIsMissingOrEmptyIsNoError) {
  const auto path =
      std::filesystem::temp_directory_path() / ("error_file_test." + std::to_string(::getpid()));
  EXPECT_FALSE(read_error_file(path));
  std::ofstream(path).close();
  EXPECT_FALSE(read_error_file(path));
  std::ofstream(path) << R"({"message": "seen"})";
  EXPECT_EQ(read_error_file(path)->message, "seen");
  std::filesystem::remove(path);
}

// Its path is the worker's to fill: with a FIFO that nobody writes to, a device without an end.
TEST(ErrorFile, WhatIsNoRegularFileIsNotWaitedForAndNotRead) {
  const TemporaryTree tree;
  ASSERT_EQ(::mkfifo((tree / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", tree / "zeros");
  for (const std::string name : {"fifo", "zeros", "."}) {
    EXPECT_FALSE(read_error_file(tree / name)) << name;
  }
}

TEST(ErrorFile, IsReadUpToItsBound) {
  const TemporaryTree tree;
  const std::string file = tree.write("error.json", std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(error_file_text(file).size(), 1U << 20);
}

}  // namespace
}  // namespace ddprun::agent
