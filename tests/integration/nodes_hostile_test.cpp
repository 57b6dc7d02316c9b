// Any machine can connect to the leader's port: garbage, invalid frames, clients that are silent or
// slow. The job still starts, restarts and ends as without them, and the leader's memory stays
// bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "rendezvous/common/descriptor_limit.h"
#include "rendezvous/common/limits.h"
#include "rendezvous/round/round_wire.h"
#include "tests/support/cluster.h"
#include "tests/unit/rendezvous/store/raw_client.h"

namespace ddprun::test {
namespace {

using rdzv::testing::RawClient;
using ::testing::_;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Clock = std::chrono::steady_clock;

std::size_t resident_bytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  std::size_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

long count(const std::string& text, const std::string& words) {
  long times = 0;
  for (std::size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) ++times;
  return times;
}

class HostileClients : public ::testing::TestWithParam<Meeting> {
 protected:
  HostileClients() : cluster_({.meeting = GetParam(), .options = {"--max-restarts=100"}}) {}

  void SetUp() override {
    cluster_.start_all(2);
    ASSERT_EQ(cluster_.next_round(2), 0) << cluster_.told();
  }

  // The job restarts while they are there, and then ends.
  void expect_an_undisturbed_job() {
    const int before = cluster_.last_round();
    for (int restart = 1; restart <= 3; ++restart) {
      kill(cluster_.workers(cluster_.last_round()).at(restart % 2).pid, SIGKILL);
      ASSERT_EQ(cluster_.next_round(2), before + restart) << cluster_.told();
    }
  }
  void TearDown() override {
    cluster_.let_finish();
    EXPECT_THAT(cluster_.wait(), Each(Pair(_, exited(0)))) << cluster_.told();
    EXPECT_THAT(cluster_.left_over(), IsEmpty());
  }

  RawClient client() const { return RawClient(cluster_.port()); }
  static std::string opening() { return rdzv::wire::encode(rdzv::wire::Opening{}); }

