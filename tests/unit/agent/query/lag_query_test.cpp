// What nodes say of their ranks' calls goes the way as JSON and is clamped; and what follows from stacks.
#include "agent/query/lag_query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/limits.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

ArrivalsAnswer an_answer(std::size_t calls) {
  ArrivalsAnswer answer{.now = 100s, .ranks = {}};
  rdzv::RankArrivals& rank = answer.ranks.emplace_back();
  rank.rank = 3;
  rank.steps = 17;
  record::GroupArrivals group{.id = UINT64_MAX, .size = 4, .rank = 3};
  for (std::size_t i = 0; i < calls; ++i) {
    const auto at = static_cast<std::int64_t>(99'000'000'000 + i * 1'000'000);
    group.calls.push_back(
        {i + 1, at, i % 2 == 0 ? std::optional(at + 500'000) : std::nullopt, i % 3 == 0 ? 2 : -1});
  }
  rank.groups = {group, {.id = 8, .size = 2, .rank = 0, .is_channel = true, .entered = 17}};
  return answer;
}

TEST(LagQuery, ComesBackAsItWas) {
  const auto question = arrivals_question_from(to_json(ArrivalsQuestion{Round{2}, 256}));
  ASSERT_TRUE(question);
  EXPECT_EQ(*question, (ArrivalsQuestion{Round{2}, 256}));
  const ArrivalsAnswer answer = an_answer(3);
  const auto read = arrivals_answer_from(to_json(answer, 10'000));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, answer);
  const auto samples_question = samples_question_from(to_json(SamplesQuestion{Round{2}, {3, 5}}));
  ASSERT_TRUE(samples_question);
  EXPECT_EQ(*samples_question, (SamplesQuestion{Round{2}, {3, 5}}));
  const SeenStack stack{.frames = "load (train.py:4)\nmain (train.py:9)\n", .count = 7};
  const std::vector<RankSamples> samples{{.rank = 3, .stacks = {stack}}};
  const auto samples_read = samples_from(to_json(samples, 10'000));
  ASSERT_TRUE(samples_read);
  EXPECT_EQ(*samples_read, samples);
}

TEST(LagQuery, OfALongAnswerTheLatestCallsAreLeft) {
  const std::string text = to_json(an_answer(256), 2'000);
  EXPECT_THAT(text, SizeIs(Le(2'000)));
  const auto read = arrivals_answer_from(text);
  ASSERT_TRUE(read);
  const auto& calls = read->ranks.at(0).groups.at(0).calls;
  ASSERT_FALSE(calls.empty());
  EXPECT_EQ(calls.back().number, 256U);
  EXPECT_LT(calls.size(), 256U);
  EXPECT_THAT(to_json(an_answer(256), 10), SizeIs(Le(64)));
}

TEST(LagQuery, APeersNumbersAreClamped) {
  const std::string min = std::to_string(INT64_MIN);
  const std::string max = std::to_string(INT64_MAX);
  for (const std::string& now : {min, max, std::string("0")}) {
    for (const std::string& at : {min, max, std::string("-1")}) {
      const std::string of_rank =
          R"("steps":AT,"groups":[{"id":1,"size":2,"rank":0,)"
          R"("is_channel":false,"entered":AT,"calls":[AT,AT,AT,AT,AT,0,0,AT,5,)"
          R"(AT,AT,-1,5,1,1,-1,6,AT,AT,AT]}]})";
      std::string text =
          R"({"now_us":NOW,"ranks":[{"rank":0,)" + of_rank + R"(,{"rank":1,)" + of_rank + "]}";
      const auto put = [&text](const std::string& what, const std::string& value) {
        for (auto place = text.find(what); place != text.npos; place = text.find(what)) {
          text.replace(place, what.size(), value);
        }
      };
      put("NOW", now);
      put("AT", at);
      const auto read = arrivals_answer_from(text);
      if (!read) continue;  // refused is as good
      rdzv::LagCore core;
      rdzv::ClockOffset clock;
      clock.answered(10s, 11s, read->now);
      const auto [offset, error] = clock.at(11s);
      core.look(20s, {{offset, error, read->ranks}});
      core.look(40s, {{offset, error, read->ranks}});
    }
  }
  EXPECT_FALSE(arrivals_answer_from("{}"));
  EXPECT_FALSE(arrivals_answer_from("[1"));
}

TEST(LagQuery, ACutTextIsRefused) {
  const auto is_refused = [](const std::string& text, const auto& read) {
    ASSERT_TRUE(read(text)) << text;
    for (std::size_t size = 0; size < text.size(); ++size) {
      EXPECT_FALSE(read(text.substr(0, size))) << text.substr(0, size);
    }
  };
  is_refused(to_json(an_answer(3), 10'000), &arrivals_answer_from);
  is_refused(to_json(ArrivalsQuestion{Round{2}, 256}), &arrivals_question_from);
  is_refused(to_json(SamplesQuestion{Round{2}, {3, 5}}), &samples_question_from);
  is_refused(to_json(std::vector<RankSamples>{{3, {{"main (train.py:9)\n", 7}}}}, 10'000),
             &samples_from);
}

TEST(LagQuery, ACallThatIsCutIsLeftOut) {
  const auto read = arrivals_answer_from(
      R"({"now_us":100,"ranks":[{"rank":0,"steps":null,"groups":[{"id":1,"size":2,"rank":0,)"
      R"("is_channel":false,"entered":2,"calls":[1,50,40,-1,2,30,20]}]}]})");
  ASSERT_TRUE(read);
  EXPECT_THAT(read->ranks.at(0).groups.at(0).calls,
              ElementsAre(record::Arrival{1, 50'000, 60'000, -1}));
}

// A worker's record has no more, and what is kept of an answer is larger than its text.
TEST(LagQuery, GroupsAndCallsBeyondWhatARecordHoldsAreLeftOut) {
  ArrivalsAnswer answer = an_answer(3 * record::kEntries);
  auto& groups = answer.ranks[0].groups;
  groups.resize(1);
  while (groups.size() < 10 * record::kGroupsMax) groups.push_back({.id = groups.size()});
  const auto read = arrivals_answer_from(to_json(answer, SIZE_MAX));
  ASSERT_TRUE(read);
  EXPECT_THAT(read->ranks.at(0).groups, SizeIs(record::kGroupsMax));
  EXPECT_THAT(read->ranks[0].groups[0].calls, SizeIs(record::kEntries));
}

TEST(LagQuery, OfManyStacksThoseThatWereSeenMostAreLeft) {
  RankSamples many{3, {}};
  for (int i = 0; i < 64; ++i) {
    many.stacks.push_back({"f" + std::to_string(i) + " (a.py:1)\n", i + 1});
  }
  const std::string text =
      to_json(std::vector<RankSamples>{many, {4, {{"main (train.py:9)\n", 7}}}}, 1'000);
  EXPECT_THAT(text, SizeIs(Le(1'000)));
  const auto read = samples_from(text);
  ASSERT_TRUE(read);
  ASSERT_THAT(*read, SizeIs(2));
  EXPECT_THAT(read->at(0).stacks, SizeIs(16));
  EXPECT_EQ(read->at(0).stacks.at(0).count, 64);
  EXPECT_EQ(to_json(std::vector<RankSamples>{many}, 10), "[]");
}

TEST(LagQuery, CountsOfStacksAreClamped) {
  const auto counted = [](std::int64_t count) {
    return R"({"frames":"evil (evil.py:1)\n","count":)" + std::to_string(count) + "}";
  };
  const auto read =
      samples_from(R"([{"rank":3,"stacks":[)" + counted(INT32_MAX) + "," + counted(INT32_MAX) +
                   "," + counted(INT32_MIN) + "," + counted(-1) + "," + counted(0) + "]}]");
  ASSERT_TRUE(read);
  ASSERT_THAT(read->at(0).stacks, SizeIs(2)) << "what was not seen is no stack";
  EXPECT_EQ(where_it_is_slow(read->at(0), {4, {{"main (train.py:9)\n", 7}}}), "evil (evil.py:1)");
  EXPECT_FALSE(samples_from(R"([{"rank":3,"stacks":[)" + counted(INT64_MAX) + "]}]"));
}

// ---- stacks

RankSamples samples(std::vector<std::pair<std::string, int>> stacks) {
  RankSamples made{0, {}};
  for (auto& [frames, count] : stacks) {
    for (int i = 0; i < count; ++i) add(made, frames);
  }
  return made;
}

TEST(WhereItIsSlow, IsTheInnermostFrameThatTheOtherRankIsSeldomIn) {
  const RankSamples slow = samples({{"next_batch (loader.py:40)\nmain (train.py:9)\n", 14},
                                    {"main (train.py:11)\n", 10},
                                    {"main (train.py:12)\n", 8}});
  const RankSamples other = samples(
      {{"main (train.py:9)\n", 1}, {"main (train.py:11)\n", 10}, {"main (train.py:12)\n", 21}});
  EXPECT_THAT(slow.stacks, SizeIs(3));
  EXPECT_EQ(where_it_is_slow(slow, other), "next_batch (loader.py:40)");
}

// Lines of one function that all take longer: the line that calls it.
TEST(WhereItIsSlow, IsTheCallerWhereNoLineOfItStandsOut) {
  const RankSamples slow = samples({{"decode (codec.py:1)\nmain (train.py:9)\n", 6},
                                    {"decode (codec.py:2)\nmain (train.py:9)\n", 5},
                                    {"decode (codec.py:3)\nmain (train.py:9)\n", 5},
                                    {"main (train.py:11)\n", 16}});
  const RankSamples other = samples({{"main (train.py:11)\n", 32}});
  EXPECT_EQ(where_it_is_slow(slow, other), "main (train.py:9)");
}

// A busy machine lets most looks be late.
TEST(WhereItIsSlow, IsNotSaidUponAFewLooks) {
  const RankSamples slow = samples({{"main (train.py:64)\n", 4}, {"main (train.py:11)\n", 2}});
  const RankSamples other = samples({{"main (train.py:64)\n", 2}, {"main (train.py:11)\n", 4}});
  EXPECT_THAT(where_it_is_slow(slow, other), IsEmpty()) << "a third more, of six";
  const RankSamples all = samples({{"next_batch (loader.py:7)\n", 5}});
  EXPECT_EQ(where_it_is_slow(all, samples({{"main (train.py:11)\n", 5}})),
            "next_batch (loader.py:7)")
      << "always and never";
}

TEST(WhereItIsSlow, IsNotSaidWhereBothDoTheSame) {
  const RankSamples one = samples({{"main (train.py:9)\n", 16}, {"main (train.py:11)\n", 16}});
  const RankSamples other = samples({{"main (train.py:9)\n", 14}, {"main (train.py:11)\n", 18}});
  EXPECT_THAT(where_it_is_slow(one, other), IsEmpty());
  EXPECT_THAT(where_it_is_slow(one, RankSamples{}), IsEmpty()) << "nothing to compare it with";
  EXPECT_THAT(where_it_is_slow(RankSamples{}, other), IsEmpty());
}

}  // namespace
}  // namespace ddprun::agent
