// The leader's shell and the agent's over real connections: what the cores decide is tested
// elsewhere; here it is whether it arrives, what becomes of connections, and who is turned away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/common/limits.h"
#include "rendezvous/find_leader.h"
#include "rendezvous/leader/round_client.h"
#include "rendezvous/leader/round_server.h"
#include "rendezvous/net/asio_transport.h"
#include "rendezvous/round/round_wire.h"
#include "tests/unit/rendezvous/leader/relay.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Relay;
using ::testing::SizeIs;
using Where = LeaderSpec::Where;

struct Node {
  std::unique_ptr<Leader> client;
  std::vector<ToAgent> heard;
  std::optional<LeaderGone> gone;
  std::vector<std::string> notices;
  std::vector<PeerRequest> questions;
  std::vector<PeerReply> answers;
  std::vector<PeerAck> asked;

  template <typename Message>
  const Message* last() const {
    const Message* found = nullptr;
    for (const ToAgent& each : heard) {
      if (const auto* message = std::get_if<Message>(&each)) found = message;
    }
    return found;
  }
  void take(ToAgent message) { heard.push_back(std::move(message)); }
  void take(LeaderGone what) { gone = std::move(what); }
  void take(LeaderNotice notice) { notices.push_back(std::move(notice.line)); }
  void take(const LeaderWarning&) {}
  void take(PeerRequest each) { questions.push_back(std::move(each)); }
  void take(PeerReply each) { answers.push_back(std::move(each)); }
  void take(PeerAck each) { asked.push_back(std::move(each)); }
  void take(const StoreClientArrived&) {}
  LeaderEvents events() {
    LeaderEvents events;
    events.on_event = [this](LeaderEvent event) {
      std::visit([this](auto& each) { take(std::move(each)); }, event);
    };
    return events;
  }
};

class Rounds : public ::testing::Test {
 protected:
  // A leader without a node of its own, for jobs of so many.
  void lead(int nodes, RoundServerOptions options = {}) {
    options.round.run_id = "job";
    options.round.min_nodes = 1;
    options.round.max_nodes = nodes;
    options.round.last_call_timeout = 10s;
    options.round.restarts.max_restarts = 3;
    options.round.own_node.reset();
    options.round.reconnect_grace = options.keep_alive.reconnect_grace;
    options.round.silence_limit = options.keep_alive.timeout();
    auto listener = open_listener({.port = port_});
    ASSERT_TRUE(listener);
    port_ = listener->bound.port;
    LeaderEvents events;
    events.takes_store_clients = true;
    events.on_event = [this](LeaderEvent event) {
      if (auto* warning = std::get_if<LeaderWarning>(&event)) {
        warnings_.push_back(std::move(warning->line));
      } else if (auto* client = std::get_if<StoreClientArrived>(&event)) {
        store_clients_.emplace_back(std::move(client->socket), std::move(client->received));
      }
    };
    server_ = std::make_unique<RoundServer>(asio_transport(io_), std::move(options),
                                            std::move(events), std::move(*listener));
  }

  static NodeHello hello(int nodes) {
    NodeHello hello;
    hello.run_id = "job";
    hello.host = "host";
    hello.min_nodes = 1;
    hello.max_nodes = nodes;
    hello.max_restarts = 3;
    return hello;
  }
  RoundClientOptions towards(std::uint16_t port) const {
    RoundClientOptions options;
    options.leader = {"127.0.0.1", port};
    options.join_timeout = 5s;
    return options;
  }
  Node& add(RoundClientOptions options, const NodeHello& hello) {
    Node& node = nodes_.emplace_back();
    node.client = make_round_client(asio_transport(io_), std::move(options), node.events());
    node.client->join(hello);
    return node;
  }