  Cluster cluster_;
};
INSTANTIATE_TEST_SUITE_P(At, HostileClients,
                         ::testing::Values(Meeting::kStatic, Meeting::kC10d, Meeting::kLeader),
                         [](const auto& which) { return ::testing::PrintToString(which.param); });

TEST_P(HostileClients, WhoSpeakAnotherProtocolAreDropped) {
  for (const std::string& words : {
           std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
           std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
           std::string(100'000, 'D'),
           std::string(100'000, '\0'),
           std::string("DDPR") + std::string(100'000, '\xff'),
           opening() + "GET / HTTP/1.1\r\n\r\n",
       }) {
    RawClient stranger = client();
    ASSERT_TRUE(stranger.is_connected());
    stranger.send(words);
    EXPECT_TRUE(stranger.is_dropped()) << words.substr(0, 20);
  }
  expect_an_undisturbed_job();
}

TEST_P(HostileClients, WhoAnnounceImpossibleFramesAreDroppedBeforeAnythingIsKept) {
  for (const std::string& length : {std::string("\xff\xff\xff\xff"), std::string("\0\0\0\x10", 4),
                                    std::string("\x01\x20\x00\x00", 4), std::string(4, '\0')}) {
    RawClient stranger = client();
    stranger.send(opening() + length + std::string(100, '\x01'));
    EXPECT_TRUE(stranger.is_dropped());
  }
  expect_an_undisturbed_job();
}

TEST_P(HostileClients, WhoSayAnythingAtAllChangeNothingAndDoNotFillTheLog) {
  const auto began = Clock::now();
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 300; ++i) {
    std::string frame(1 + random() % 60, '\0');
    std::ranges::generate(frame, [&] { return static_cast<char>(random()); });
    frame[0] = static_cast<char>(random() % 16);
    const char size = static_cast<char>(frame.size());
    client().send(opening() + size + std::string(3, '\0') + frame);
  }
  expect_an_undisturbed_job();
  const std::string log = cluster_.leader().err();
  const auto passed = std::chrono::ceil<std::chrono::seconds>(Clock::now() - began).count();
  EXPECT_GE(count(log, "turned away 127.0.0.1"), 1) << log;
  EXPECT_LE(count(log, "turned away 127.0.0.1"), 1 + passed) << log;
}

// Each says one byte of its opening and no more, or all of it but the frame's end.
TEST_P(HostileClients, WhoAreSlowWaitAloneAndNotForEver) {
  std::vector<RawClient> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(client());
    slow.back().send(i % 2 == 0 ? "D" : opening() + std::string("\xff\0\0\0half a frame", 16));
  }
  expect_an_undisturbed_job();
  // Who has said nothing that counts within the time for it is dropped.
  EXPECT_TRUE(eventually([&] { return slow[0].is_dropped() && slow[1].is_dropped(); }));
}

TEST_P(HostileClients, TenThousandThatSayNothingCostLittleAndHoldNothingUp) {
  const std::size_t count = std::min<std::size_t>(10'000, raise_descriptor_limit() - 200);
  const std::size_t before = resident_bytes(cluster_.leader().pid());
  std::vector<RawClient> idle;
  for (std::size_t i = 0; i < count; ++i) {
    idle.emplace_back(cluster_.port());
    ASSERT_TRUE(idle.back().is_connected()) << "after " << i;
  }
  expect_an_undisturbed_job();
  EXPECT_LT(resident_bytes(cluster_.leader().pid()) - before, count * 20 * 1024);
}

// What a node calls itself is printed by the others.
class HostileNode : public ::testing::Test {
 protected:
  // Says hello as node 1, and nothing more.
  RawClient join(const Cluster& cluster, int max_nodes) const {
    rdzv::NodeHello hello;
    hello.host = "b12\x1b[2J\u009b31m\nddprun: all is well";
    hello.node_rank = 1;
    hello.session = 1;
    hello.run_id = "none";
    hello.program = "ddprun_meeting_worker";
    hello.user = std::to_string(getuid());
    hello.min_nodes = 2;
    hello.max_nodes = max_nodes;
    rdzv::wire::Connect connect;
    connect.hello = hello;
    RawClient node(cluster.port());
    node.send(rdzv::wire::encode(rdzv::wire::Opening{}) +
              rdzv::wire::encode(rdzv::wire::AgentFrame{connect}));
    return node;
  }
  bool is_listed_by(Job& agent) const {
    return agent.reaches([&] {
      const Told told = run_to_its_end(ddpctl({"status", std::to_string(agent.pid())}),
                                       {.environment = environment_});
      return told.out.find(shown_) != std::string::npos;
    });
  }
  static bool is_safe(const std::string& text) {
    return text.find('\x1b') == std::string::npos &&
           text.find("\nddprun: all") == std::string::npos;
  }

  const TemporaryTree control_;
  const std::map<std::string, std::string> environment_{
      {"DDPRUN_CONTROL_DIR", control_ / "sockets"}};
  const std::string shown_ = R"(b12\x1b[2J\u009b31m\nddprun: all is well)";
};

TEST_F(HostileNode, MovesNoCursorAndForgesNoLineByItsNameWhereItHasTheRank) {
  Cluster cluster({.meeting = Meeting::kStatic, .environment = environment_});
  Job& first = cluster.start(0);
  ASSERT_TRUE(first.reaches([&] { return is_listening(cluster.port()); })) << first.err();
  const RawClient node = join(cluster, 2);
  EXPECT_TRUE(is_listed_by(first)) << first.err();
  Job& second = cluster.start(1);
  EXPECT_TRUE(second.reaches([&] {
    return second.err().find("is taken by " + shown_) != std::string::npos;
  })) << second.err();
  EXPECT_TRUE(is_safe(second.err()));
}

TEST_F(HostileNode, MovesNoCursorAndForgesNoLineByItsNameInTheLog) {
  Cluster cluster({.meeting = Meeting::kC10d,
                   .nnodes = "2:3",
                   .options = {"--rdzv-id=none"},
                   .environment = environment_});
  Job& first = cluster.start(0);
  ASSERT_TRUE(first.reaches([&] { return is_listening(cluster.port()); })) << first.err();
  const RawClient node = join(cluster, 3);
  EXPECT_TRUE(is_listed_by(first)) << first.err();
  Job& second = cluster.start(1, {"--node-rank=1"});
  EXPECT_TRUE(second.reaches([&] {
    return second.err().find("was asked for by " + shown_) != std::string::npos;
  })) << second.err();
  EXPECT_TRUE(is_safe(second.err()));
}

}  // namespace
}  // namespace ddprun::test
