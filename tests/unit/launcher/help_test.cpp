#include "launcher/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/option_table.h"

namespace ddprun::cli {
namespace {

TEST(Help, HasEveryOptionAndNoLongLine) {
  const std::string help = help_text();
  for (const OptionSpec& spec : option_table()) {
    EXPECT_THAT(help, testing::HasSubstr("--" + std::string(spec.name)));
  }
  std::size_t begin = 0;
  for (std::size_t end = help.find('\n'); end != std::string::npos; end = help.find('\n', begin)) {
    EXPECT_LE(end - begin, 100u) << help.substr(begin, end - begin);
    begin = end + 1;
  }
}

}  // namespace
}  // namespace ddprun::cli