  template <typename Condition>
  [[nodiscard]] bool run_until(Condition holds, std::chrono::milliseconds limit = 10s) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!holds()) {
      if (io_.run_one_until(until) == 0) return holds();
    }
    return true;
  }
  // Two of two nodes, in a round that runs.
  void run_round(RoundClientOptions first, RoundClientOptions second) {
    Node& one = add(std::move(first), hello(2));
    Node& two = add(std::move(second), hello(2));
    ASSERT_TRUE(run_until([&] { return one.last<OpenStore>() || two.last<OpenStore>(); }));
    Node& host = one.last<OpenStore>() ? one : two;
    host.client->tell(StoreOpened{Round{0}, 4711});
    ASSERT_TRUE(run_until([&] { return one.last<RoundStart>() && two.last<RoundStart>(); }));
  }

  // Somebody who speaks bytes.
  std::unique_ptr<boost::asio::ip::tcp::socket> connect() {
    auto socket = std::make_unique<boost::asio::ip::tcp::socket>(io_);
    socket->connect({boost::asio::ip::address_v4::loopback(), port_});
    return socket;
  }
  // What comes until the connection ends.
  std::string all_from(boost::asio::ip::tcp::socket& socket) {
    std::string bytes;
    bool is_over = false;
    std::array<char, 4096> buffer;
    std::function<void()> read = [&] {
      socket.async_read_some(boost::asio::buffer(buffer),
                             [&](boost::system::error_code ec, std::size_t count) {
                               bytes.append(buffer.data(), count);
                               if (ec) {
                                 is_over = true;
                               } else {
                                 read();
                               }
                             });
    };
    read();
    EXPECT_TRUE(run_until([&] { return is_over; })) << "the connection stays open";
    return bytes;
  }

  boost::asio::io_context io_{1};
  std::uint16_t port_ = 0;
  std::vector<std::string> warnings_;
  std::vector<std::pair<UniqueFd, std::string>> store_clients_;
  std::unique_ptr<RoundServer> server_;
  std::deque<Node> nodes_;
};

TEST_F(Rounds, ANodeTakesPartFromHelloToGoodbye) {
  lead(1);
  Node& node = add(towards(port_), hello(1));
  ASSERT_TRUE(run_until([&] { return node.last<OpenStore>() != nullptr; }));
  node.client->tell(StoreOpened{Round{0}, 4711});
  ASSERT_TRUE(run_until([&] { return node.last<RoundStart>() != nullptr; }));
  EXPECT_EQ(node.last<RoundStart>()->master_addr, "127.0.0.1") << "as the leader sees it";
  EXPECT_EQ(node.last<RoundStart>()->master_port, 4711);
  node.client->tell(WorkersDone{Round{0}});
  ASSERT_TRUE(run_until([&] { return node.last<JobEnd>() != nullptr; }));
  EXPECT_FALSE(server_->may_exit());
  node.client->tell(Goodbye{});
  EXPECT_TRUE(run_until([&] { return server_->may_exit() && node.client->may_exit(); }));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Rounds, AnAddressThatIsGivenIsKept) {
  lead(1);
  NodeHello mine = hello(1);
  mine.address = "10.1.2.3";
  Node& node = add(towards(port_), mine);
  ASSERT_TRUE(run_until([&] { return node.last<OpenStore>() != nullptr; }));
  node.client->tell(StoreOpened{Round{0}, 4711});
  ASSERT_TRUE(run_until([&] { return node.last<RoundStart>() != nullptr; }));
  EXPECT_EQ(node.last<RoundStart>()->master_addr, "10.1.2.3");
}

TEST_F(Rounds, ALeaderThatComesLateIsFound) {
  lead(1);
  Relay relay(io_, port_);
  relay.refuse();
  Node& node = add(towards(relay.port()), hello(1));
  EXPECT_FALSE(run_until([&] { return node.last<OpenStore>() != nullptr; }, 300ms));
  relay.accept_again();
  EXPECT_TRUE(run_until([&] { return node.last<OpenStore>() != nullptr; }));
}

