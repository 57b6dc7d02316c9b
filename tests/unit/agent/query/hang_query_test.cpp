// What agents ask each other when a rank hangs.
#include "agent/query/hang_query.h"

#include <gtest/gtest.h>

#include "rendezvous/common/limits.h"

namespace ddprun::agent {
namespace {

TEST(HangQueryTest, ComesBackAsItWas) {
  const EndHung question{Round{3}, {5, 9}, "ranks 5 and 9 are stopped", "f\nmain\n"};
  EXPECT_EQ(*end_hung_from(to_json(question)), question);
  const EndHungAnswer answer{{5}, "it was started with --on-hang=report"};
  EXPECT_EQ(*end_hung_answer_from(to_json(answer)), answer);
  EXPECT_FALSE(end_hung_from("{}"));
  EXPECT_FALSE(end_hung_from(R"({"ask":"end_hung","round":1,"ranks":["x"],"why":"","stack":""})"));
  EXPECT_FALSE(end_hung_answer_from("x"));
}

TEST(HangQueryTest, IsNeverLongerThanAQuestionMayBe) {
  const EndHung question{Round{3}, {5}, std::string(3000, 'w'), std::string(90'000, '\x01')};
  const std::string text = to_json(question);
  EXPECT_LE(text.size(), rdzv::limits::kMaxQuestionBytes);
  const auto read = end_hung_from(text);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->why, question.why) << "the stack is cut first";
}

}  // namespace
}  // namespace ddprun::agent
