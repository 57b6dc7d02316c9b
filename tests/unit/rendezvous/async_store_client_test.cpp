#include "rendezvous/async_store_client.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "rendezvous/store_server.h"

namespace ddprun::rdzv {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

class AsyncStoreClientTest : public ::testing::Test {
 protected:
  AsyncStoreClientTest() : server_(StoreServer::start({.log = [](std::string_view) {}}).value()) {}

  StoreClientOptions options() const {
    return {.server = {"127.0.0.1", server_->port()}, .connect_timeout = 10s, .timeout = 10s};
  }

  void spawn(asio::awaitable<void> body) {
    asio::co_spawn(io_, std::move(body), [](std::exception_ptr error) {
      if (error) std::rethrow_exception(error);
    });
  }

  asio::io_context io_;
  std::unique_ptr<StoreServer> server_;
};

TEST_F(AsyncStoreClientTest, DoesWhatTheBlockingClientDoes) {
  bool is_done = false;
  spawn([](StoreClientOptions options, bool& done) -> asio::awaitable<void> {
    auto connected = co_await AsyncStoreClient::connect(options);
    auto& store = *connected.value();
    EXPECT_TRUE(co_await store.set("k", "value"));
    EXPECT_EQ((co_await store.get("k")).value(), "value");
    EXPECT_EQ((co_await store.add("n", 5)).value(), 5);
    EXPECT_EQ((co_await store.compare_set("c", "", "first")).value(), "first");
    EXPECT_EQ((co_await store.compare_set("c", "other", "second")).value(), "first");
    EXPECT_TRUE(co_await store.append("c", "!"));
    const std::vector<std::string> keys{"c", "k"}, values{"first!", "value"}, absent{"absent"};
    EXPECT_EQ((co_await store.multi_get(keys)).value(), values);
    EXPECT_TRUE(co_await store.multi_set(keys, values));
    EXPECT_EQ((co_await store.multi_set(keys, absent)).error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE((co_await store.check(keys)).value());
    EXPECT_FALSE((co_await store.check(absent)).value());
    EXPECT_EQ((co_await store.num_keys()).value(), 3);
    EXPECT_EQ((co_await store.list_keys()).value().size(), 3u);
    EXPECT_TRUE((co_await store.delete_key("k")).value());
    EXPECT_FALSE((co_await store.delete_key("k")).value());
    EXPECT_TRUE(co_await store.queue_push("q", "item"));
    EXPECT_EQ((co_await store.queue_len("q")).value(), 1);
    EXPECT_EQ((co_await store.queue_pop("q")).value(), "item");
    EXPECT_FALSE((co_await store.try_queue_pop("q")).value().has_value());
    EXPECT_TRUE(co_await store.barrier("b", 1));
    EXPECT_TRUE(co_await store.ping());
    const std::string large(8 << 20, 'x');
    EXPECT_TRUE(co_await store.set("large", large));
    EXPECT_EQ((co_await store.get("large")).value(), large);
    done = true;
  }(options(), is_done));
  io_.run();
  EXPECT_TRUE(is_done);
}

TEST_F(AsyncStoreClientTest, WaitsWithoutHoldingUpItsThread) {
  std::string seen;
  spawn([](StoreClientOptions options, std::string& value) -> asio::awaitable<void> {
    auto store = co_await AsyncStoreClient::connect(options);
    value = (co_await (*store)->get("late", 10s)).value();
  }(options(), seen));
  spawn([](StoreClientOptions options) -> asio::awaitable<void> {
    auto store = co_await AsyncStoreClient::connect(options);
    EXPECT_TRUE(co_await (*store)->set("late", "here"));
    EXPECT_TRUE(co_await (*store)->ping());
  }(options()));
  io_.run();
  EXPECT_EQ(seen, "here");
}

TEST_F(AsyncStoreClientTest, StaysUsableWhenTheTimeIsUp) {
  spawn([](StoreClientOptions options) -> asio::awaitable<void> {
    auto connected = co_await AsyncStoreClient::connect(options);
    auto& store = *connected.value();
    EXPECT_TRUE(co_await store.set("there", "1"));
    for (int i = 0; i < 20; ++i) {
      const auto missed = co_await store.get("absent", std::chrono::milliseconds(i % 4));
      EXPECT_EQ(missed.error().code, ErrorCode::kTimeout);
      EXPECT_EQ((co_await store.get("there", 0ms)).value(), "1");
    }
    EXPECT_EQ((co_await store.barrier("b", 2, 10ms)).error().code, ErrorCode::kTimeout);
    EXPECT_EQ((co_await store.queue_pop("q", 10ms)).error().code, ErrorCode::kTimeout);
    EXPECT_TRUE(co_await store.ping());
  }(options()));
  io_.run();
}

TEST_F(AsyncStoreClientTest, EndsACallThatIsUnderWayWhenShutDown) {
  std::optional<ErrorCode> code;
  std::unique_ptr<AsyncStoreClient> store;
  asio::steady_timer waiting(io_, std::chrono::steady_clock::time_point::max());
  spawn([](StoreClientOptions options, std::unique_ptr<AsyncStoreClient>& client,
           asio::steady_timer& timer, std::optional<ErrorCode>& result) -> asio::awaitable<void> {
    client = (co_await AsyncStoreClient::connect(options)).value();
    timer.cancel();
    result = (co_await client->wait(AsyncStoreClient::Keys(1, "never"))).error().code;
  }(options(), store, waiting, code));
  waiting.async_wait(
      [&](boost::system::error_code) { asio::post(io_, [&] { store->shut_down(); }); });
  io_.run();
  EXPECT_EQ(code, ErrorCode::kClosed);
}

TEST_F(AsyncStoreClientTest, SaysSoWhenNothingListensOrNothingAnswers) {
  auto refused = options();
  server_.reset();
  refused.connect_timeout = 30ms;
  asio::ip::tcp::acceptor mute(
      io_, {asio::ip::address_v4::loopback(), 0});  // takes connections, says nothing
  auto unanswered = refused;
  unanswered.server.port = mute.local_endpoint().port();
  spawn([](StoreClientOptions nobody, StoreClientOptions silent) -> asio::awaitable<void> {
    const auto none = co_await AsyncStoreClient::connect(nobody);
    EXPECT_EQ(none.error().code, ErrorCode::kUnavailable) << none.error().to_string();
    EXPECT_NE(none.error().message.find(nobody.server.to_string()), std::string::npos);
    const auto late = co_await AsyncStoreClient::connect(silent);
    EXPECT_EQ(late.error().code, ErrorCode::kTimeout) << late.error().to_string();
  }(refused, unanswered));
  io_.run();
}

}  // namespace
}  // namespace ddprun::rdzv