TEST_F(Rounds, WhatWasSaidWhileAConnectionWasBrokenArrivesOnceItIsResumed) {
  lead(2);
  Relay relay(io_, port_);
  run_round(towards(relay.port()), towards(port_));
  for (int i = 0; i < 20; ++i) {
    relay.break_connections();
    nodes_[0].client->tell(SomeWorkersDone{Round{0}});
    ASSERT_TRUE(run_until([&] { return nodes_[0].client->may_exit(); })) << "it was confirmed";
  }
  WorkerFailure failure;
  failure.status = ExitStatus::exited(3);
  relay.break_connections();
  nodes_[0].client->tell(WorkerFailed{Round{0}, failure});
  ASSERT_TRUE(
      run_until([&] { return nodes_[0].last<RoundStop>() && nodes_[1].last<RoundStop>(); }));
  nodes_[0].client->tell(RoundStopped{Round{0}, {}});
  relay.break_connections();
  nodes_[1].client->tell(RoundStopped{Round{0}, {}});
  ASSERT_TRUE(run_until([&] { return server_->core().round() == Round{1}; }));
  EXPECT_EQ(server_->core().restarts(), 1) << "as the failure that it is, not as a loss";
  EXPECT_FALSE(nodes_[0].gone);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Rounds, AQuestionReachesAllOthersAndTheirAnswersReachTheAsker) {
  lead(3);
  for (int i = 0; i < 3; ++i) add(towards(port_), hello(3));
  const auto all_are_in = [&] {
    return std::ranges::all_of(nodes_, [](const Node& each) { return !each.heard.empty(); });
  };
  ASSERT_TRUE(run_until([&] {
    for (Node& each : nodes_) {
      if (each.last<OpenStore>()) each.client->tell(StoreOpened{Round{0}, 4711});
    }
    return all_are_in();
  }));
  nodes_[1].client->ask({42, std::nullopt, "who are you"});
  ASSERT_TRUE(run_until([&] {
    return !nodes_[1].asked.empty() && !nodes_[0].questions.empty() && !nodes_[2].questions.empty();
  }));
  EXPECT_EQ(nodes_[1].asked[0].id, 42U);
  EXPECT_THAT(nodes_[1].asked[0].view.members, SizeIs(3));
  EXPECT_THAT(nodes_[1].asked[0].view.members,
              Contains(::testing::Field(&LeaderView::Member::id, nodes_[1].asked[0].you)));
  EXPECT_THAT(nodes_[1].questions, IsEmpty()) << "nobody asks himself";
  for (const std::size_t i : {0U, 2U}) {
    const PeerRequest& question = nodes_[i].questions[0];
    EXPECT_EQ(question.text, "who are you");
    nodes_[i].client->answer({question.id, *question.peer, "node " + std::to_string(i)});
  }
  ASSERT_TRUE(run_until([&] { return nodes_[1].answers.size() == 2; }));
  const PeerReply from_other = nodes_[1].answers[0];
  EXPECT_EQ(from_other.id, 42U);
  EXPECT_THAT(from_other.text, HasSubstr("node "));

  nodes_[1].client->ask({43, from_other.peer, "and you alone"});
  Node& other = from_other.text == "node 0" ? nodes_[0] : nodes_[2];
  ASSERT_TRUE(run_until([&] { return other.questions.size() == 2; }));
  EXPECT_EQ(other.questions[1].text, "and you alone");
  Node& first = *std::ranges::find_if(
      nodes_, [](const Node& each) { return each.last<OpenStore>() != nullptr; });  // it has rank 0
  const std::size_t asked_before = first.questions.size();
  nodes_[2].client->ask({45, kFirstNode, "you who are first"});
  ASSERT_TRUE(run_until([&] { return first.questions.size() > asked_before; }));
  EXPECT_EQ(first.questions.back().text, "you who are first");

  nodes_[1].client->ask({44, NodeId{99}, "nobody"});
  ASSERT_TRUE(run_until([&] { return nodes_[1].answers.size() == 3; }));
  EXPECT_EQ(nodes_[1].answers[2], (PeerReply{44, NodeId{99}, ""})) << "it is not there";
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Rounds, WhoDoesNotReadAnswersIsSentNoMoreAndStaysInTheJob) {
  lead(2);
  Node& answerer = add(towards(port_), hello(2));
  ASSERT_TRUE(run_until([&] { return answerer.last<WaitForNodes>() != nullptr; }));
  const auto asker = connect();
  const auto say = [&](const std::string& bytes) {
    boost::asio::write(*asker, boost::asio::buffer(bytes));
  };
  say(wire::encode(wire::Opening{}));
  say(wire::encode(wire::AgentFrame(wire::Connect{7, 0, "", hello(2)})));
  say(wire::encode(wire::AgentFrame(PeerRequest{1, std::nullopt, "anything"})));
  ASSERT_TRUE(run_until([&] { return answerer.questions.size() == 1; }));
  const std::string large(limits::kMaxAnswerBytes, 'a');
  for (std::uint64_t i = 0; i < 100; ++i) {
    answerer.client->answer({1, *answerer.questions[0].peer, large});
    (void)run_until([] { return false; }, 1ms);
  }
  say(wire::encode(wire::AgentFrame(PeerRequest{2, std::nullopt, "still here"})));
  ASSERT_TRUE(run_until([&] { return answerer.questions.size() == 2; })) << "50 MiB are unread";
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Rounds, WhoDoesNotComeBackWithinTheGraceIsLost) {
  lead(2);
  Relay relay(io_, port_);
  run_round(towards(relay.port()), towards(port_));
  relay.refuse();
  relay.break_connections();
  ASSERT_TRUE(run_until([&] { return nodes_[1].last<RoundStop>() && nodes_[0].gone; }));
  EXPECT_TRUE(nodes_[0].gone->was_reached);
  EXPECT_THAT(nodes_[0].gone->sentence, HasSubstr("broke and could not be resumed within 300 ms"));
  EXPECT_FALSE(nodes_[1].gone);
}

