// What others wrote, as it may be printed.
#include "rendezvous/common/foreign_text.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun {
namespace {

TEST(ForeignText, PlainTextStaysAsItIs) {
  const std::string text = "größer: 1 € (😀) C:\\x1b \"quoted\"";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable_lines(text), text);
  EXPECT_EQ(printable_in_colour(text), text);
  EXPECT_EQ(printable(""), "");
}

TEST(ForeignText, WhatATerminalActsUponBecomesVisible) {
  EXPECT_EQ(printable("a\x1b[2Jb\a\b\x7f"), R"(a\x1b[2Jb\x07\x08\u007f)");
  EXPECT_EQ(printable(std::string("a\0b", 3)), R"(a\x00b)");
  EXPECT_EQ(printable("one\r\n\ttwo"), R"(one\r\n\ttwo)");
  EXPECT_EQ(printable("\u0085\u009b31m"), R"(\u0085\u009b31m)") << "controls of eight bits";
  EXPECT_EQ(printable("\u2028\u202etxt.exe\u2066"), R"(\u2028\u202etxt.exe\u2066)");
  EXPECT_EQ(printable("\x1b[31mred\x1b[0m"), R"(\x1b[31mred\x1b[0m)");
}

TEST(ForeignText, BytesThatAreNoCharacterBecomeVisible) {
  EXPECT_EQ(printable("\xff\xc0\xaf"), R"(\xff\xc0\xaf)");
  EXPECT_EQ(printable("a\xe2\x82"), R"(a\xe2\x82)") << "cut off";
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            R"(\x9b31m)")
      << "a control in Latin-1";
  EXPECT_EQ(printable("\xed\xa0\x80"), R"(\xed\xa0\x80)") << "a surrogate";
}

TEST(ForeignText, IsNotChangedASecondTime) {
  const std::string once = printable("\x1b[2J\n\xff\u009b");
  EXPECT_EQ(printable(once), once);
}

TEST(ForeignText, SeveralLinesKeepTheirEndsAndLoseTheirColours) {
  EXPECT_EQ(printable_lines("\tone\n\x1b[1;31mtwo\x1b[0m\x1b[m\n\x1b[38:5:1mthree\x1b[K\r"),
            "\tone\ntwo\nthree\\x1b[K\\r");
  EXPECT_EQ(printable_lines("\x1b[31"), "\\x1b[31") << "cut off";
}

TEST(ForeignText, ColoursThatAreKeptEndWithTheirLine) {
  EXPECT_EQ(printable_in_colour("\x1b[31mred\x1b[2J"), "\x1b[31mred\\x1b[2J\x1b[0m");
  EXPECT_EQ(printable_in_colour("a\tb"), "a\tb");
}

TEST(ForeignText, OfAProgressBarItsLastStateIsKept) {
  EXPECT_EQ(printable_in_colour(" 1 %\r99 %\r"), "99 %");
}

TEST(ForeignText, ALineOfJsonStaysTheSame) {
  EXPECT_EQ(printable(R"({"host":"a\u001b","x":")"
                      "\u007f\u009b"
                      R"("})"),
            R"({"host":"a\u001b","x":"\u007f\u009b"})");
}

TEST(AsUtf8, ReplacesWhatIsNoCharacterAndKeepsTheRest) {
  const std::string good = "ascii \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80";
  EXPECT_EQ(as_utf8(good, 100), good);
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(as_utf8("\xc0\xaf", 100), bad + bad) << "overlong";
  EXPECT_EQ(as_utf8("\xed\xa0\x80", 100), bad + bad + bad) << "a surrogate";
  EXPECT_EQ(as_utf8("\xf4\x90\x80\x80", 100), bad + bad + bad + bad) << "beyond Unicode";
  EXPECT_EQ(as_utf8("a\xe2\x82", 100), "a" + bad + bad) << "cut off";
  EXPECT_EQ(as_utf8("ab\xc3\xa4", 3), "ab…") << "cut between characters";
}

}  // namespace
}  // namespace ddprun
