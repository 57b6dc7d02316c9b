// Hostile clients of the store of a job that restarts repeatedly: every restart succeeds, and the
// clients of each round are served in time.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rendezvous/store_client/store_client.h"
#include "rendezvous/store_wire/store_encoder.h"
#include "tests/support/job.h"
#include "tests/unit/rendezvous/store/raw_client.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using rdzv::StoreClient;
using rdzv::testing::RawClient;
using rdzv::wire::Query;
using rdzv::wire::RequestEncoder;
using Clock = std::chrono::steady_clock;

constexpr int kWorkers = 2;
constexpr int kRestarts = 8;
// Outside the range that the kernel gives to others, so that no attack ever meets a stranger, and
// so short that the next round's store is on the port under attack.
constexpr char kPorts[] = "--master-port-range=21730:21739";
// Generous: the machine may be busy with other tests, and the attacks keep both its cores busy.
// What they exclude is a store or an agent that stands still for a client.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::chrono::milliseconds kSlowestRequest{10'000};
#else
constexpr std::chrono::milliseconds kSlowestRequest{3000};
#endif
constexpr std::chrono::milliseconds kSlowestRestart{10'000};

// Attacks whatever store is at the port given last, until it goes.
class Attackers {
 public:
  Attackers() {
    for (const auto& attack : attacks()) {
      threads_.emplace_back([this, attack] {
        while (!is_over_) {
          if (port_ == 0) {
            port_.wait(0);
          } else {
            attack(port_);
            // Sees its connections accepted before it makes more: else the kernel's queue overflows
            // on a busy machine, and what is measured is how it sends SYN again.
            validated(port_).read_all_so_far();
            ++attacks_made_;
          }
        }
      });
    }
  }
  ~Attackers() {
    is_over_ = true;
    aim_at(1);
    for (auto& thread : threads_) thread.join();
  }

  void aim_at(std::uint16_t port) {
    port_ = port;
    port_.notify_all();
  }
  int attacks_made() const { return attacks_made_; }

 private:
  using Attack = std::function<void(std::uint16_t port)>;

  static RawClient validated(std::uint16_t port) {
    RawClient client(port);
    client.send(std::string_view("\x00\xce\xf7\x85\x3c", 5));
    return client;
  }

  static std::vector<Attack> attacks() {
    const std::string half_a_set = RequestEncoder(Query::kSet)
                                       .key("half")
                                       .bytes(std::string(100'000, 'x'))
                                       .str()
                                       .substr(0, 60'000);
    return {
        // Half a request each, then silence, then all of them go.
        [half_a_set](std::uint16_t port) {
          std::vector<RawClient> silent;
          for (int i = 0; i < 100; ++i) {
            silent.push_back(validated(port));
            silent.back().send(half_a_set);
          }
        },
        // Other protocols, impossible lengths, numbers that are none.
        [](std::uint16_t port) {
          RawClient(port).send("GET / HTTP/1.1\r\n\r\n");
          RawClient(port).send(std::string_view("\x16\x03\x01\x02\x00\x01\x00", 7));
          validated(port).send("\x01" + std::string(8, '\xff'));
          validated(port).send(RequestEncoder(Query::kSet).key("text").bytes("abc").str() +
                               RequestEncoder(Query::kAdd).key("text").number(1LL).str());
        },
        // Connects and resets, in the midst of a wait too.
        [](std::uint16_t port) {
          for (int i = 0; i < 100; ++i) {
            RawClient client = i % 2 == 0 ? RawClient(port) : validated(port);
            const linger reset{1, 0};
            ::setsockopt(client.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
            const std::vector<std::string> never{"never"};
            if (i % 2 == 1) client.send(RequestEncoder(Query::kWait).keys(never).str());
          }
        },
        // Asks for megabytes and reads none.
        [](std::uint16_t port) {
          RawClient deaf = validated(port);
          bool is_served =
              deaf.send(RequestEncoder(Query::kSet).key("v").bytes(std::string(30'000, 'x')).str());
          std::string gets;
          for (int i = 0; i < 100; ++i) gets += RequestEncoder(Query::kGet).key("v").str();
          for (int i = 0; i < 30 && is_served; ++i) is_served = deaf.send(gets);
        },
    };
  }

  std::atomic<bool> is_over_ = false;
  std::atomic<std::uint16_t> port_ = 0;
  std::atomic<int> attacks_made_ = 0;
  std::vector<std::thread> threads_;
};

// MASTER_PORT of a round, from the job's events; 0 before it has started.
std::uint16_t port_of_round(const std::string& events, int round) {
  std::istringstream stream(read_file(events));
  for (std::string line; std::getline(stream, line);) {
    if (stream.eof()) break;  // still being written
    const auto event = boost::json::parse(line).as_object();
    if (event.at("event") == "round_started" && event.at("round") == round)
      return static_cast<std::uint16_t>(event.at("master_port").as_int64());
  }
  return 0;
}

class Stopwatch {
 public:
  std::chrono::milliseconds elapsed() const {
    return std::chrono::ceil<std::chrono::milliseconds>(Clock::now() - start_);
  }

 private:
  Clock::time_point start_ = Clock::now();
};

// What the workers of a round do with its store: they come, meet, exchange and leave; `visit` times
// before. The longest that one request took; fails the test when one was refused.
std::chrono::milliseconds use_store(std::uint16_t port, int visit) {
  constexpr int kExchanges = 20;
  std::chrono::milliseconds slowest{0};
  const auto timed = [&slowest](auto&& request) {
    const Stopwatch watch;
    EXPECT_TRUE(request());
    slowest = std::max(slowest, watch.elapsed());
  };
  const rdzv::StoreClientOptions options{
      .server = {"127.0.0.1", port}, .connect_timeout = 20s, .timeout = 20s};
  std::vector<std::unique_ptr<StoreClient>> clients;
  for (int rank = 0; rank < kWorkers; ++rank) {
    timed([&] {
      auto client = StoreClient::connect(options);
      if (client) clients.push_back(std::move(*client));
      return client.has_value();
    });
  }
  if (clients.size() < kWorkers) return slowest;
  for (int i = 0; i < kExchanges; ++i) {
    for (const auto& client : clients) {
      timed([&] { return client->add("arrived", 1).has_value(); });
    }
    const std::string key = "address/" + std::to_string(i);
    timed([&] { return clients[0]->set(key, "here").has_value(); });
    timed([&] { return clients[1]->get(key).value_or("") == "here"; });
  }
  EXPECT_EQ(clients[0]->add("arrived", 0).value_or(0), (visit + 1) * kExchanges * kWorkers)
      << "not a store of this round's own";
  return slowest;
}

TEST(HostileJob, RestartsInTimeWhileItsStoreIsUnderAttack) {
  const TemporaryTree folder;
  const std::string events = folder / "events";
  Job job(ddprun({"--nproc-per-node=" + std::to_string(kWorkers), kPorts, "--events=" + events,
                  "--max-restarts=" + std::to_string(kRestarts)},
                 worker({"stamp", folder.path(), "until", folder / "go.{round}", "on-round",
                         std::to_string(kRestarts), "exit", "0", "exit", "3"})));
  std::chrono::milliseconds slowest_request{0};
  std::chrono::milliseconds slowest_restart{0};
  {
    Attackers attackers;
    for (int round = 0; round <= kRestarts; ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      const Stopwatch watch;
      std::uint16_t port = 0;
      ASSERT_TRUE(job.reaches([&] {
        return (port = port_of_round(events, round)) != 0 &&
               stamps(folder.path(), round).size() == kWorkers;
      })) << job.err();
      if (round > 0) slowest_restart = std::max(slowest_restart, watch.elapsed());
      attackers.aim_at(port);
      const int before = attackers.attacks_made();
      slowest_request = std::max(slowest_request, use_store(port, 0));
      ASSERT_TRUE(job.reaches([&] { return attackers.attacks_made() > before + 4; }));
      slowest_request = std::max(slowest_request, use_store(port, 1));
      write_file(folder / ("go." + std::to_string(round)), "");
    }
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
  }
  EXPECT_LT(slowest_request, kSlowestRequest);
  EXPECT_LT(slowest_restart, kSlowestRestart);
  RecordProperty("slowest_request_ms", static_cast<int>(slowest_request.count()));
  RecordProperty("slowest_restart_ms", static_cast<int>(slowest_restart.count()));
}

}  // namespace
}  // namespace ddprun::test
