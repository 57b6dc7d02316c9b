#include "rendezvous/store_client/store_client.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "rendezvous/store/store_server.h"
#include "tests/unit/rendezvous/store/raw_client.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;

class StoreClientTest : public ::testing::Test {
 protected:
  StoreClientTest() {
    auto server = StoreServer::start({.log = [](std::string_view) {}});
    EXPECT_TRUE(server);
    server_ = std::move(*server);
  }

  std::unique_ptr<StoreClient> connect(std::chrono::milliseconds timeout = 10s) {
    auto client = StoreClient::connect(
        {.server = {"127.0.0.1", server_->port()}, .connect_timeout = 10s, .timeout = timeout});
    EXPECT_TRUE(client) << (client ? "" : client.error().to_string());
    return client ? std::move(*client) : nullptr;
  }

  std::unique_ptr<StoreServer> server_;
};

TEST_F(StoreClientTest, SetsAndGetsAnyBytes) {
  auto store = connect();
  const std::string bytes("\0\xff\n", 3);
  for (const std::string& value :
       {std::string(), bytes, std::string(100'000, 'x'), std::string(8 << 20, 'y')}) {
    ASSERT_TRUE(store->set(bytes, value));
    EXPECT_EQ(store->get(bytes).value(), value);
  }
  EXPECT_TRUE(store->set("", "empty key"));
  EXPECT_EQ(store->get("").value(), "empty key");
}

TEST_F(StoreClientTest, AddsComparesAppendsDeletes) {
  auto store = connect();
  EXPECT_EQ(store->add("n", 5).value(), 5);
  EXPECT_EQ(store->add("n", -7).value(), -2);
  EXPECT_EQ(store->get("n").value(), "-2");
  EXPECT_EQ(store->compare_set("c", "expected", "new").value(), "expected");
  EXPECT_EQ(store->compare_set("c", "", "new").value(), "new");
  EXPECT_EQ(store->compare_set("c", "new", "newer").value(), "newer");
  EXPECT_TRUE(store->append("c", "!"));
  EXPECT_EQ(store->get("c").value(), "newer!");
  EXPECT_TRUE(store->delete_key("c").value());
  EXPECT_FALSE(store->delete_key("c").value());
  EXPECT_FALSE(store->check({"c"}).value());
  EXPECT_TRUE(store->check({"n"}).value());
}

TEST_F(StoreClientTest, HandlesManyKeysAtOnce) {
  auto store = connect();
  StoreClient::Keys keys;
  std::vector<std::string> values;
  for (int i = 0; i < 5000; ++i) {
    keys.push_back("key/" + std::to_string(i));
    values.push_back(std::string(static_cast<std::size_t>(i % 97), 'v'));
  }
  ASSERT_TRUE(store->multi_set(keys, values));
  EXPECT_EQ(store->multi_get(keys).value(), values);
  EXPECT_TRUE(store->check(keys).value());
  EXPECT_EQ(store->count_in().value(), 1);
  EXPECT_EQ(store->num_keys().value(), 5001);
  auto listed = store->list_keys().value();
  std::sort(listed.begin(), listed.end());
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(listed, keys);  // "init/" is no user's key
  EXPECT_TRUE(store->multi_get({}).value().empty());
  EXPECT_TRUE(store->wait({}));
  const auto uneven = store->multi_set({"a"}, {});
  EXPECT_EQ(uneven.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(StoreClientTest, WaitsForAnotherClient) {
  auto waiter = connect();
  auto setter = connect();
  auto waited = std::async(std::launch::async, [&] { return waiter->get("late", 10s); });
  EXPECT_TRUE(setter->set("late", "here"));
  EXPECT_EQ(waited.get().value(), "here");
}

TEST_F(StoreClientTest, NamesKeysAndStoreWhenTheTimeIsUpAndStaysUsable) {
  auto store = connect();
  ASSERT_TRUE(store->set("a", "1"));
  const auto missed = store->wait({"a", "b"}, 20ms);
  ASSERT_FALSE(missed);
  EXPECT_EQ(missed.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(missed.error().to_string(), "not set within 20 ms: 'a', 'b' (store: 127.0.0.1:" +
                                            std::to_string(server_->port()) + ")");
  EXPECT_EQ(store->get("a").value(), "1");
}

TEST_F(StoreClientTest, AsksOnceWithATimeOfZero) {
  auto store = connect();
  ASSERT_TRUE(store->set("a", "1"));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(store->get("a", 0ms).value(), "1");
    EXPECT_EQ(store->get("b", 0ms).error().code, ErrorCode::kTimeout);
  }
}

TEST_F(StoreClientTest, PopsQueuesInOrder) {
  auto store = connect();
  EXPECT_FALSE(store->try_queue_pop("q").value().has_value());
  ASSERT_TRUE(store->queue_push("q", "1"));
  ASSERT_TRUE(store->queue_push("q", ""));
  EXPECT_EQ(store->queue_len("q").value(), 2);
  EXPECT_EQ(store->queue_pop("q").value(), "1");
  EXPECT_EQ(store->try_queue_pop("q").value(), "");
  EXPECT_EQ(store->queue_pop("q", 10ms).error().code, ErrorCode::kTimeout);
}

TEST_F(StoreClientTest, GivesEveryItemToExactlyOneOfManyPoppers) {
  constexpr int kPoppers = 8, kItems = 400;
  std::vector<std::future<int>> poppers;
  for (int i = 0; i < kPoppers; ++i) {
    poppers.push_back(std::async(std::launch::async, [client = connect()] {
      int taken = 0;
      while (client->queue_pop("q").value() != "stop") ++taken;
      return taken;
    }));
  }
  auto pusher = connect();
  for (int i = 0; i < kItems; ++i) ASSERT_TRUE(pusher->queue_push("q", "item"));
  for (int i = 0; i < kPoppers; ++i) ASSERT_TRUE(pusher->queue_push("q", "stop"));
  int taken = 0;
  for (auto& popper : poppers) taken += popper.get();
  EXPECT_EQ(taken, kItems);
}

TEST_F(StoreClientTest, MeetsAtABarrier) {
  auto first = connect();
  auto second = connect();
  auto arrived = std::async(std::launch::async, [&] { return first->barrier("b", 2, 10s); });
  EXPECT_TRUE(second->barrier("b", 2, 10s));
  EXPECT_TRUE(arrived.get());
  const auto alone = first->barrier("c", 2, 20ms);
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().code, ErrorCode::kTimeout);
  EXPECT_TRUE(first->ping());
}

TEST_F(StoreClientTest, ABarrierCountsWhoGaveUpAndLetsLateComersPass) {
  auto first = connect();
  const auto gave_up = first->barrier("b", 2, 10ms);
  ASSERT_FALSE(gave_up);
  EXPECT_EQ(gave_up.error().code, ErrorCode::kTimeout);
  EXPECT_TRUE(connect()->barrier("b", 2, 10s));
  EXPECT_TRUE(first->barrier("b", 2, 10s));
  EXPECT_EQ(first->get("b").value(), "3");
}

TEST_F(StoreClientTest, ABarrierOnATextEndsTheConnection) {
  auto store = connect();
  ASSERT_TRUE(store->set("text", "abc"));
  const auto refused = store->barrier("text", 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kClosed);
}

TEST_F(StoreClientTest, SharesOneConnectionBetweenThreadsAndClonesAnother) {
  auto store = connect();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 500; ++j) EXPECT_TRUE(store->add("n", 1));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store->clone().value()->get("n").value(), "2000");
}

TEST_F(StoreClientTest, SaysSoWhenTheServerIsGone) {
  auto store = connect();
  auto waiting = std::async(std::launch::async,
                            [clone = store->clone().value()] { return clone->wait({"never"}); });
  ASSERT_TRUE(store->ping());
  const std::string where = "127.0.0.1:" + std::to_string(server_->port());
  server_.reset();
  const auto lost = store->add("n", 1);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::kClosed);
  EXPECT_NE(lost.error().message.find(where), std::string::npos) << lost.error().message;
  EXPECT_EQ(store->get("n").error().code, ErrorCode::kClosed);
  EXPECT_EQ(waiting.get().error().code, ErrorCode::kClosed);
}

