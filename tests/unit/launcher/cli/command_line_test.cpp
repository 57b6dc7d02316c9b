#include "launcher/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Words = std::vector<std::string>;

CommandLine parsed(const Words& words) {
  auto line = parse_command_line(words);
  EXPECT_TRUE(line) << testing::PrintToString(words) << ": " << line.error().to_string();
  return line ? *std::move(line) : CommandLine{};
}

std::string refusal(const Words& words) {
  const auto line = parse_command_line(words);
  EXPECT_FALSE(line) << testing::PrintToString(words);
  if (line) return {};
  EXPECT_EQ(line.error().code, ErrorCode::kInvalidArgument);
  return line.error().to_string();
}

TEST(Options, AcceptsEverySpellingOfAnOptionAndItsValue) {
  const std::vector<Words> spellings = {
      {"--nproc-per-node", "3", "prog"}, {"--nproc_per_node", "3", "prog"},
      {"--nproc-per-node=3", "prog"},    {"--nproc_per_node=3", "prog"},
      {"--nproc-per-nod", "3", "prog"},  {"--nproc_p=3", "prog"},
      {"--nproc", "3", "prog"},
  };
  for (const Words& words : spellings) {
    const CommandLine line = parsed(words);
    EXPECT_EQ(line.value(OptionId::kNprocPerNode), "3") << testing::PrintToString(words);
    EXPECT_THAT(line.command, ElementsAre("prog"));
  }
  for (const Words& words : std::vector<Words>{
           {"-r3", "prog"}, {"-r", "3", "prog"}, {"-r=3", "prog"}, {"--redirects", "3", "prog"}}) {
    const CommandLine line = parsed(words);
    EXPECT_EQ(line.value(OptionId::kRedirects), "3") << testing::PrintToString(words);
    EXPECT_THAT(line.command, ElementsAre("prog"));
  }
}

TEST(Options, EveryOptionOfTheTableIsParsedUnderItsOwnName) {
  for (const OptionSpec& spec : option_table()) {
    const std::string name = "--" + std::string(spec.name);
    const bool is_flag = spec.kind == Kind::kFlag;
    const CommandLine line = parsed(is_flag ? Words{name, "prog"} : Words{name, "v", "prog"});
    for (const OptionSpec& other : option_table()) {
      EXPECT_EQ(line.value(other.id).has_value(), other.id == spec.id) << name;
    }
    EXPECT_EQ(line.value(spec.id), is_flag ? "1" : "v");
    EXPECT_THAT(line.command, ElementsAre("prog"));
  }
}

TEST(Options, LastOfSeveralWins) {
  EXPECT_EQ(parsed({"--tee=1", "-t", "2", "--te", "3", "prog"}).value(OptionId::kTee), "3");
  EXPECT_TRUE(parsed({"--standalone", "--standalone", "prog"}).value(OptionId::kStandalone));
}

TEST(Options, ProgramAndItsArgumentsStayExactlyAsGiven) {
  const Words command = {
      "train", "--nproc-per-node", "4", "--", "--help", "", "-t", "a b", "*", "[x]", "--"};
  Words words = {"--max-restarts=1"};
  words.insert(words.end(), command.begin(), command.end());
  const CommandLine line = parsed(words);
  EXPECT_EQ(line.command, command);
  EXPECT_FALSE(line.value(OptionId::kNprocPerNode));
  EXPECT_FALSE(line.value(OptionId::kHelp));
}

TEST(Options, OneDoubleDashBeforeTheProgramIsDropped) {
  EXPECT_THAT(parsed({"--standalone", "--", "prog", "--", "x"}).command,
              ElementsAre("prog", "--", "x"));
  EXPECT_THAT(parsed({"--", "--", "prog"}).command, ElementsAre("--", "prog"));
  EXPECT_THAT(parsed({"--", "--odd-name"}).command, ElementsAre("--odd-name"));
  EXPECT_THAT(parsed({"--"}).command, IsEmpty());
  EXPECT_THAT(parsed({}).command, IsEmpty());
}

// What argparse does from Python 3.8 to 3.13.
TEST(Options, OneDoubleDashRightAfterTheProgramIsDroppedUnlessOneStoodBeforeIt) {
  for (const Words& options : std::vector<Words>{
           {}, {"-m"}, {"--no-python"}, {"--run-path"}, {"--tee", "3"}, {"--tee=3"}, {"-mt3"}}) {
    const auto command = [&options](const Words& words) {
      Words whole = options;
      whole.insert(whole.end(), words.begin(), words.end());
      return parsed(whole).command;
    };
    EXPECT_THAT(command({"b", "--", "--x"}), ElementsAre("b", "--x"));
    EXPECT_THAT(command({"b", "--", "--", "--x"}), ElementsAre("b", "--", "--x"));
    EXPECT_THAT(command({"b", "--"}), ElementsAre("b"));
    EXPECT_THAT(command({"b", "--", "--"}), ElementsAre("b", "--"));
    EXPECT_THAT(command({"b", "--", "-t", "3", "--"}), ElementsAre("b", "-t", "3", "--"));
    EXPECT_THAT(command({"b", "a", "--", "--x"}), ElementsAre("b", "a", "--", "--x"));
    EXPECT_THAT(command({"b", "", "--"}), ElementsAre("b", "", "--"));
    EXPECT_THAT(command({"--", "b", "--x"}), ElementsAre("b", "--x"));
    EXPECT_THAT(command({"--", "b", "--", "--x"}), ElementsAre("b", "--", "--x"));
    EXPECT_THAT(command({"--", "b", "--"}), ElementsAre("b", "--"));
    EXPECT_THAT(command({"--", "--", "--", "x"}), ElementsAre("--", "--", "x"));
  }
}