TEST_F(Rounds, ALeaderThatIsStartedAgainWithinTheGraceIsToldFromOneThatDeclaredTheNodeLost) {
  lead(2);
  run_round(towards(port_), towards(port_));
  server_.reset();
  lead(2);
  ASSERT_TRUE(run_until([&] { return nodes_[0].gone && nodes_[1].gone; }));
  for (Node& node : nodes_) {
    EXPECT_TRUE(node.gone->was_replaced);
    EXPECT_THAT(node.gone->sentence, HasSubstr("was started again; this node stops its workers"));
    EXPECT_EQ(node.last<DeclaredLost>(), nullptr);
    EXPECT_TRUE(node.client->may_exit());
    node.heard.clear();
    NodeHello again = hello(2);
    again.last_round = LastRound{Round{0}, 2, 1};
    node.client->join(again);
  }
  ASSERT_TRUE(
      run_until([&] { return nodes_[0].last<OpenStore>() || nodes_[1].last<OpenStore>(); }));
  Node& host = nodes_[0].last<OpenStore>() ? nodes_[0] : nodes_[1];
  EXPECT_EQ(host.last<OpenStore>()->round, Round{1});
  host.client->tell(StoreOpened{Round{1}, 4711});
  ASSERT_TRUE(
      run_until([&] { return nodes_[0].last<RoundStart>() && nodes_[1].last<RoundStart>(); }));
  EXPECT_EQ(nodes_[0].last<RoundStart>()->restarts, 1);
}

// One that breaks the protocol, or whose sessions are numbered alike.
TEST_F(Rounds, AWelcomeOfAnotherLeaderIsNoResumption) {
  boost::asio::ip::tcp::acceptor acceptor(io_, {boost::asio::ip::address_v4::loopback(), 0});
  std::deque<boost::asio::ip::tcp::socket> clients;
  std::function<void()> accept = [&] {
    clients.emplace_back(io_);
    acceptor.async_accept(clients.back(), [&](boost::system::error_code ec) {
      if (ec) return;
      const auto leader_id = static_cast<std::uint64_t>(clients.size());
      const std::string said = wire::encode(wire::Opening{}) +
                               wire::encode(wire::LeaderFrame(wire::Welcome{1, leader_id, ""}));
      boost::asio::write(clients.back(), boost::asio::buffer(said));
      accept();
    });
  };
  accept();
  Node& node = add(towards(acceptor.local_endpoint().port()), hello(1));
  ASSERT_TRUE(run_until([&] { return node.client->may_exit() && clients.size() == 2; }));
  clients[0].close();
  ASSERT_TRUE(run_until([&] { return node.gone.has_value(); }));
  EXPECT_TRUE(node.gone->was_replaced);
}

RoundServerOptions server_with(KeepAlive keep_alive) {
  RoundServerOptions options;
  options.keep_alive = keep_alive;
  return options;
}

TEST_F(Rounds, ASilentLeaderIsLost) {
  lead(2, server_with({50ms, 1000, 300ms}));
  Relay relay(io_, port_);
  RoundClientOptions quick = towards(relay.port());
  quick.keep_alive = {50ms, 4, 300ms};
  run_round(quick, towards(port_));
  relay.hold();
  ASSERT_TRUE(run_until([&] { return nodes_[0].gone.has_value(); }));
  EXPECT_THAT(nodes_[0].gone->sentence, HasSubstr("said nothing for 200 ms"));
}

TEST_F(Rounds, ASilentNodeIsLostAndToldSoWhenItIsHeardAgain) {
  lead(2, server_with({50ms, 4, 300ms}));
  Relay relay(io_, port_);
  RoundClientOptions patient = towards(relay.port());
  patient.keep_alive = {50ms, 1000, 300ms};
  RoundClientOptions quick = towards(port_);
  quick.keep_alive = {50ms, 4, 300ms};
  run_round(patient, quick);
  relay.hold();
  ASSERT_TRUE(run_until([&] { return nodes_[1].last<RoundStop>() != nullptr; }));
  relay.let_go();
  ASSERT_TRUE(run_until([&] { return nodes_[0].last<DeclaredLost>() != nullptr; }));
  nodes_[0].client->join(hello(2));
  nodes_[1].client->tell(RoundStopped{Round{0}, {}});
  EXPECT_TRUE(run_until([&] { return server_->core().round() == Round{1}; }));
}

