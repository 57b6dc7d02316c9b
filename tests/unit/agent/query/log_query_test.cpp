#include "agent/query/log_query.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

TEST(LogQuery, ReadsAsWhatWasWritten) {
  const LogQuery question{{3, 0}, 50, false, {{3, Stream::kStderr, 2, 4096}}};
  EXPECT_EQ(log_query_from(to_json(question)).value(), question);
  const std::vector<LogPart> parts = {
      {{3, Stream::kStderr, 2, 5000}, "b12", LogPart::Source::kRecent, "", "line\n", 17, ""},
      {{0, Stream::kStdout, 0, 0}, "b11", LogPart::Source::kFile, "/log", "", 0, "no such file"}};
  EXPECT_EQ(log_parts_from(to_json(parts)).value(), parts);
  EXPECT_FALSE(log_query_from(R"({"ask":"log"})"));
  EXPECT_FALSE(log_parts_from("{}"));
}

TEST(LogQuery, AskedForMoreLinesThanThereCanBeItTakesTheMost) {
  LogQuery question;
  question.lines = 1'000'000;
  EXPECT_EQ(log_query_from(to_json(question)).value().lines, LogQuery::kLinesMax);
}

TEST(LogQuery, TakesTheLastLines) {
  EXPECT_EQ(last_lines("a\nb\nc\n", 2), "b\nc\n");
  EXPECT_EQ(last_lines("a\nb\nc", 2), "b\nc") << "the last one is not finished";
  EXPECT_EQ(last_lines("a\nb\n", 5), "a\nb\n");
  EXPECT_EQ(last_lines("a\n\n\n", 2), "\n\n");
  EXPECT_EQ(last_lines("a\nb\n", 0), "");
  EXPECT_EQ(last_lines("", 3), "");
  EXPECT_EQ(last_lines("\n", 1), "\n");
}

TEST(LogQuery, KeepsBackWhatIsNotFinished) {
  EXPECT_EQ(whole_lines("a\nb", /*must_be_all=*/false), "a\n");
  EXPECT_EQ(whole_lines("a\nb", /*must_be_all=*/true), "a\nb");
  EXPECT_EQ(whole_lines("ab", /*must_be_all=*/false), "");
  EXPECT_EQ(whole_lines("a\n", /*must_be_all=*/false), "a\n");
}

}  // namespace
}  // namespace ddprun::agent
