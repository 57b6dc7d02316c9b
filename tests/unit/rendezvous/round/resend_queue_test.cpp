#include "rendezvous/round/resend_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun::rdzv {
namespace {

using Arrival = ResendQueue<std::string>::Arrival;

TEST(ResendQueue, SaysAgainWhatWasNotConfirmed) {
  ResendQueue<std::string> session;
  EXPECT_EQ(session.send("a").number, 1U);
  session.send("b");
  session.send("c");
  session.confirm(1);
  ASSERT_EQ(session.unconfirmed().size(), 2U);
  EXPECT_EQ(session.unconfirmed().front().number, 2U);
  EXPECT_EQ(session.unconfirmed().front().message, "b");
  session.confirm(3);
  session.confirm(2);  // an older word, late
  EXPECT_TRUE(session.unconfirmed().empty());
  EXPECT_EQ(session.send("d").number, 4U);
}

TEST(ResendQueue, TakesEveryNumberOnceAndInOrder) {
  ResendQueue<std::string> session;
  EXPECT_EQ(session.receive(1), Arrival::kNew);
  EXPECT_EQ(session.receive(2), Arrival::kNew);
  EXPECT_EQ(session.receive(1), Arrival::kRepeated);
  EXPECT_EQ(session.receive(2), Arrival::kRepeated);
  EXPECT_EQ(session.receive(4), Arrival::kGap);
  EXPECT_EQ(session.received(), 2U);
  EXPECT_EQ(session.receive(3), Arrival::kNew);
}

}  // namespace
}  // namespace ddprun::rdzv