TEST(Options, UseEnvOfTorchDistributedLaunchIsAcceptedAndNeedsNoVariable) {
  for (const char* const spelling : {"--use-env", "--use_env"}) {
    EXPECT_THAT(parsed({spelling, "-t3", "b", "--use_env"}).command, ElementsAre("b", "--use_env"));
  }
  EXPECT_THAT(refusal({"--use-env=1", "b"}), HasSubstr("takes no value"));
  EXPECT_THAT(variables_of(spec_of(OptionId::kUseEnv)), IsEmpty());
}

TEST(Options, EmptyValueIsAValue) {
  const CommandLine line = parsed({"--log-dir=", "train"});
  EXPECT_EQ(line.value(OptionId::kLogDir), "");
  EXPECT_THAT(line.command, ElementsAre("train"));
  EXPECT_EQ(parsed({"--log-dir", "", "train"}).value(OptionId::kLogDir), "");
}

TEST(Options, ValuesPassThroughUntouched) {
  for (const std::string value :
       {"[a,b]", "{}", "a=b", "'q'", "\"q\"", "a,b", "%%", "a b", "true"}) {
    EXPECT_EQ(parsed({"--log-dir", value, "p"}).value(OptionId::kLogDir), value);
    EXPECT_EQ(parsed({"--log-dir=" + value, "p"}).value(OptionId::kLogDir), value);
  }
}

TEST(Options, ValueMayBeginWithADashOnlyWhereItCannotBeAnOption) {
  EXPECT_EQ(parsed({"--max-restarts", "-1", "p"}).value(OptionId::kMaxRestarts), "-1");
  EXPECT_EQ(parsed({"--max-restarts", "-.5", "p"}).value(OptionId::kMaxRestarts), "-.5");
  EXPECT_EQ(parsed({"--log-dir", "-", "p"}).value(OptionId::kLogDir), "-");
  EXPECT_EQ(parsed({"--log-dir", "-a b", "p"}).value(OptionId::kLogDir), "-a b");
  EXPECT_EQ(parsed({"--log-dir=--tee", "p"}).value(OptionId::kLogDir), "--tee");
  EXPECT_THAT(refusal({"--log-dir", "--tee", "3", "p"}), HasSubstr("--log-dir needs a value"));
  EXPECT_THAT(refusal({"--log-dir", "--", "p"}), HasSubstr("--log-dir needs a value"));
  EXPECT_THAT(refusal({"-t"}), HasSubstr("-t needs a value: --tee SPEC"));
}

TEST(Options, MisspeltOptionIsNeverTakenForTheProgram) {
  EXPECT_THAT(refusal({"--nproc-per-nodd", "3", "prog"}),
              HasSubstr("unknown option --nproc-per-nodd; did you mean --nproc-per-node?"));
  EXPECT_THAT(refusal({"--nproc_per_noed=3", "prog"}), HasSubstr("did you mean --nproc-per-node?"));
  EXPECT_THAT(refusal({"--stand_alone", "prog"}), HasSubstr("did you mean --standalone?"));
  EXPECT_THAT(refusal({"-x", "prog"}), HasSubstr("unknown option -x"));
  EXPECT_THAT(refusal({"-r3x", "-q", "p"}), HasSubstr("unknown option -q"));
  const std::string unlike_any = refusal({"--zzzzzzzz", "prog"});
  EXPECT_THAT(unlike_any, HasSubstr("unknown option --zzzzzzzz; ddprun --help lists them"));
}

TEST(Options, AmbiguousBeginningNamesTheCandidates) {
  EXPECT_THAT(refusal({"--rdzv=3", "prog"}),
              HasSubstr("--rdzv is short for more than one option: --rdzv-backend, "
                        "--rdzv-endpoint, --rdzv-id, --rdzv-conf"));
  EXPECT_THAT(refusal({"--=3", "prog"}), HasSubstr("unknown option --"));
}

TEST(Options, WhatIsShortForAnOptionOfTorchrunStaysSo) {
  // "--event" is the beginning of our --events too.
  EXPECT_EQ(parsed({"--event=console", "p"}).value(OptionId::kEventLogHandler), "console");
  EXPECT_EQ(parsed({"--events=x", "p"}).value(OptionId::kEvents), "x");
}

TEST(Options, LettersMayBeJoined) {
  const CommandLine line = parsed({"-mr3", "-t", "1", "pkg.train"});
  EXPECT_TRUE(line.value(OptionId::kModule));
  EXPECT_EQ(line.value(OptionId::kRedirects), "3");
  EXPECT_EQ(line.value(OptionId::kTee), "1");
  EXPECT_THAT(line.command, ElementsAre("pkg.train"));
}

TEST(Options, FlagTakesNoValue) {
  EXPECT_THAT(refusal({"--standalone=yes", "prog"}),
              HasSubstr("--standalone takes no value, but was given 'yes'"));
}

}  // namespace
}  // namespace ddprun::cli