TEST_F(StoreClientTest, EndsBlockedCallsWhenShutDown) {
  auto store = connect();
  auto waiting = std::async(std::launch::async, [&] { return store->wait({"never"}); });
  store->shut_down();
  EXPECT_EQ(waiting.get().error().code, ErrorCode::kClosed);
}

// A port that is held, on which nobody listens.
struct HeldPort {
  HeldPort() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    socklen_t size = sizeof address;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  UniqueFd socket;
  std::uint16_t port = 0;
};

TEST(StoreClientAgainstOthers, WaitsForAServerThatComesLate) {
  HeldPort held;
  auto connecting = std::async(std::launch::async, [port = held.port] {
    return StoreClient::connect({.server = {"127.0.0.1", port}, .connect_timeout = 10s});
  });
  auto server = StoreServer::start({.listen_fd = held.socket.release()});
  ASSERT_TRUE(server);
  EXPECT_TRUE(connecting.get().value()->ping());
}

TEST(StoreClientAgainstOthers, SaysWhereNothingListens) {
  HeldPort held;
  const auto refused =
      StoreClient::connect({.server = {"127.0.0.1", held.port}, .connect_timeout = 30ms});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(refused.error().message,
            "cannot connect to the store at 127.0.0.1:" + std::to_string(held.port) +
                " within 30 ms: connect: Connection refused");
}

