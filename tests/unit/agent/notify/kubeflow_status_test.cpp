#include "agent/notify/kubeflow_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace ddprun::agent {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

const std::chrono::system_clock::time_point kNow{seconds(1'790'000'000)};

TEST(TrainerEndpoint, IsWhereTrainerSaysUnderEitherName) {
  EXPECT_FALSE(trainer_endpoint({}));
  EXPECT_FALSE(trainer_endpoint({{"KUBEFLOW_TRAINER_SERVER_TOKEN", "/t"}}));
  const auto early = trainer_endpoint({{"KUBEFLOW_TRAINER_STATUS_URL", "https://a"}});
  ASSERT_TRUE(early);
  EXPECT_EQ(early->url_variable, "KUBEFLOW_TRAINER_STATUS_URL");
  const auto both = trainer_endpoint({{"KUBEFLOW_TRAINER_STATUS_URL", "https://a"},
                                      {"KUBEFLOW_TRAINER_STATUS_TOKEN", "/a"},
                                      {"KUBEFLOW_TRAINER_SERVER_URL", "https://b"},
                                      {"KUBEFLOW_TRAINER_SERVER_TOKEN", "/b"},
                                      {"KUBEFLOW_TRAINER_SERVER_CA_CERT", "/b.crt"}});
  ASSERT_TRUE(both);
  EXPECT_EQ(both->url, "https://b");
  EXPECT_EQ(both->token_file, "/b");
  EXPECT_EQ(both->ca_file, "/b.crt");
}

TEST(BearerToken, IsTheFileWithoutItsNewline) {
  EXPECT_EQ(bearer_token("abc.def-_\n").value(), "abc.def-_");
}

TEST(BearerToken, NeverBecomesMoreThanOneHeader) {
  for (const std::string text :
       {"", " \n", "abc\r\nX-Evil: 1", "a b", "a\tb", "t\x80k", "t\x7fk"}) {
    EXPECT_FALSE(bearer_token(text)) << text;
  }
  EXPECT_FALSE(bearer_token(std::string("a\0b", 3)));
  EXPECT_FALSE(bearer_token(std::string(20'000, 'x')));
}

TEST(KubeflowStatus, IsWhatTrainerReads) {
  const auto body = boost::json::parse(kubeflow_status(
      {.step = 412, .total_steps = 1000, .round = Round{2}, .restarts = 1, .world_size = 8},
      seconds(77), kNow));
  EXPECT_EQ(body, boost::json::parse(R"({"trainerStatus": {
      "progressPercentage": 41, "estimatedRemainingSeconds": 77,
      "metrics": [{"name": "step", "value": "412"}, {"name": "total_steps", "value": "1000"},
                  {"name": "round", "value": "2"}, {"name": "restarts", "value": "1"},
                  {"name": "world_size", "value": "8"}],
      "lastUpdatedTime": "2026-09-21T14:13:20Z"}})"));
}

TEST(KubeflowStatus, LeavesOutWhatIsNotKnown) {
  const std::string body =
      kubeflow_status({.step = 412, .values = {{"loss", 0.25}}}, std::nullopt, kNow);
  EXPECT_THAT(body, HasSubstr(R"({"name":"loss","value":"0.25"})"));
  EXPECT_THAT(body, ::testing::Not(HasSubstr("progressPercentage")));
  EXPECT_THAT(body, ::testing::Not(HasSubstr("estimatedRemainingSeconds")));
  EXPECT_THAT(body, ::testing::Not(HasSubstr("total_steps")));
}

// The API refuses any other number.
TEST(KubeflowStatus, IsBetween0And100WhateverAWorkerSays) {
  EXPECT_THAT(kubeflow_status({.step = 12, .total_steps = 10}, {}, kNow),
              HasSubstr("\"progressPercentage\":100,"));
  EXPECT_THAT(kubeflow_status({.step = -1, .total_steps = 10}, {}, kNow),
              HasSubstr("\"progressPercentage\":0,"));
  EXPECT_THAT(kubeflow_status({.step = 999, .total_steps = 1000}, {}, kNow),
              HasSubstr("\"progressPercentage\":99,"));
}

TEST(RemainingTime, IsWhatTheRestTakesAtThePaceOfTheRound) {
  RemainingTime remaining;
  const steady_clock::time_point start{seconds(1000)};
  JobProgress progress{.step = 500, .total_steps = 1000};  // from a checkpoint
  EXPECT_EQ(remaining.estimate(progress, start), std::nullopt);
  progress.step = 600;
  EXPECT_EQ(remaining.estimate(progress, start + seconds(10)), seconds(40));
  progress.step = 1000;
  EXPECT_EQ(remaining.estimate(progress, start + seconds(50)), seconds(0));
}

TEST(RemainingTime, BeginsAnewInTheNextRoundAndWhenStepsGoBack) {
  RemainingTime remaining;
  const steady_clock::time_point start{seconds(1000)};
  JobProgress progress{.step = 0, .total_steps = 100};
  EXPECT_EQ(remaining.estimate(progress, start), std::nullopt);
  progress.step = 50;
  EXPECT_EQ(remaining.estimate(progress, start + seconds(50)), seconds(50));
  progress.round = Round{1};
  EXPECT_EQ(remaining.estimate(progress, start + seconds(60)), std::nullopt);
  progress.step = 60;
  EXPECT_EQ(remaining.estimate(progress, start + seconds(61)), seconds(4));
  progress.step = 10;
  EXPECT_EQ(remaining.estimate(progress, start + seconds(62)), std::nullopt);
}

TEST(RemainingTime, IsNotKnownWithoutATotalAndNeverMoreThanTheApiTakes) {
  RemainingTime remaining;
  const steady_clock::time_point start{seconds(1000)};
  JobProgress progress{.step = 0, .total_steps = 0};
  remaining.estimate(progress, start);
  progress.step = 5;
  EXPECT_EQ(remaining.estimate(progress, start + seconds(5)), std::nullopt);
  progress.total_steps = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(remaining.estimate(progress, start + seconds(5)), seconds(2'147'483'647));
}

}  // namespace
}  // namespace ddprun::agent
