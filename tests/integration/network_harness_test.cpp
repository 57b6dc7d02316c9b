// The properties of Network that other tests need: nodes reach each other, cables fail as
// configured, and nothing is left. It uses the test's own sockets, so that no program of ours is
// involved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "rendezvous/net/socket_address.h"
#include "tests/support/network.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;

constexpr std::uint16_t kPort = 7000;

UniqueFd listen_at(const std::string& address) {
  auto where = rdzv::parse_numeric(address).value();
  where.set_port(kPort);
  UniqueFd listener(socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(bind(listener.get(), &where.any, where.size), 0) << std::strerror(errno);
  EXPECT_EQ(listen(listener.get(), 8), 0);
  return listener;
}

UniqueFd connect_to(const std::string& address) {
  auto where = rdzv::parse_numeric(address).value();
  where.set_port(kPort);
  UniqueFd client(socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(client.get(), &where.any, where.size), 0) << std::strerror(errno);
  return client;
}

bool is_readable(const UniqueFd& fd, std::chrono::milliseconds within) {
  pollfd polled{fd.get(), POLLIN, 0};
  return poll(&polled, 1, static_cast<int>(within.count())) == 1;
}

void say(const UniqueFd& fd, const std::string& text) {
  ASSERT_EQ(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}

// What comes next; "" at the end of the connection, the error's name when it broke, "silence" when
// nothing came.
std::string hear(const UniqueFd& fd, std::chrono::milliseconds within = kDeadline) {
  if (!is_readable(fd, within)) return "silence";
  char text[64];
  const ssize_t size = recv(fd.get(), text, sizeof text, 0);
  return size < 0 ? strerrorname_np(errno) : std::string(text, static_cast<std::size_t>(size));
}

class NetworkHarness : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const auto& why = Network::obstacle()) GTEST_SKIP() << *why;
    network_.emplace(2);
    const std::string address = GetParam() ? Network::address6(0) : Network::address(0);
    UniqueFd listener;
    network_->within(0, [&] { listener = listen_at(address); });
    network_->within(1, [&] { client_ = connect_to(address); });
    server_ = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    say(client_, "hello");
    ASSERT_EQ(hear(server_), "hello");
  }

  std::optional<Network> network_;
  UniqueFd client_;  // on node 1
  UniqueFd server_;  // on node 0
};

// What a cut withholds comes after it: TCP sees to that, if nobody has given up.
constexpr auto kLongEnoughToArrive = 300ms;

TEST_P(NetworkHarness, ACutCableIsSilentBothWaysAndBreaksNothing) {
  network_->cut(1);
  say(client_, "out");
  say(server_, "in");
  EXPECT_EQ(hear(server_, kLongEnoughToArrive), "silence");
  EXPECT_EQ(hear(client_, 0ms), "silence");
  network_->join(1);
  EXPECT_EQ(hear(server_), "out");
  EXPECT_EQ(hear(client_), "in");
}

TEST_P(NetworkHarness, ACableCanBeCutInOneDirection) {
  network_->set_cable(1, {.receives = false});
  say(client_, "out");
  say(server_, "in");
  EXPECT_EQ(hear(server_), "out");
  EXPECT_EQ(hear(client_, kLongEnoughToArrive), "silence");
  network_->join(1);
  EXPECT_EQ(hear(client_), "in");
}

TEST_P(NetworkHarness, ACableCanBeSlow) {
  network_->set_cable(1, {.delay = 50ms});
  const auto before = Clock::now();
  say(client_, "there");
  ASSERT_EQ(hear(server_), "there");
  say(server_, "and back");
  ASSERT_EQ(hear(client_), "and back");
  EXPECT_GE(Clock::now() - before, 100ms);
}

TEST_P(NetworkHarness, WhatACableLosesComesAllTheSame) {
  network_->set_cable(1, {.jitter = 1ms, .loss = 0.05});
  const std::string block(50'000, 'x');
  std::thread sender([&] {
    for (int i = 0; i < 20; ++i) say(client_, block);
    shutdown(client_.get(), SHUT_WR);
  });
  std::size_t received = 0;
  for (std::string buffer(65536, '\0'); is_readable(server_, kDeadline);) {
    const ssize_t size = recv(server_.get(), buffer.data(), buffer.size(), 0);
    if (size <= 0) break;
    received += static_cast<std::size_t>(size);
  }
  sender.join();
  EXPECT_EQ(received, 20 * block.size());
}

TEST_P(NetworkHarness, AConnectionCanBeBrokenForBothEnds) {
  std::thread breaker([&] { EXPECT_TRUE(network_->break_connection(1, kPort)); });
  // Which word is on its way when the breaker is ready does not matter.
  EXPECT_TRUE(eventually([&] {
    send(client_.get(), "x", 1, MSG_NOSIGNAL);
    return hear(client_, 1ms) != "silence";
  }));
  breaker.join();
  EXPECT_TRUE(eventually([&] { return hear(server_, 1ms) == "ECONNRESET"; }));
}

INSTANTIATE_TEST_SUITE_P(Over, NetworkHarness, ::testing::Bool(),
                         [](const auto& version) { return version.param ? "IPv6" : "IPv4"; });

TEST(Nodes, HaveTheirOwnNamesAndProgramsOfOursReachEachOtherByThem) {
  if (const auto& why = Network::obstacle()) GTEST_SKIP() << *why;
  Network network(2, /*with_names=*/false);
  Job name({"hostname"}, network.on(1));
  EXPECT_EQ(name.wait(), exited(0));
  EXPECT_EQ(name.out(), "node1\n");

  Job store(ddpctl({"store", "--listen", Network::address(0) + ":7000"}), network.on(0));
  ASSERT_TRUE(store.reaches([&] { return !store.out().empty(); })) << store.err();
  const Command set = ddpctl({"store", "set", "node0:7000", "key", "value"});
  EXPECT_NE(Job(set, network.on(1)).wait(), exited(0)) << "nobody has told it where node0 is";
  network.add_name(0);
  Job known(set, network.on(1));
  EXPECT_EQ(known.wait(), exited(0)) << known.err();
  EXPECT_THAT(network.processes(), Contains(store.pid()));
  store.signal(SIGTERM);
  EXPECT_EQ(store.wait(), exited(0));
  EXPECT_THAT(network.left_over(), IsEmpty());
}

TEST(Nodes, AreClearedAwayWithWhateverRunsThere) {
  if (const auto& why = Network::obstacle()) GTEST_SKIP() << *why;
  pid_t left = 0;
  {
    Network network(1);
    // Neither a child of the test nor known to the Job: it has no environment.
    Job starter({"env", "-i", "setsid", "--fork", "sleep", "1000"}, network.on(0));
    ASSERT_EQ(starter.wait(), exited(0));
    ASSERT_TRUE(eventually([&] { return network.processes().size() == 1; }));
    left = network.processes().front();
  }
  EXPECT_TRUE(eventually([&] { return !process(left) || process(left)->state == 'Z'; }));
}

}  // namespace
}  // namespace ddprun::test
