#include "ddprun/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

CsvTable parsed(const std::string& text, const CsvOptions& options = {}) {
  auto table = parse_csv(text, "t.csv", options);
  if (!table) {
    ADD_FAILURE() << table.error().message;
    return {};
  }
  return *table;
}

void expect_error(const std::string& text, const std::string& said,
                  const CsvOptions& options = {}) {
  const auto table = parse_csv(text, "t.csv", options);
  ASSERT_FALSE(table) << said;
  EXPECT_THAT(table.error().message, HasSubstr("t.csv"));
  EXPECT_THAT(table.error().message, HasSubstr(said));
}

TEST(Csv, ReadsNumbersUnderAHeader) {
  const CsvTable table = parsed("a,b\n1,2.5\n-3e2, +4 \n");
  EXPECT_THAT(table.columns, ElementsAre("a", "b"));
  EXPECT_EQ(table.rows, 2);
  EXPECT_THAT(table.values, ElementsAre(1, 2.5, -300, 4));
  EXPECT_THAT(table.labels, IsEmpty());
}

TEST(Csv, ReadsNumbersWithoutAHeader) {
  const CsvTable table = parsed("1;2\n3;4", {.separator = ';', .has_header = false});
  EXPECT_THAT(table.columns, ElementsAre("0", "1"));
  EXPECT_THAT(table.values, ElementsAre(1, 2, 3, 4));
}

TEST(Csv, TakesTheLabelsByNameOrByNumber) {
  const std::string text = "x,kind,y\n1,cat,2\n3,dog,4\n";
  for (const CsvOptions& options : {CsvOptions{.label = "kind"}, CsvOptions{.label_column = 1},
                                    CsvOptions{.label_column = -2}}) {
    const CsvTable table = parsed(text, options);
    EXPECT_THAT(table.columns, ElementsAre("x", "y"));
    EXPECT_THAT(table.values, ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(table.labels, ElementsAre("cat", "dog"));
  }
}

TEST(Csv, LineEndsOfEverySystemAByteOrderMarkAndEmptyLinesAreFine) {
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    const CsvTable table = parsed(
        "\xef\xbb\xbf"
        "a,b" +
        end + end + "1,2" + end + "3,4" + end + end);
    EXPECT_THAT(table.columns, ElementsAre("a", "b"));
    EXPECT_THAT(table.values, ElementsAre(1, 2, 3, 4));
  }
}

TEST(Csv, QuotedFieldsMayHoldSeparatorsQuotesAndLineEnds) {
  const CsvTable table =
      parsed("\"size, cm\",\"said \"\"so\"\"\"\n\"1.5\" , \"two\nlines, \"\"quoted\"\"\"\n2,\"\"\n",
             {.label_column = 1});
  EXPECT_THAT(table.columns, ElementsAre("size, cm"));
  EXPECT_THAT(table.values, ElementsAre(1.5, 2));
  EXPECT_THAT(table.labels, ElementsAre("two\nlines, \"quoted\"", ""));
}

TEST(Csv, NamesTheLineAndTheColumnOfWhatIsNoNumber) {
  expect_error("a,b\n1,2\n3,x4\n", "line 3: column 1 ('b') has 'x4', which is no number");
  expect_error("a,b\n1,2\n\n\n3,0x1F\n", "line 5: column 1 ('b') has '0x1F'");
  expect_error("a,b\n\"1\n\",2\n3,4\n", "line 2: column 0 ('a') has '1\n'");
  expect_error("a,l,b\n1,cat,no\n", "line 2: column 2 ('b') has 'no'", {.label = "l"});
  expect_error("1,2\n3,\n", "line 2: column 1 is empty", {.has_header = false});
  expect_error("size,n\n3,4\n", "if the first line names the columns, set has_header",
               {.has_header = false});
}

// After a quoted field of two lines the count goes on.
TEST(Csv, CountsTheLinesInsideQuotes) {
  expect_error("a,b\n\"x\ny\",2\nz,no\n", "line 4: column 1 ('b') has 'no'", {.label = "a"});
}

TEST(Csv, RowsOfAnotherWidthAreNamed) {
  expect_error("a,b\n1,2\n1,2,3\n", "line 3: it has 3 fields, the lines before it 2");
  expect_error("a,b\n1\n", "line 2: it has 1 fields");
}

TEST(Csv, BrokenQuotesAreNamed) {
  expect_error("a,b\n1,\"2\n3,4\n", "opened in line 2 is never closed");
  expect_error("a,b\n1,\"2\"x\n", "line 2: there is text behind a closing quote");
}

TEST(Csv, AnEmptyFileAndAHeaderAloneHaveNoRows) {
  expect_error("", "no rows of data");
  expect_error("a,b\n", "taken for the columns' names");
}

TEST(Csv, ALabelColumnThatIsNotThereIsNamedWithThoseThatAre) {
  expect_error("a,b\n1,2\n", "no column 'c' for the labels; its columns are a, b", {.label = "c"});
  expect_error("a,b\n1,2\n", "there is no number 2", {.label_column = 2});
  expect_error("a,b\n1,2\n", "there is no number -3", {.label_column = -3});
  expect_error("1,2\n", "there is no header", {.has_header = false, .label = "a"});
  expect_error("a,b\n1,2\n", "give one of the two", {.label = "a", .label_column = 0});
}

TEST(Csv, EmptyFieldsAreWhatTheCallerSays) {
  const CsvTable table = parsed("a,b\n,2\n3,\n", {.missing = -1});
  EXPECT_THAT(table.values, ElementsAre(-1, 2, 3, -1));
}

TEST(Csv, NumbersAreThoseOfPythonsFloat) {
  EXPECT_EQ(number_from("1e400"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(number_from("-1e400"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(number_from("1e-400"), 0.0);
  EXPECT_TRUE(std::isnan(*number_from("nan")));
  EXPECT_EQ(number_from("+inf"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(number_from(" 0.1\t"), 0.1);
  for (const char* wrong : {"", " ", "+", "+-1", "--1", "1 2", "1,2", "one", "1.2.3"}) {
    EXPECT_FALSE(number_from(wrong)) << wrong;
  }
}

TEST(Csv, MissingFileIsNamed) {
  const test::TempFolder folder;
  const auto table = read_csv(folder.file("absent.csv"));
  ASSERT_FALSE(table);
  EXPECT_THAT(table.error().message, HasSubstr("absent.csv"));
}

}  // namespace
}  // namespace ddprun
