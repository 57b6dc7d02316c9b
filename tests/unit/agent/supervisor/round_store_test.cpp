// The store of a round: served from the first client on, gone with its round.
#include "agent/supervisor/round_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <filesystem>
#include <future>
#include <string>

#include "rendezvous/common/file_text.h"
#include "rendezvous/store_client/store_client.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr Round kRound{0};

class RoundStoreTest : public ::testing::Test {
 protected:
  using Socket = boost::asio::ip::tcp::socket;

  std::uint16_t open() {
    const StoreResult result = store_.open(kRound, "127.0.0.1");
    EXPECT_EQ(result.error, "");
    return result.port;
  }
  Socket connect_to(std::uint16_t port) {
    Socket socket(io_);
    socket.connect({boost::asio::ip::address_v4::loopback(), port});
    return socket;
  }
  // The store's thread, by its name: a sanitizer has threads of its own.
  static bool has_thread() {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      if (file_text(task.path() / "comm") == "ddprun-store\n") return true;
    }
    return false;
  }
  // What a worker that sets and gets a key sees, while the event loop runs.
  std::string value_over(std::uint16_t port) {
    auto value = std::async(std::launch::async, [port]() -> std::string {
      auto client = rdzv::StoreClient::connect({.server = {"127.0.0.1", port}, .timeout = 10s});
      if (!client) return client.error().to_string();
      if (auto set = (*client)->set("key", "value"); !set) return set.error().to_string();
      auto got = (*client)->get("key");
      return got ? *got : got.error().to_string();
    });
    while (value.wait_for(0s) != std::future_status::ready) io_.run_one_for(1ms);
    return value.get();
  }

  boost::asio::io_context io_;
  Job job_;
  RoundStore store_{io_, job_, [](std::string_view) {}};
};

TEST_F(RoundStoreTest, StartsItsThreadForTheFirstClient) {
  const std::uint16_t port = open();
  io_.poll();
  EXPECT_FALSE(has_thread());
  ASSERT_TRUE(store_.status());
  EXPECT_EQ(store_.status()->requests, 0U);
  EXPECT_EQ(value_over(port), "value");
  EXPECT_TRUE(has_thread());
  EXPECT_GT(store_.status()->requests, 0U);
}

TEST_F(RoundStoreTest, IsGoneWithItsRoundWhetherAClientCameOrNot) {
  for (const bool has_client : {false, true}) {
    const std::uint16_t port = open();
    if (has_client) {
      EXPECT_EQ(value_over(port), "value");
    }
    store_.close();
    EXPECT_FALSE(store_.status());
    EXPECT_FALSE(has_thread());
    EXPECT_THROW(connect_to(port), boost::system::system_error);
  }
}

TEST_F(RoundStoreTest, DropsTheKeysOfGenerationsBeforeTheLastOne) {
  const std::uint16_t port = open();
  store_.begin_generation(1);  // there is no server yet
  EXPECT_EQ(value_over(port), "value");
  auto client = rdzv::StoreClient::connect({.server = {"127.0.0.1", port}, .timeout = 10s});
  ASSERT_TRUE(client);
  for (const char* name :
       {"ddprun@1/a", "ddprun@2/a", "ddprun@3/a", "ddprun@12", "ddprun@", "ddprun/a"}) {
    EXPECT_TRUE((*client)->set(name, ""));
  }
  store_.begin_generation(3);
  rdzv::StoreClient::Keys left;
  const auto until = std::chrono::steady_clock::now() + 10s;
  do {  // the store's thread does it soon
    left = (*client)->list_keys().value();
  } while (std::ranges::count(left, "ddprun@1/a") > 0 && std::chrono::steady_clock::now() < until);
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("ddprun@2/a", "ddprun@3/a", "ddprun@12",
                                                    "ddprun@", "ddprun/a", "key"));
}

TEST_F(RoundStoreTest, AClientOfAClosedStoreDoesNotStartTheNextOne) {
  const auto client = connect_to(open());
  io_.run_one_for(0ms);  // may have queued the handler of the wait
  store_.close();
  const std::uint16_t next = open();
  io_.poll();
  EXPECT_FALSE(has_thread());
  EXPECT_EQ(value_over(next), "value");
}

}  // namespace
}  // namespace ddprun::agent
