#include "worker_lib/process/parse_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/unit/worker_lib/outcome.h"

namespace ddprun {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Environment> parse(const Variables& variables) {
  return test::outcome([&] {
    return parse_environment([&](const char* name) -> std::optional<std::string> {
      const auto at = variables.find(name);
      if (at == variables.end()) return std::nullopt;
      return at->second;
    });
  });
}

Variables complete() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "10.0.0.5"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RESTART_COUNT", "2"},
          {"TORCHELASTIC_ERROR_FILE", "/tmp/error.json"}};
}

Variables with(const std::string& name, const std::string& value) {
  Variables variables = complete();
  variables[name] = value;
  return variables;
}

Variables without(std::initializer_list<const char*> names) {
  Variables variables = complete();
  for (const char* name : names) variables.erase(name);
  return variables;
}

TEST(Environment, StartedAloneIsAWorldOfOne) {
  const auto environment = parse({{"PATH", "/bin"}});
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->rank, 0);
  EXPECT_EQ(environment->world_size, 1);
  EXPECT_EQ(environment->local_world_size, 1);
}

TEST(Environment, TakesEveryVariable) {
  const auto environment = parse(complete());
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->rank, 3);
  EXPECT_EQ(environment->world_size, 4);
  EXPECT_EQ(environment->local_rank, 1);
  EXPECT_EQ(environment->local_world_size, 2);
  EXPECT_EQ(environment->master_addr, "10.0.0.5");
  EXPECT_EQ(environment->master_port, 29500);
  EXPECT_TRUE(environment->agent_hosts_store);
  EXPECT_EQ(environment->restart_count, 2);
  EXPECT_EQ(environment->error_file, "/tmp/error.json");
}

TEST(Environment, ALinkThatMakesNoSenseIsNoneAndNoError) {
  EXPECT_EQ(parse(complete())->link_fd, -1);
  Variables variables = with("DDPRUN_LINK_FD", "17");
  variables["DDPRUN_LINK_PAGE_FD"] = "18";
  EXPECT_EQ(parse(variables)->link_fd, 17);
  EXPECT_EQ(parse(variables)->link_page_fd, 18);
  for (const char* nonsense : {"", "-3", "x", "17x", "99999999999999999999"}) {
    EXPECT_EQ(parse(with("DDPRUN_LINK_FD", nonsense))->link_fd, -1) << nonsense;
  }
}

TEST(Environment, OnlyTheWordTrueMeansThatTheAgentHostsTheStore) {
  for (const char* value : {"False", "true", "1", ""}) {
    const auto environment = parse(with("TORCHELASTIC_USE_AGENT_STORE", value));
    ASSERT_TRUE(environment);
    EXPECT_FALSE(environment->agent_hosts_store) << value;
  }
}

TEST(Environment, LocalVariablesMayBeMissingWhenStartedByHand) {
  const auto environment = parse(without({"LOCAL_RANK", "LOCAL_WORLD_SIZE"}));
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->local_rank, 0);
}

TEST(Environment, AWorldOfOneNeedsNoAddress) {
  const auto environment = parse({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->world_size, 1);
}

struct WrongCase {
  const char* name;
  Variables variables;
  std::vector<std::string> said;  // what the sentence must contain
};

class WrongEnvironment : public testing::TestWithParam<WrongCase> {};

TEST_P(WrongEnvironment, IsOneSentenceThatNamesTheVariable) {
  const auto environment = parse(GetParam().variables);
  ASSERT_FALSE(environment);
  EXPECT_EQ(environment.error().code, ErrorCode::kInvalidArgument);
  for (const std::string& part : GetParam().said) {
    EXPECT_THAT(environment.error().message, testing::HasSubstr(part));
  }
  EXPECT_THAT(environment.error().message, testing::Not(testing::HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WrongEnvironment,
    testing::Values(
        WrongCase{"RankNotBelowWorld", with("RANK", "4"), {"RANK=4", "WORLD_SIZE=4"}},
        WrongCase{"LocalRankNotBelow", with("LOCAL_RANK", "2"), {"LOCAL_RANK=2"}},
        WrongCase{"LocalWorldAboveWorld", with("LOCAL_WORLD_SIZE", "5"), {"LOCAL_WORLD_SIZE=5"}},
        WrongCase{"RankNoNumber", with("RANK", "two"), {"RANK", "'two'", "whole number"}},
        WrongCase{"RankEmpty", with("RANK", ""), {"RANK", "''"}},
        WrongCase{"RankNegative", with("RANK", "-1"), {"RANK", "'-1'"}},
        WrongCase{"RankWithRest", with("RANK", "1x"), {"RANK", "'1x'"}},
        WrongCase{"WorldZero", with("WORLD_SIZE", "0"), {"WORLD_SIZE", "'0'"}},
        WrongCase{"WorldTooLarge", with("WORLD_SIZE", "99999999999"), {"WORLD_SIZE"}},
        WrongCase{"PortZero", with("MASTER_PORT", "0"), {"MASTER_PORT"}},
        WrongCase{"PortTooLarge", with("MASTER_PORT", "65536"), {"MASTER_PORT", "65535"}},
        WrongCase{"AddressEmpty", with("MASTER_ADDR", ""), {"MASTER_ADDR is empty"}},
        WrongCase{"RestartNoNumber", with("TORCHELASTIC_RESTART_COUNT", "x"), {"RESTART_COUNT"}},
        WrongCase{"NoRank", without({"RANK"}), {"RANK is not", "WORLD_SIZE", "ddprun"}},
        WrongCase{"NoWorld", without({"WORLD_SIZE"}), {"WORLD_SIZE is not"}},
        WrongCase{"NoAddress",
                  without({"MASTER_ADDR", "MASTER_PORT"}),
                  {"MASTER_ADDR, MASTER_PORT is not", "unset them all"}},
        WrongCase{"OnlyAddress",
                  {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
                  {"RANK, WORLD_SIZE is not"}},
        WrongCase{"OnlyLocalRank", {{"LOCAL_RANK", "0"}}, {"LOCAL_RANK", "RANK, WORLD_SIZE"}}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace ddprun