// Under etcd a round, and all that follows, is said when its record is written.
TEST_F(Rounds, NobodyIsLateWithAnAnswerToWhatIsHeldBack) {
  std::vector<ToNode> held;
  bool is_holding = false;
  RoundServerOptions options;
  options.round.stop_margin = 200ms;
  options.write_ahead = [&](const RoundCore&, std::vector<ToNode> messages) {
    for (ToNode& each : messages) {
      is_holding |= std::holds_alternative<RoundStart>(each.message);
      if (is_holding) held.push_back(each);
    }
    return is_holding ? RoundServerOptions::Passed{{}, true}
                      : RoundServerOptions::Passed{std::move(messages), false};
  };
  lead(1, std::move(options));
  NodeHello quick = hello(1);
  quick.shutdown_timeout = std::chrono::seconds(0);
  Node& node = add(towards(port_), quick);
  ASSERT_TRUE(run_until([&] { return node.last<OpenStore>() != nullptr; }));
  node.client->tell(StoreOpened{Round{0}, 4711});
  ASSERT_TRUE(run_until([&] { return is_holding; }));
  node.client->tell(WorkerFailed{Round{0}, {}});
  io_.run_for(1s);
  EXPECT_EQ(node.last<DeclaredLost>(), nullptr);
  server_->release({std::exchange(held, {}), is_holding = false});
  ASSERT_TRUE(run_until([&] { return node.last<RoundStop>() != nullptr; }));
  EXPECT_NE(node.last<RoundStart>(), nullptr);
  EXPECT_EQ(node.last<DeclaredLost>(), nullptr);
  // From here on it has its time, and no more.
  EXPECT_TRUE(run_until([&] { return node.last<DeclaredLost>() != nullptr; }));
}

TEST_F(Rounds, WhatBelongsToAnotherJobIsRefused) {
  lead(2);
  NodeHello other = hello(2);
  other.run_id = "other";
  Node& node = add(towards(port_), other);
  ASSERT_TRUE(run_until([&] { return node.last<Refused>() != nullptr; }));
  EXPECT_THAT(node.last<Refused>()->sentence, HasSubstr("belongs to job 'other'"));
  EXPECT_TRUE(node.client->may_exit());
}

TEST_F(Rounds, OnlyWhoKnowsTheTokenTakesPart) {
  RoundServerOptions options;
  options.proof.token = "secret";
  lead(2, options);
  const auto with_token = [&](const std::string& token) {
    RoundClientOptions mine = towards(port_);
    mine.proof.token = token;
    return mine;
  };
  Node& knows = add(with_token("secret"), hello(2));
  Node& guesses = add(with_token("guess"), hello(2));
  Node& ignores = add(with_token(""), hello(2));
  ASSERT_TRUE(run_until([&] {
    return knows.last<WaitForNodes>() && guesses.last<Refused>() && ignores.last<Refused>();
  }));
  EXPECT_THAT(guesses.last<Refused>()->sentence, HasSubstr("--token-file=FILE"));
  EXPECT_THAT(ignores.last<Refused>()->sentence, HasSubstr("--token-file=FILE"));
  // The second of two lines within a second is only counted.
  EXPECT_THAT(
      warnings_,
      Contains(ContainsRegex(
          "turned away host \\(127.0.0.1\\): it(s token is a different one| has no token)")));
}

TEST_F(Rounds, ANodeWithoutTheTokenIsNamedByTheLeaderAndToTheNodesThatWait) {
  RoundServerOptions options;
  options.proof.token = "secret";
  lead(2, options);
  Node& node = add(towards(port_), hello(2));
  ASSERT_TRUE(run_until([&] { return node.last<Refused>() != nullptr; }));
  RoundClientOptions mine = towards(port_);
  mine.proof.token = "secret";
  NodeHello other = hello(2);
  other.host = "other";
  Node& knows = add(mine, other);
  ASSERT_TRUE(run_until([&] { return knows.last<WaitForNodes>() && !warnings_.empty(); }));
  EXPECT_THAT(warnings_, ElementsAre("turned away host (127.0.0.1): it has no token"));
  EXPECT_EQ(knows.last<WaitForNodes>()->remark,
            "host (127.0.0.1) was turned away: it has no token");
}

TEST_F(Rounds, ANodeWithATokenTakesNoLeaderWithout) {
  lead(2);
  RoundClientOptions mine = towards(port_);
  mine.proof.token = "secret";
  Node& node = add(mine, hello(2));
  ASSERT_TRUE(run_until([&] { return node.last<Refused>() != nullptr; }));
  EXPECT_THAT(node.last<Refused>()->sentence, HasSubstr("it has no token"));
  EXPECT_THAT(
      warnings_,
      Contains(HasSubstr("turned away 127.0.0.1: it was given a token, and this leader was not")));
}

