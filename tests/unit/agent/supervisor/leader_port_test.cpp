// The leader as the supervisor has it: in this process, elsewhere, or nowhere.
#include "agent/supervisor/leader_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <variant>
#include <vector>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/net/listener.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Where = rdzv::LeaderSpec::Where;

class LeaderPortTest : public ::testing::Test {
 protected:
  LeaderPortTest() {
    job_.run_id = "job";
    job_.nodes.leader.join_timeout = 300ms;
  }

  void find(Where where, const rdzv::Endpoint& endpoint = {}) {
    job_.nodes.leader.where = where;
    job_.nodes.leader.endpoint = endpoint;
    port_.emplace(io_, job_, "here", log_, query_, store_, [this](NodeEvent event) {
      const auto* found = std::get_if<LeaderFound>(&event);
      if (found == nullptr) return said_.push_back(std::move(event));
      is_hosted_ = found->is_hosted;
      port_->join(std::nullopt);
    });
    port_->find(nullptr);
  }
  template <typename Event>
  const Event* last() const {
    return said_.empty() ? nullptr : std::get_if<Event>(&said_.back());
  }
  template <typename Condition>
  [[nodiscard]] bool run_until(Condition holds) {
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (!holds()) {
      io_.restart();
      if (io_.run_one_until(until) == 0 && std::chrono::steady_clock::now() >= until) return false;
    }
    return true;
  }

  boost::asio::io_context io_;
  Job job_;
  Console console_{io_.get_executor()};
  const Log log_{console_, {{"DDPRUN_LOG_LEVEL", "critical"}}};
  RoundStore store_{io_, job_, [](std::string_view) {}};
  std::optional<LeaderPort> port_;
  JobQuery query_{io_,
                  {"job", "train", "1.0", "here"},
                  {.node_status = [](std::size_t) { return NodeStatus{}; },
                   .on_event = [](const auto&) { return std::shared_ptr<void>(); },
                   .leader = [this] { return port_->leader(); }}};
  std::vector<NodeEvent> said_;
  std::optional<bool> is_hosted_;  // none: it is not found
};

TEST_F(LeaderPortTest, ALeaderInThisProcessIsFoundAtOnceAndSaysNothingFromWithinACall) {
  find(Where::kAlone);
  EXPECT_EQ(is_hosted_, true);
  EXPECT_TRUE(port_->is_here());
  EXPECT_TRUE(said_.empty()) << "it is told by the loop";
  EXPECT_FALSE(port_->has_been_heard());
  ASSERT_TRUE(run_until([&] { return last<rdzv::OpenStore>() != nullptr; }));
  EXPECT_TRUE(port_->has_been_heard());
  port_->tell(rdzv::StoreOpened{Round{0}, 4711});
  EXPECT_EQ(last<rdzv::RoundStart>(), nullptr);
  ASSERT_TRUE(run_until([&] { return last<rdzv::RoundStart>() != nullptr; }));
  EXPECT_EQ(last<rdzv::RoundStart>()->master_port, 4711);
}

TEST_F(LeaderPortTest, TheEndOfTheJobIsTheLastThatALeaderHereIsNeededFor) {
  find(Where::kAlone);
  ASSERT_TRUE(run_until([&] { return last<rdzv::OpenStore>() != nullptr; }));
  bool has_left = false;
  port_->leave([&] { has_left = true; });
  EXPECT_FALSE(has_left);
  port_->tell(rdzv::StoreOpened{Round{0}, 4711});
  port_->tell(rdzv::WorkersDone{Round{0}});
  ASSERT_TRUE(run_until([&] { return last<rdzv::JobEnd>() != nullptr; }));
  port_->tell(rdzv::Goodbye{});
  port_->look();
  EXPECT_TRUE(has_left);
}

TEST_F(LeaderPortTest, ALeaderThatCannotBeReachedIsLostWithoutHavingBeenReached) {
  auto reserved = rdzv::reserve_port({.address = "127.0.0.1"});
  ASSERT_TRUE(reserved);
  find(Where::kElsewhere, {"127.0.0.1", reserved->bound.port});
  EXPECT_EQ(is_hosted_, false);
  ASSERT_TRUE(run_until([&] { return last<LeaderLost>() != nullptr; }));
  EXPECT_FALSE(last<LeaderLost>()->was_reached);
  EXPECT_FALSE(port_->has_been_heard());
  bool has_left = false;
  port_->leave([&] { has_left = true; });
  EXPECT_TRUE(has_left);
}

// It would hear of the end if it could be reached; nobody else does so through this node.
TEST_F(LeaderPortTest, ALeaderElsewhereThatDoesNotAnswerIsLeftAllTheSame) {
  auto reserved = rdzv::reserve_port({.address = "127.0.0.1"});
  ASSERT_TRUE(reserved);
  job_.nodes.leader.join_timeout = 1h;
  find(Where::kElsewhere, {"127.0.0.1", reserved->bound.port});
  bool has_left = false;
  port_->leave([&] { has_left = true; });
  EXPECT_FALSE(has_left) << "its last words are not confirmed";
  EXPECT_TRUE(run_until([&] { return has_left; }));
}

TEST_F(LeaderPortTest, AnEndpointWhoseNameIsNotKnownInTimeHasAnExitCodeOfItsOwn) {
  find(Where::kToBeFound, {"no-such-host.invalid", 29400});
  ASSERT_TRUE(run_until([&] { return last<CannotRun>() != nullptr; }));
  EXPECT_EQ(last<CannotRun>()->exit_code, kExitRendezvousTimeout);
  EXPECT_THAT(last<CannotRun>()->sentence, HasSubstr("no-such-host.invalid"));
  EXPECT_EQ(port_->leader(), nullptr);
}

}  // namespace
}  // namespace ddprun::agent
