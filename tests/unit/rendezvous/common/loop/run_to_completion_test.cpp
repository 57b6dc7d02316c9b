#include "rendezvous/common/loop/run_to_completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

using testing::ElementsAre;

TEST(RunToCompletion, HandlesAnEventAtOnce) {
  std::vector<int> handled;
  RunToCompletion<int> events([&](int event) { handled.push_back(event); });
  EXPECT_TRUE(events.post(1));
  EXPECT_TRUE(events.post(2));
  EXPECT_THAT(handled, ElementsAre(1, 2));
}

TEST(RunToCompletion, AnEventOfAHandlerWaitsForItsEnd) {
  std::vector<int> begun;
  std::vector<int> ended;
  RunToCompletion<int>* posts = nullptr;
  RunToCompletion<int> events([&](int event) {
    begun.push_back(event);
    if (event == 1) {
      EXPECT_FALSE(posts->post(2));
      EXPECT_FALSE(posts->post(3));
    }
    if (event == 2) {
      EXPECT_FALSE(posts->post(4));
    }
    EXPECT_THAT(begun.back(), event) << "no other event has begun meanwhile";
    ended.push_back(event);
  });
  posts = &events;
  EXPECT_TRUE(events.post(1));
  EXPECT_THAT(ended, ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace ddprun