// A cluster's munged, as far as nodes and leaders can see it: only this user reads what it made.
class FakeMunge final : public Munge {
 public:
  explicit FakeMunge(std::string user, std::string broken = "")
      : user_(std::move(user)), broken_(std::move(broken)) {}
  Result<std::string> encode(std::string_view contents) const override {
    if (!broken_.empty()) return fail(ErrorCode::kIo, broken_);
    return user_ + ":" + std::string(contents);
  }
  Result<std::string> decode(const std::string& credential) const override {
    if (!broken_.empty()) return fail(ErrorCode::kIo, broken_);
    if (!credential.starts_with(user_ + ":"))
      return fail(ErrorCode::kPermissionDenied, "munge: Unauthorized credential");
    return credential.substr(user_.size() + 1);
  }

 private:
  const std::string user_;
  const std::string broken_;
};

class RoundsByMunge : public Rounds {
 protected:
  void lead_as(const std::string& user, const std::string& broken = "") {
    RoundServerOptions options;
    options.proof.munge = std::make_shared<FakeMunge>(user, broken);
    lead(2, options);
  }
  Node& add_as(const std::string& user) {
    RoundClientOptions mine = towards(port_);
    if (!user.empty()) mine.proof.munge = std::make_shared<FakeMunge>(user);
    return add(mine, hello(2));
  }
  std::string refusal_of(Node& node) {
    EXPECT_TRUE(run_until([&] { return node.last<Refused>() != nullptr; }));
    return node.last<Refused>() ? node.last<Refused>()->sentence : "";
  }
};