// A listener that accepts and then does what it is told instead of speaking the protocol.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int fd)> serve) {
    socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(socket_.get(), 8), 0);
    socklen_t size = sizeof address;
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, serve = std::move(serve)] {
      for (;;) {
        const UniqueFd client(::accept(socket_.get(), nullptr, nullptr));
        if (!client) return;
        serve(client.get());
      }
    });
  }
  ~FakeServer() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::uint16_t port() const { return port_; }

  static std::string read(int fd, std::size_t count) {
    std::string bytes(count, '\0');
    const ssize_t got = ::recv(fd, bytes.data(), count, MSG_WAITALL);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }

 private:
  UniqueFd socket_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

TEST(StoreClientAgainstOthers, TellsAServerThatIsNoStoreAtOnce) {
  FakeServer http([](int fd) {
    FakeServer::read(fd, 10);
    ::send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
  });
  const auto refused =
      StoreClient::connect({.server = {"127.0.0.1", http.port()}, .connect_timeout = 10s});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kProtocol);
  EXPECT_NE(refused.error().message.find("no store"), std::string::npos);
}

TEST(StoreClientAgainstOthers, DoesNotHangOnAServerThatNeverAnswers) {
  FakeServer mute([](int fd) { FakeServer::read(fd, 1'000'000); });
  const auto refused =
      StoreClient::connect({.server = {"127.0.0.1", mute.port()}, .connect_timeout = 50ms});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kTimeout);
}

TEST(StoreClientAgainstOthers, GivesUpOnAReplyThatDoesNotComeAndStaysDown) {
  FakeServer slow([](int fd) {
    ::send(fd, FakeServer::read(fd, 10).substr(6).data(), 4, MSG_NOSIGNAL);  // PING's echo
    FakeServer::read(fd, 1'000'000);
  });
  auto store = StoreClient::connect(
                   {.server = {"127.0.0.1", slow.port()}, .connect_timeout = 10s, .timeout = 50ms})
                   .value();
  EXPECT_EQ(store->num_keys().error().code, ErrorCode::kTimeout);
  EXPECT_EQ(store->num_keys().error().code, ErrorCode::kTimeout);
}

TEST(StoreClientAgainstOthers, RefusesAReplyOfImpossibleLength) {
  FakeServer liar([](int fd) {
    ::send(fd, FakeServer::read(fd, 10).substr(6).data(), 4, MSG_NOSIGNAL);
    FakeServer::read(fd, 1 + 8 + 2 + 8 + 8);
    ::send(fd, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8, MSG_NOSIGNAL);
    FakeServer::read(fd, 1'000'000);
  });
  auto store =
      StoreClient::connect({.server = {"127.0.0.1", liar.port()}, .connect_timeout = 10s}).value();
  EXPECT_EQ(store->compare_set("k", "", "").error().code, ErrorCode::kProtocol);
}

}  // namespace
}  // namespace ddprun::rdzv
