#include "launcher/settings/settings.h"

#include <gtest/gtest.h>

namespace ddprun::cli {
namespace {

CommandLine line_with(OptionId id, const std::string& value) {
  CommandLine line;
  line.values[static_cast<std::size_t>(id)] = value;
  return line;
}

TEST(Settings, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const OptionId id = OptionId::kMaxRestarts;
  const Environment environment = {{"PET_MAX_RESTARTS", "2"}};
  const FileValues file = {{id, {"3", {Source::kFile, "job.toml:7"}}}};

  EXPECT_EQ(resolve(line_with(id, "1"), environment, file)[id],
            (Setting{"1", {Source::kCommandLine, "--max-restarts"}}));
  EXPECT_EQ(resolve({}, environment, file)[id],
            (Setting{"2", {Source::kEnvironment, "PET_MAX_RESTARTS"}}));
  EXPECT_EQ(resolve({}, {}, file)[id], (Setting{"3", {Source::kFile, "job.toml:7"}}));
  EXPECT_EQ(resolve({}, {}, {})[id], (Setting{"0", {}}));
}

TEST(Settings, OurVariableBeatsTorchruns) {
  const Environment both = {{"PET_TEE", "1"}, {"DDPRUN_TEE", "2"}};
  EXPECT_EQ(resolve({}, both, {})[OptionId::kTee],
            (Setting{"2", {Source::kEnvironment, "DDPRUN_TEE"}}));
}

TEST(Settings, VariablesAreNamedAfterTheOption) {
  for (const OptionSpec& spec : option_table()) {
    for (const std::string& variable : variables_of(spec)) {
      const Settings settings = resolve({}, {{variable, "x"}}, {});
      EXPECT_EQ(settings[spec.id].text, "x");
      EXPECT_EQ(settings[spec.id].origin.name, variable);
    }
  }
  EXPECT_EQ(variables_of(spec_of(OptionId::kNprocPerNode)),
            (std::vector<std::string>{"DDPRUN_NPROC_PER_NODE", "PET_NPROC_PER_NODE"}));
  EXPECT_TRUE(variables_of(spec_of(OptionId::kHelp)).empty());
}

TEST(Settings, AnEmptyVariableIsAnEmptyValueAsUnderTorchrun) {
  EXPECT_EQ(resolve({}, {{"PET_TEE", ""}}, {})[OptionId::kTee],
            (Setting{"", {Source::kEnvironment, "PET_TEE"}}));
}

}  // namespace
}  // namespace ddprun::cli