TEST_F(RoundsByMunge, NodesOfTheSameUserMeetAndResume) {
  lead_as("ann");
  Relay relay(io_, port_);
  const auto as_ann = [this](std::uint16_t port) {
    RoundClientOptions mine = towards(port);
    mine.proof.munge = std::make_shared<FakeMunge>("ann");
    return mine;
  };
  run_round(as_ann(port_), as_ann(relay.port()));
  relay.break_connections();
  nodes_.back().client->tell(WorkersDone{Round{0}});
  nodes_.front().client->tell(WorkersDone{Round{0}});
  ASSERT_TRUE(
      run_until([&] { return nodes_.front().last<JobEnd>() && nodes_.back().last<JobEnd>(); }));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(RoundsByMunge, AnotherUsersNodeIsRefused) {
  lead_as("ann");
  EXPECT_THAT(refusal_of(add_as("bob")), HasSubstr("Unauthorized credential"));
  EXPECT_THAT(warnings_, Contains(HasSubstr("turned away host (127.0.0.1): munge: Unauth")));
}

TEST_F(RoundsByMunge, ANodeThatHasNoneIsRefusedByName) {
  lead_as("ann");
  EXPECT_THAT(refusal_of(add_as("")), HasSubstr("start munged here"));
  EXPECT_THAT(warnings_, Contains(HasSubstr("turned away host (127.0.0.1): it has no munge")));
}

TEST_F(RoundsByMunge, ALeaderThatProvesNothingIsRefused) {
  lead(2);
  EXPECT_THAT(refusal_of(add_as("ann")), HasSubstr("it does not prove by munge whose it is"));
  EXPECT_THAT(warnings_, Contains(HasSubstr("turned away 127.0.0.1: it proves by munge")));
}

TEST_F(RoundsByMunge, ANodeWithATokenTakesNoLeaderWithMunge) {
  lead_as("ann");
  RoundClientOptions with_token = towards(port_);
  with_token.proof.token = "secret";
  EXPECT_THAT(refusal_of(add(with_token, hello(2))), HasSubstr("it has no token"));
}

TEST_F(RoundsByMunge, ANodeWithMungeIsToldThatTheLeaderAsksForAToken) {
  RoundServerOptions options;
  options.proof.token = "secret";
  lead(2, options);
  EXPECT_THAT(refusal_of(add_as("ann")), HasSubstr("this job asks for a token"));
}

TEST_F(RoundsByMunge, ABrokenMungedOfTheLeaderIsToldToTheNode) {
  lead_as("ann", "munge: Socket communication error");
  EXPECT_THAT(refusal_of(add_as("ann")),
              HasSubstr("does not accept this node's credential: munge: Socket"));
}

TEST_F(RoundsByMunge, OneCredentialIsReadAfterTheOther) {
  lead_as("ann");
  std::vector<Node*> strangers;
  for (int i = 0; i < 50; ++i) strangers.push_back(&add_as("bob"));
  Node& friendly = add_as("ann");
  ASSERT_TRUE(run_until([&] {
    return friendly.last<WaitForNodes>() && std::ranges::all_of(strangers, [](Node* each) {
             return each->last<Refused>() != nullptr;
           });
  }));
}

TEST_F(Rounds, AnEndpointThatIsNoLeaderIsSaidToBeNone) {
  boost::asio::ip::tcp::acceptor http(io_, {boost::asio::ip::address_v4::loopback(), 0});
  boost::asio::ip::tcp::socket client(io_);
  http.async_accept(client, [&](boost::system::error_code) {
    boost::asio::write(client,
                       boost::asio::buffer(std::string("HTTP/1.1 400 Bad Request\r\n\r\n")));
  });
  Node& node = add(towards(http.local_endpoint().port()), hello(1));
  ASSERT_TRUE(run_until([&] { return node.last<Refused>() != nullptr; }));
  EXPECT_THAT(node.last<Refused>()->sentence, HasSubstr("no ddprun leader"));
}

TEST_F(Rounds, AnotherVersionIsToldSoOnBothEnds) {
  lead(1);
  const auto newer = connect();
  const std::string says = "speaks version " + std::to_string(wire::kRoundProtocolVersion + 1);
  wire::Opening opening;
  opening.version = wire::kRoundProtocolVersion + 1;
  boost::asio::write(*newer, boost::asio::buffer(wire::encode(opening)));
  const std::string answer = all_from(*newer);
  ASSERT_THAT(answer, SizeIs(wire::kOpeningBytes)) << "for it to see our version";
  EXPECT_EQ(wire::decode_opening(answer)->version, wire::kRoundProtocolVersion);
  EXPECT_THAT(warnings_, Contains(HasSubstr(says)));

  boost::asio::ip::tcp::acceptor newer_leader(io_, {boost::asio::ip::address_v4::loopback(), 0});
  boost::asio::ip::tcp::socket client(io_);
  newer_leader.async_accept(client, [&](boost::system::error_code) {
    boost::asio::write(client, boost::asio::buffer(wire::encode(opening)));
  });
  Node& node = add(towards(newer_leader.local_endpoint().port()), hello(1));
  ASSERT_TRUE(run_until([&] { return node.last<Refused>() != nullptr; }));
  EXPECT_THAT(node.last<Refused>()->sentence, HasSubstr(says));
}

TEST_F(Rounds, NobodyAtTheEndpointIsALeaderThatWasNeverThere) {
  RoundClientOptions impatient = towards(1);
  impatient.join_timeout = 200ms;
  Node& node = add(impatient, hello(1));
  ASSERT_TRUE(run_until([&] { return node.gone.has_value(); }));
  EXPECT_FALSE(node.gone->was_reached);
  EXPECT_THAT(node.gone->sentence, HasSubstr("127.0.0.1: Connection refused"));
}

TEST_F(Rounds, ANameThatNobodyKnowsIsWaitedForUntilTheTimeLimit) {
  RoundClientOptions impatient = towards(1);
  impatient.leader.host = "no-such-host.invalid";
  impatient.join_timeout = 200ms;
  Node& node = add(impatient, hello(1));
  ASSERT_TRUE(run_until([&] { return node.gone.has_value(); }));
  EXPECT_THAT(node.gone->sentence, HasSubstr("its name is not known"));
}

// ---- strangers

class Strangers : public Rounds, public ::testing::WithParamInterface<std::string> {};

TEST_P(Strangers, AreTurnedAwayAndNobodyElseNotices) {
  lead(2);
  run_round(towards(port_), towards(port_));
  const auto stranger = connect();
  boost::asio::write(*stranger, boost::asio::buffer(GetParam()));
  all_from(*stranger);
  EXPECT_THAT(warnings_, SizeIs(1));
  nodes_[0].client->tell(SomeWorkersDone{Round{0}});
  EXPECT_TRUE(run_until([&] { return nodes_[0].client->may_exit(); }));
  EXPECT_TRUE(server_->core().is_running());
}

std::string after_opening(const std::string& bytes) {
  return wire::encode(wire::Opening{}) + bytes;
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Strangers,
    ::testing::Values("GET / HTTP/1.1\r\n\r\n", "D" + std::string(60, 'x'),
                      std::string(100, '\x16'), after_opening(std::string("\xff\xff\xff\xff", 4)),
                      after_opening(std::string("\0\0\0\0", 4)),
                      after_opening(std::string("\x05\0\0\0\x63zzzz", 9)),
                      after_opening(wire::encode(wire::AgentFrame(wire::Heartbeat{7})))));

TEST_F(Rounds, ANodeThatBreaksTheProtocolIsLostAndTheOthersGoOn) {
  lead(2);
  run_round(towards(port_), towards(port_));
  const auto breaker = connect();
  wire::Connect say;
  say.session = 99;
  say.hello = hello(2);
  boost::asio::write(
      *breaker, boost::asio::buffer(after_opening(
                    wire::encode(wire::AgentFrame(say)) +
                    wire::encode(wire::AgentFrame(wire::Message<ToLeader>{5, 0, Goodbye{}})))));
  all_from(*breaker);
  EXPECT_THAT(warnings_, Contains(HasSubstr("breaks the protocol")));
  EXPECT_TRUE(server_->core().is_running());
}

TEST_F(Rounds, AClientOfTheStoreIsHandedOnWithWhatItSaid) {
  lead(2);
  const auto client = connect();
  const std::string validate("\0\xce\xf7\x85\x3c", 5);
  boost::asio::write(*client, boost::asio::buffer(validate));
  ASSERT_TRUE(run_until([&] { return !store_clients_.empty(); }));
  EXPECT_EQ(store_clients_[0].second, validate);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Rounds, TheEndOfTheLeaderIsNoticed) {
  lead(2);
  run_round(towards(port_), towards(port_));
  server_.reset();
  ASSERT_TRUE(run_until([&] { return nodes_[0].gone && nodes_[1].gone; }));
  EXPECT_TRUE(nodes_[0].gone->was_reached);
}

// ---- who leads

class FindLeader : public ::testing::Test {
 protected:
  Result<FoundLeader> find(Where where, const Endpoint& endpoint) {
    LeaderSpec spec;
    spec.where = where;
    spec.endpoint = endpoint;
    spec.join_timeout = 300ms;
    std::optional<Result<FoundLeader>> found;
    LeaderEvents events;
    events.on_event = [](const LeaderEvent&) {};
    const auto search = find_leader(io_, spec, {}, events,
                                    [&](Result<FoundLeader> result) { found = std::move(result); });
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!found && io_.run_one_until(until) > 0) {
    }
    if (!found) return fail(ErrorCode::kTimeout, "the search does not end");
    return *std::move(found);
  }
  // Nobody else gets it meanwhile.
  std::uint16_t free_port() {
    reserved_ = *reserve_port({.address = "::"});
    return reserved_.bound.port;
  }

  boost::asio::io_context io_{1};
  Listener reserved_;
};

