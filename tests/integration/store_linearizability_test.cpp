// 200,000 operations of 64 concurrent clients on our server, with DDPRUN_TEST_FULL=1 a million, form a linearizable
// history. Stores
// that lose a write, answer a stale read or add twice show that the checker detects errors.
#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <unordered_map>

#include "rendezvous/store/store_server.h"
#include "rendezvous/store_wire/store_encoder.h"
#include "tests/support/linearizability.h"
#include "tests/unit/rendezvous/store/memory_store.h"
#include "tests/unit/rendezvous/store/raw_client.h"

namespace ddprun::rdzv::testing {
namespace {

using wire::Query;
using wire::RequestEncoder;
using Kind = Operation::Kind;

constexpr std::string_view kHandshake("\x00\xce\xf7\x85\x3c", 5);
constexpr std::size_t kClients = 64;
constexpr std::size_t kHotKeys =
    48;  // in use at a time: the search is exponential in the clients on each

// What the clients do and what they see, in the order of one clock.
class Recorder {
 public:
  // `uses`: of a key before the next takes its place.
  Recorder(std::uint64_t seed, std::size_t uses) : random_(seed), uses_(uses) {}

  // The next request of `client`, as bytes.
  std::string call(std::size_t client) {
    const std::uint64_t turn = calls_++ / (kHotKeys * uses_);
    const std::size_t hot = random_() % kHotKeys;
    // Numbers and texts apart: adding to a text closes the connection.
    const bool is_number = hot % 2 == 0;
    const std::string key = "/" + std::to_string(turn) + "/" + std::to_string(hot);
    Operation operation;
    operation.called = ++clock_;
    const std::string fresh =
        is_number ? std::to_string(random_() % 100'000) : std::to_string(calls_) + ";";
    RequestEncoder request(Query::kPing);
    switch (random_() % 8) {
      case 0:
        operation.kind = Kind::kSet;
        operation.value = fresh;
        request = RequestEncoder(Query::kSet).bytes(key).bytes(fresh);
        break;
      case 1:
      case 2:
        operation.kind = is_number ? Kind::kAdd : Kind::kAppend;
        if (is_number) {
          operation.delta = 1;
          request = RequestEncoder(Query::kAdd).bytes(key).number(operation.delta);
        } else {
          operation.value = fresh;
          request = RequestEncoder(Query::kAppend).bytes(key).bytes(fresh);
        }
        break;
      case 3:
      case 4: {
        operation.kind = Kind::kCompareSet;
        operation.value = fresh;
        operation.expected = random_() % 4 == 0 ? "" : last_seen_[key];
        request =
            RequestEncoder(Query::kCompareSet).bytes(key).bytes(operation.expected).bytes(fresh);
        break;
      }
      case 5:
        operation.kind = Kind::kDelete;
        request = RequestEncoder(Query::kDeleteKey).bytes(key);
        break;
      default:
        operation.kind = Kind::kGet;
        request = RequestEncoder(Query::kGet).bytes(key);
    }
    pending_[client].push_back({key, std::move(operation)});
    return request.str();
  }

  bool has_reply(std::size_t client) const {
    const Kind kind = pending_[client].back().operation.kind;
    return kind != Kind::kSet && kind != Kind::kAppend;
  }

  // Whether `bytes` is the whole reply to the client's last request; if so, all that it sent is
  // done.
  bool reply(std::size_t client, std::string_view bytes) {
    Operation& last = pending_[client].back().operation;
    if (bytes.size() < 8) return false;
    if (last.kind == Kind::kAdd || last.kind == Kind::kDelete) {
      last.result = std::to_string(wire::load<std::int64_t>(bytes.data()));
    } else {
      if (bytes.size() < 8 + wire::load<std::uint64_t>(bytes.data())) return false;
      last.result = bytes.substr(8);
    }
    last_seen_[pending_[client].back().key] = last.result;
    ++clock_;
    for (auto& [key, operation] : pending_[client]) {
      operation.returned = clock_;
      histories_[key].push_back(std::move(operation));
    }
    pending_[client].clear();
    return true;
  }

  std::uint64_t calls() const { return calls_; }

  // The first key whose history is impossible.
  std::optional<std::string> impossible() const {
    for (const auto& [key, history] : histories_) {
      if (!is_linearizable(history)) return key;
    }
    return std::nullopt;
  }

 private:
  struct Call {
    std::string key;
    Operation operation;
  };

  std::mt19937_64 random_;
  const std::size_t uses_;
  std::uint64_t clock_ = 0;
  std::uint64_t calls_ = 0;
  std::array<std::vector<Call>, kClients> pending_;
  std::unordered_map<std::string, std::string> last_seen_;
  std::map<std::string, std::vector<Operation>> histories_;
};

TEST(StoreLinearizability, OperationsOf64ClientsAreLinearizable) {
  auto server = StoreServer::start({}).value();
  std::vector<RawClient> clients;
  std::array<std::string, kClients> received;
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  for (std::size_t i = 0; i < kClients; ++i) {
    clients.emplace_back(server->port());
    clients.back().send(kHandshake);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, clients.back().fd(), &event);
  }
  Recorder recorder(/*seed=*/1, /*uses=*/400);
  const std::uint64_t wanted = std::getenv("DDPRUN_TEST_FULL") != nullptr ? 1'000'000 : 200'000;
  // One call after the other until one has a reply; then wait for that.
  const auto go_on = [&](std::size_t client) {
    std::string requests;
    do {
      requests += recorder.call(client);
    } while (!recorder.has_reply(client));
    ASSERT_TRUE(clients[client].send(requests));
  };
  std::size_t running = kClients;
  for (std::size_t i = 0; i < kClients; ++i) go_on(i);
  while (running > 0) {
    std::array<epoll_event, kClients> events;
    const int count = ::epoll_wait(epoll.get(), events.data(), kClients, 20'000);
    ASSERT_GT(count, 0) << "no reply for 20 s";
    for (int i = 0; i < count; ++i) {
      const std::size_t client = events[static_cast<std::size_t>(i)].data.u64;
      char buffer[65536];
      const ssize_t got = ::recv(clients[client].fd(), buffer, sizeof buffer, 0);
      ASSERT_GT(got, 0);
      received[client].append(buffer, static_cast<std::size_t>(got));
      if (!recorder.reply(client, received[client])) continue;
      received[client].clear();
      if (recorder.calls() < wanted) {
        go_on(client);
      } else {
        --running;
      }
    }
  }
  EXPECT_GE(recorder.calls(), wanted);
  EXPECT_EQ(recorder.impossible(), std::nullopt);
}

enum class Fault { kNone, kLostWrite, kStaleRead, kDoubledAdd };

// A store in memory to which requests travel, and from which replies travel, in random time.
std::optional<std::string> impossible_key_of_a_store_with(Fault fault, std::uint64_t seed) {
  constexpr std::uint64_t kOperations = 20'000;
  constexpr std::uint64_t kOneIn = 20;  // requests that the fault can meet
  std::mt19937_64 random(seed);
  Recorder recorder(seed, /*uses=*/40);
  MemoryStore store;
  struct Link {
    ClientId id;
    std::vector<std::string> requests;
    std::string replies;
  };
  std::array<Link, kClients> links;
  std::unordered_map<std::string, std::string> older;  // by GET request: an earlier reply
  for (auto& link : links) {
    link.id = store.connect();
    store.send(link.id, kHandshake);
  }
  const auto serve = [&](Link& link) {
    const std::string request = std::move(link.requests.front());
    link.requests.erase(link.requests.begin());
    const bool is_met = random() % kOneIn == 0;
    if (is_met && fault == Fault::kLostWrite && request[0] == static_cast<char>(Query::kSet))
      return;
    store.send(link.id, request);
    std::string reply = store.take(link.id);
    if (fault == Fault::kDoubledAdd && is_met && request[0] == static_cast<char>(Query::kAdd)) {
      store.send(link.id, request);
      store.take(link.id);
    }
    if (fault == Fault::kStaleRead && request[0] == static_cast<char>(Query::kGet)) {
      std::string& earlier = older[request];
      if (is_met && !earlier.empty()) {
        reply = earlier;
      } else if (random() % 50 == 0) {
        earlier = reply;
      }
    }
    link.replies += reply;
  };
  for (bool is_idle = false; !is_idle;) {
    const std::size_t client = random() % kClients;
    Link& link = links[client];
    if (!link.requests.empty()) {
      serve(link);
    } else if (!link.replies.empty()) {
      EXPECT_TRUE(recorder.reply(client, link.replies));
      link.replies.clear();
    } else if (recorder.calls() < kOperations) {
      do {
        link.requests.push_back(recorder.call(client));
      } while (!recorder.has_reply(client));
    }
    is_idle = recorder.calls() >= kOperations &&
              std::all_of(links.begin(), links.end(), [](const Link& one) {
                return one.requests.empty() && one.replies.empty();
              });
  }
  return recorder.impossible();
}

TEST(StoreLinearizability, TheCheckerAcceptsASoundStore) {
  EXPECT_EQ(impossible_key_of_a_store_with(Fault::kNone, 1), std::nullopt);
}
TEST(StoreLinearizability, TheCheckerNoticesALostWrite) {
  EXPECT_NE(impossible_key_of_a_store_with(Fault::kLostWrite, 2), std::nullopt);
}
TEST(StoreLinearizability, TheCheckerNoticesAStaleRead) {
  EXPECT_NE(impossible_key_of_a_store_with(Fault::kStaleRead, 3), std::nullopt);
}
TEST(StoreLinearizability, TheCheckerNoticesADoubledAdd) {
  EXPECT_NE(impossible_key_of_a_store_with(Fault::kDoubledAdd, 4), std::nullopt);
}

}  // namespace
}  // namespace ddprun::rdzv::testing
