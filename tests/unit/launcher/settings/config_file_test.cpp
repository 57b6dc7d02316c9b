#include "launcher/settings/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_tree.h"

namespace ddprun::cli {
namespace {

using testing::HasSubstr;

std::string text_of(OptionId id, const std::string& file) {
  const auto parsed = parse_config(file, "job.toml");
  EXPECT_TRUE(parsed) << parsed.error().to_string();
  if (!parsed) return "";
  const FileValues& values = parsed->values;
  EXPECT_EQ(values.count(id), 1u) << file;
  return values.count(id) == 0 ? "" : values.at(id).text;
}

std::string refusal(const std::string& file) {
  const auto values = parse_config(file, "job.toml");
  EXPECT_FALSE(values) << file;
  return values ? "" : values.error().to_string();
}

TEST(ConfigFile, ValuesBecomeWhatTheCommandLineWouldHaveSaid) {
  EXPECT_EQ(text_of(OptionId::kNprocPerNode, "nproc-per-node = 2"), "2");
  EXPECT_EQ(text_of(OptionId::kNprocPerNode, "nproc_per_node = 'gpu'"), "gpu");
  EXPECT_EQ(text_of(OptionId::kStandalone, "standalone = true"), "1");
  EXPECT_EQ(text_of(OptionId::kStandalone, "standalone = false"), "0");
  EXPECT_EQ(text_of(OptionId::kShutdownTimeout, "shutdown-timeout = 0.5"), "0.5");
  EXPECT_EQ(text_of(OptionId::kSignalsToHandle, "signals-to-handle = ['TERM', 'INT']"), "TERM,INT");
  EXPECT_EQ(text_of(OptionId::kLocalRanksFilter, "local-ranks-filter = [0, 2]"), "0,2");
  EXPECT_EQ(text_of(OptionId::kDuplicateStdoutFilters, "duplicate-stdout-filters = ['a,b', 'c']"),
            "a,,b,c");
  EXPECT_EQ(text_of(OptionId::kTee, "tee = { 0 = 3, 11 = 2 }"), "0:3,11:2");
  EXPECT_EQ(text_of(OptionId::kTee, "tee = 3"), "3");
  EXPECT_EQ(text_of(OptionId::kRdzvConf, "[rdzv-conf]\njoin_timeout = 60\nis_host = true"),
            "is_host=1,join_timeout=60");
}

TEST(ConfigFile, RemembersTheLine) {
  const auto values = parse_config("# a comment\n\nmax-restarts = 3\n", "dir/job.toml");
  ASSERT_TRUE(values);
  EXPECT_EQ(values->values.at(OptionId::kMaxRestarts).origin.name, "dir/job.toml:3");
}

TEST(ConfigFile, MistakesNameFileAndLine) {
  EXPECT_THAT(refusal("\nmax-restart = 3"),
              HasSubstr("job.toml:2: unknown key 'max-restart'; did you mean max-restarts?"));
  EXPECT_THAT(refusal("colour = 'red'"), HasSubstr("keys are the names of ddprun's options"));
  EXPECT_THAT(refusal("\n\nx = ["), HasSubstr("job.toml:3: this is not TOML"));
  EXPECT_THAT(refusal("help = true"),
              HasSubstr("job.toml:1: help can only be given on the command"));
  EXPECT_THAT(refusal("config = 'x'"), HasSubstr("can only be given on the command line"));
  EXPECT_THAT(refusal("tee = 1\n\n[train]\nx = 1"), HasSubstr("job.toml:3: unknown key 'train'"));
}

TEST(ConfigFile, ValuesOfTheWrongTypeAreRefused) {
  EXPECT_THAT(refusal("standalone = 1"), HasSubstr("standalone must be true or false"));
  EXPECT_THAT(refusal("max-restarts = true"), HasSubstr("must be a string or a number"));
  EXPECT_THAT(refusal("max-restarts = [1]"), HasSubstr("must be a string or a number"));
  EXPECT_THAT(refusal("max-restarts = 1979-05-27"), HasSubstr("must be a string or a number"));
  EXPECT_THAT(refusal("signals-to-handle = [true]"), HasSubstr("must be a string or an array"));
  EXPECT_THAT(refusal("tee = [1]"), HasSubstr("must be a string or a table"));
  EXPECT_THAT(refusal("max-restarts = 1\nmax_restarts = 2"),
              HasSubstr("max-restarts is given twice"));
}

TEST(ConfigFile, HoldsTheProgramAndItsArguments) {
  const auto file = parse_config(
      "program = 'train.py'\narguments = ['--lr', 0.1, 3, '']\nrole = 'r'", "job.toml");
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_THAT(file->command, testing::ElementsAre("train.py", "--lr", "0.1", "3", ""));
  EXPECT_EQ(file->values.size(), 1u);
  EXPECT_THAT(parse_config("", "job.toml")->command, testing::IsEmpty());
  EXPECT_THAT(refusal("\nprogram = 1"), HasSubstr("job.toml:2: program must be a string"));
  EXPECT_THAT(refusal("arguments = ['a']"), HasSubstr("job.toml:1: arguments need a program"));
  EXPECT_THAT(refusal("program = 'p'\narguments = 'a'"), HasSubstr("must be an array"));
  EXPECT_THAT(refusal("program = 'p'\narguments = ['a',\n[1]]"),
              HasSubstr("job.toml:3: an argument"));
}

TEST(ConfigFile, IsReadFromTheFileThatIsNamed) {
  const TemporaryTree tree;
  const std::string file = tree.write("job.toml", "role = 'trainer'\n");
  Settings settings = resolve({}, {{"DDPRUN_CONFIG", file}}, {});
  auto values = read_config(resolved(settings, OptionId::kConfig));
  ASSERT_TRUE(values);
  EXPECT_EQ(values->values.at(OptionId::kRole).text, "trainer");
  EXPECT_EQ(values->values.at(OptionId::kRole).origin.name, file + ":1");

  settings = resolve({}, {}, {});
  EXPECT_TRUE(read_config(resolved(settings, OptionId::kConfig))->values.empty());
  for (const std::string& bad : {tree / "missing.toml", tree.path(), std::string()}) {
    settings = resolve({}, {{"DDPRUN_CONFIG", bad}}, {});
    const auto refused = read_config(resolved(settings, OptionId::kConfig));
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("DDPRUN_CONFIG=" + bad));
  }
}

}  // namespace
}  // namespace ddprun::cli
