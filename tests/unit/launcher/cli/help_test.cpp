#include "launcher/cli/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "launcher/cli/option_table.h"

namespace ddprun::cli {
namespace {

using testing::HasSubstr;

TEST(Help, HasEveryOptionAndNoLongLine) {
  const std::string help = help_text();
  for (const OptionSpec& spec : option_table()) {
    EXPECT_THAT(help, HasSubstr("--" + std::string(spec.name)));
    EXPECT_THAT(help, HasSubstr(std::string(group_begun_by(spec.id))));
  }
  std::size_t begin = 0;
  for (std::size_t end = help.find('\n'); end != std::string::npos; end = help.find('\n', begin)) {
    EXPECT_LE(end - begin, 100u) << help.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(Help, ManPageHasEveryOptionWithItsVariables) {
  const std::string page = man_page("1.2");
  const auto as_troff = [](std::string_view text) {
    std::string out;
    for (const char c : text) out += c == '-' ? std::string("\\-") : std::string(1, c);
    return out;
  };
  for (const OptionSpec& spec : option_table()) {
    EXPECT_THAT(page, HasSubstr("\\fB\\-\\-" + as_troff(spec.name) + "\\fR"));
    for (const std::string& variable : variables_of(spec)) EXPECT_THAT(page, HasSubstr(variable));
  }
}

TEST(Help, MarkdownTableHasEveryOptionInFourCells) {
  const std::string table = option_table_markdown();
  for (const OptionSpec& spec : option_table()) {
    EXPECT_THAT(table, HasSubstr("`--" + std::string(spec.name)));
  }
  std::size_t begin = 0;
  for (std::size_t end = table.find('\n'); end != std::string::npos;
       end = table.find('\n', begin)) {
    const std::string line = table.substr(begin, end - begin);
    std::size_t cells = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '|' && (i == 0 || line[i - 1] != '\\')) ++cells;
    }
    EXPECT_EQ(cells, 5u) << line;
    begin = end + 1;
  }
}

// Between these two lines launcher/README.md holds the output of ddprun --print-option-table.
TEST(Help, ReadmeHasTheTableOfTheseOptions) {
  constexpr const char* kBegin = "<!-- ddprun --print-option-table -->\n";
  constexpr const char* kEnd = "<!-- end of options -->";
  std::ifstream file(DDPRUN_README);
  const std::string readme(std::istreambuf_iterator<char>(file), {});
  const std::size_t begin = readme.find(kBegin);
  const std::size_t end = readme.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos) {
    GTEST_SKIP() << "no table in " DDPRUN_README;
  }
  const std::size_t text = begin + std::strlen(kBegin);
  EXPECT_EQ(readme.substr(text, end - text), option_table_markdown());
}

TEST(Help, EveryShellCompletesEveryOption) {
  for (const OptionSpec& spec : option_table()) {
    const std::string name(spec.name);
    EXPECT_THAT(completion_script("bash"), HasSubstr("--" + name));
    EXPECT_THAT(completion_script("zsh"), HasSubstr("'--" + name));
    EXPECT_THAT(completion_script("fish"), HasSubstr("-l " + name + " "));
    for (const std::string_view choice : choices_of(spec)) {
      EXPECT_THAT(completion_script("bash"), HasSubstr(choice));
    }
  }
}

}  // namespace
}  // namespace ddprun::cli