TEST_F(FindLeader, IsHereWhereTheEndpointIsOursAndFree) {
  for (const std::string host : {"127.0.0.1", "localhost", "::1", "127.0.0.77"}) {
    const auto found = find(Where::kToBeFound, {host, free_port()});
    ASSERT_TRUE(found) << host << ": " << found.error().to_string();
    EXPECT_TRUE((*found)->is_here()) << host;
  }
}

TEST_F(FindLeader, IsElsewhereWhereSomebodyListensAlready) {
  const auto other = open_listener({});
  const auto found = find(Where::kToBeFound, {"127.0.0.1", other->bound.port});
  ASSERT_TRUE(found);
  EXPECT_FALSE((*found)->is_here());
}

TEST_F(FindLeader, IsElsewhereWhereTheAddressIsNotOurs) {
  const auto found = find(Where::kToBeFound, {"192.0.2.1", 29400});
  ASSERT_TRUE(found);
  EXPECT_FALSE((*found)->is_here());
}

TEST_F(FindLeader, WhoIsToLeadAndCannotSaysWhy) {
  const auto other = open_listener({});
  const auto found = find(Where::kHere, {"127.0.0.1", other->bound.port});
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("the port is taken"));
}

TEST_F(FindLeader, WhoIsToLeadNeedsNotKnowHowOthersCallIt) {
  const auto found = find(Where::kHere, {"no-such-host.invalid", free_port()});
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_TRUE((*found)->is_here());
}

// Both of its timers are ready in one turn of the loop: the one that ends it, and the one that looks
// the name up again.
TEST_F(FindLeader, ASearchThatHasEndedIsOver) {
  LeaderSpec spec;
  spec.where = Where::kToBeFound;
  spec.endpoint = {"no-such-host.invalid", 1};
  spec.join_timeout = 1500ms;
  int notices = 0, calls = 0;
  LeaderEvents events;
  events.on_event = [&](const LeaderEvent& event) {
    notices += std::holds_alternative<LeaderNotice>(event) ? 1 : 0;
  };
  const auto began = std::chrono::steady_clock::now();
  const auto search =
      find_leader(io_, spec, {}, events, [&](const Result<FoundLeader>&) { ++calls; });
  // The second notice is the end; the loop stands still until it and the next look-up are due.
  while (notices == 0) io_.run_one_until(began + 20s);
  std::this_thread::sleep_until(began + 1500ms + 1100ms);
  io_.restart();
  io_.run_for(5s);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(io_.stopped()) << "it still looks the name up";
}

TEST_F(FindLeader, ANameThatDoesNotBecomeKnownEndsTheSearch) {
  const auto found = find(Where::kToBeFound, {"no-such-host.invalid", 29400});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(found.error().message, HasSubstr("its name is not known"));
}

}  // namespace
}  // namespace ddprun::rdzv
