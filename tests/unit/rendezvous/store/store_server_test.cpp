#include "rendezvous/store/store_server.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "rendezvous/common/scheduling.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/net/socket_address.h"
#include "rendezvous/store_wire/store_protocol.h"
#include "tests/unit/rendezvous/store/golden.h"
#include "tests/unit/rendezvous/store/raw_client.h"

namespace ddprun::rdzv::testing {
namespace {

std::unique_ptr<StoreServer> start(StoreServerOptions options = {}) {
  if (!options.log) options.log = [](std::string_view) {};
  auto server = StoreServer::start(options);
  EXPECT_TRUE(server) << (server ? "" : server.error().to_string());
  return server ? std::move(*server) : nullptr;
}

std::string bytes_field(std::string_view bytes) {
  std::string field;
  wire::append<std::uint64_t>(field, bytes.size());
  return field.append(bytes);
}

std::string set_request(std::string_view key, std::string_view value) {
  return '\1' + bytes_field(key) + bytes_field(value);
}

std::string get_request(std::string_view key) { return '\3' + bytes_field(key); }

int open_descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

class StoreServerGolden : public ::testing::TestWithParam<GoldenTranscript> {};

// A step that expects silence is proved silent by a PING behind it, not by waiting.
TEST_P(StoreServerGolden, AnswersOverSockets) {
  const GoldenTranscript& transcript = GetParam();
  const auto server = start();
  RawClient setup(server->port());
  setup.send(kHandshake);
  for (const auto& request : transcript.setup) setup.send(request);
  setup.read_all_so_far();

  std::map<char, std::unique_ptr<RawClient>> clients;
  for (std::size_t i = 0; i < transcript.steps.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i));
    const GoldenStep& step = transcript.steps[i];
    auto& client = clients[step.connection];
    if (!client) {
      client = std::make_unique<RawClient>(server->port());
      if (transcript.starts_validated) client->send(kHandshake);
    }
    if (step.client_closes) {
      client->close();
      continue;
    }
    client->send(step.sent);
    if (step.shuts_down) client->shut_down();
    if (step.closes) {
      ASSERT_EQ(to_hex(client->read_to_end().value_or("(still open)")), to_hex(step.expected));
    } else if (!transcript.starts_validated && i + 1 < transcript.steps.size()) {
      ASSERT_EQ(to_hex(client->read(step.expected.size())), to_hex(step.expected));
    } else {
      const std::string first = client->read(step.expected.size());
      ASSERT_EQ(to_hex(first + client->read_all_so_far()), to_hex(step.expected));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transcripts, StoreServerGolden, ::testing::ValuesIn(load_golden()),
                         [](const auto& test) { return test.param.name; });

TEST(StoreServer, IsListeningWhenStartReturns) {
  const auto server = start();
  EXPECT_NE(server->port(), 0);
  EXPECT_EQ(server->bound().host, "127.0.0.1");
  RawClient client(server->port());
  ASSERT_TRUE(client.is_connected());
  client.send(kHandshake);
  EXPECT_EQ(client.read_all_so_far(), "");
}

TEST(StoreServer, ServesBothFamiliesOnTheWildcard) {
  const auto server = start({.address = "::"});
  RawClient client(server->port());
  client.send(kHandshake);
  EXPECT_EQ(client.read_all_so_far(), "");
}

TEST(StoreServer, SaysWhichPortIsTaken) {
  const auto server = start();
  const auto second = StoreServer::start({.port = server->port()});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kAddressInUse);
  EXPECT_NE(second.error().message.find("127.0.0.1:" + std::to_string(server->port())),
            std::string::npos);
}

TEST(StoreServer, TakesTheFirstFreePortOfARange) {
  const auto server = start();
  const std::uint16_t taken = server->port();
  if (taken == 65535) GTEST_SKIP() << "the kernel chose the last port";
  const auto last = static_cast<std::uint16_t>(std::min(taken + 50, 65535));
  const auto second = start({.port_range = PortRange{taken, last}});
  EXPECT_GT(second->port(), taken);
  const auto third = StoreServer::start({.port_range = PortRange{taken, taken}});
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, ErrorCode::kAddressInUse);
}

TEST(StoreServer, RefusesANameForAnAddress) {
  const auto server = StoreServer::start({.address = "localhost"});
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, ErrorCode::kInvalidArgument);
}

TEST(StoreServer, TakesOverABoundSocket) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const auto server = start({.listen_fd = fd});
  RawClient client(server->port());
  client.send(kHandshake);
  EXPECT_EQ(client.read_all_so_far(), "");
}

TEST(StoreServer, AdoptsAConnectionThatAnotherAccepted) {
  const auto server = start({.listens = false});
  EXPECT_EQ(server->port(), 0);
  const auto listener = open_listener({});
  ASSERT_TRUE(listener);
  RawClient client(listener->bound.port);
  client.send(std::string(kHandshake) + set_request("/k", "v"));
  pollfd ready{listener->socket.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 10'000), 1);
  UniqueFd connection(::accept(listener->socket.get(), nullptr, nullptr));
  char first;  // what a port of two protocols has to look at
  ASSERT_EQ(::recv(connection.get(), &first, 1, 0), 1);
  server->adopt(std::move(connection), std::string(1, first));
  client.send(get_request("/k"));
  EXPECT_EQ(client.read(9), bytes_field("v"));
}

UniqueFd accepted(const Listener& listener) {
  pollfd ready{listener.socket.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 10'000), 1);
  return UniqueFd(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

// Multi-node static: MASTER_PORT is the user's and stays, the store behind it is another.
TEST(StoreServer, EveryRoundIsEmptyAlsoBehindAPortThatStays) {
  const auto listener = open_listener({});
  ASSERT_TRUE(listener);
  const StoreServerOptions options{.listens = false};

  auto first_round = start(options);
  RawClient old_worker(listener->bound.port);
  first_round->adopt(accepted(*listener), "");
  old_worker.send(std::string(kHandshake) + set_request("/k", "old") + get_request("/k"));
  EXPECT_EQ(old_worker.read(11), bytes_field("old"));
  first_round.reset();
  EXPECT_EQ(old_worker.read_to_end(), "") << "its connection outlived its round";

  const auto second_round = start(options);
  RawClient worker(listener->bound.port);
  second_round->adopt(accepted(*listener), "");
  worker.send(std::string(kHandshake) + get_request("/k"));
  EXPECT_EQ(worker.read(8), bytes_field(""));
}

TEST(StoreServer, EndsAllConnectionsAndFreesItsPortWithItself) {
  const int before = open_descriptors();
  auto server = start();
  const std::uint16_t port = server->port();
  RawClient client(port);
  client.send(kHandshake);
  EXPECT_EQ(client.read_all_so_far(), "");
  server.reset();
  EXPECT_EQ(client.read_to_end(), "");
  EXPECT_FALSE(RawClient(port).is_connected());
  client.close();
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(start({.port = port})->port(), port);  // at once: no TIME_WAIT in the way
}

// The clients are another process's, so that both sides find descriptors for them.
double cpu_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

TEST(StoreServer, StopsAtOnceWithTenThousandClients) {
  constexpr int kClients = 10'000;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < kClients + 200)
    GTEST_SKIP() << "needs more open files than " << files.rlim_max;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  auto server = start();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t clients = ::fork();
  if (clients == 0) {
    for (int fd = 3; fd < ready[1]; ++fd) ::close(fd);  // the server's, which must not live on here
    std::vector<RawClient> all;
    for (int i = 0; i < kClients; ++i) {
      all.emplace_back(server->port());
      all.back().send(kHandshake);
    }
    all.back().read_all_so_far();
    static_cast<void>(!::write(ready[1], "x", 1));
    for (auto& client : all) {
      if (client.read_to_end() != "") ::_exit(1);
    }
    ::_exit(0);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto port = server->port();
  const double before = cpu_ms();
  server.reset();
  const double took = cpu_ms() - before;
  EXPECT_FALSE(RawClient(port).is_connected());
  int status = 0;
  ::waitpid(clients, &status, 0);
  EXPECT_EQ(status, 0) << "a client was not told";
  ::close(ready[0]);
  ::close(ready[1]);
  // Of CPU time: the clock on the wall also counts who else wants the machine.
  std::printf("stopping took %.1f ms of CPU\n", took);
  EXPECT_LT(took, 100);  // 10 on a machine that does nothing else
}

bool comes_true(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return condition();
}

TEST(StoreServer, SaysWhichClientWaitsForWhichKeySinceWhen) {
  const auto begun = std::chrono::steady_clock::now();
  const auto server = start();
  RawClient setup(server->port()), other(server->port());
  ASSERT_TRUE(setup.send(kHandshake));
  ASSERT_TRUE(other.send(std::string(kHandshake) + set_request("/here", "1")));
  EXPECT_TRUE(server->waits().empty());
  std::string request(1, static_cast<char>(wire::Query::kWait));
  wire::append<std::uint64_t>(request, 2);
  ASSERT_TRUE(setup.send(request + bytes_field("/here") + bytes_field("/rank_2")));
  ASSERT_TRUE(comes_true([&] { return server->waits().size() == 1; }));
  const StoreWait wait = server->waits().at(0);
  SocketAddress own;
  ASSERT_EQ(::getsockname(setup.fd(), &own.any, &own.size), 0);
  EXPECT_EQ(wait.client, (Endpoint{"127.0.0.1", own.port()}));
  EXPECT_EQ(wait.key, "/rank_2");
  EXPECT_GE(wait.since, begun);
  EXPECT_LE(wait.since, std::chrono::steady_clock::now());
  ASSERT_TRUE(other.send(set_request("/rank_2", "1")));
  EXPECT_TRUE(comes_true([&] { return server->waits().empty(); }));
}

TEST(StoreServer, CarriesLargeValuesBothWays) {
  const auto server = start();
  RawClient client(server->port());
  client.send(kHandshake);
  for (const std::size_t size :
       {limits::kDetachedValueBytes - 1, limits::kDetachedValueBytes, std::size_t{300'000},
        static_cast<std::size_t>(limits::kMaxValueBytes)}) {
    std::string value(size, 'x');
    for (std::size_t i = 0; i < size; i += 1000) value[i] = static_cast<char>(i / 1000);
    ASSERT_TRUE(client.send(set_request("/big", value) + get_request("/big")));
    EXPECT_EQ(client.read(8 + size), bytes_field(value)) << size;
  }
}

TEST(StoreServer, AClientThatDoesNotReadWaitsAloneAndLosesNothing) {
  const auto server = start();
  RawClient deaf(server->port());
  deaf.send(kHandshake);
  const std::string value(limits::kMaxValueBytes, 'v');
  ASSERT_TRUE(deaf.send(set_request("/v", value)));
  std::string asking;
  for (int i = 0; i < 16; ++i) asking += get_request("/v");
  deaf.send(asking);
  RawClient good(server->port());
  good.send(kHandshake);
  EXPECT_EQ(good.read_all_so_far(), "");
  for (int i = 0; i < 16; ++i) ASSERT_EQ(deaf.read(8 + value.size()), bytes_field(value)) << i;
  EXPECT_EQ(deaf.read_all_so_far(), "");
}

// 64 MiB of requests, of which every one has another reply; then the half of it closes.
TEST(StoreServer, APipelineThatIsReadAtItsEndGetsEveryReplyInOrder) {
  constexpr int kRequests = 150'000;
  const auto server = start();
  RawClient client(server->port());
  ASSERT_TRUE(client.send(kHandshake));
  std::string requests;
  std::string replies;
  const std::string padding(400, 'p');
  for (int i = 0; i < kRequests; ++i) {
    const std::string value = std::to_string(i) + padding;
    requests += set_request("/v", value) + get_request("/v");
    replies += bytes_field(value);
  }
  ASSERT_GT(requests.size() + replies.size(), std::size_t{64} << 20);
  std::atomic<bool> was_sent = false;
  std::thread sender([&] {
    was_sent = client.send(requests);
    client.shut_down();
  });
  // It reads nothing before the server has stopped to read, too: the store is not asked any more.
  const auto is_paused = [&] {
    const std::uint64_t before = server->stats().requests;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return before > 0 && server->stats().requests == before;
  };
  while (!is_paused()) {
  }
  EXPECT_FALSE(was_sent);
  EXPECT_LT(server->stats().memory_bytes, 2 * limits::kMaxUnreadReplyBytes + (1 << 20));
  const auto heard = client.read_to_end();
  sender.join();
  ASSERT_TRUE(heard.has_value());
  EXPECT_TRUE(*heard == replies) << heard->size() << " of " << replies.size() << " bytes";
  EXPECT_TRUE(was_sent);
}

// A WAIT is answered when it may be, also to a client that is not listened to; it ends with one byte.
TEST(StoreServer, AWaiterThatNeverReadsCostsNoMoreThanItsBound) {
  const auto server = start();
  RawClient deaf(server->port());
  deaf.send(std::string(kHandshake) + set_request("/v", std::string(60'000, 'v')));
  std::string asking = '\6' + std::string("\1\0\0\0\0\0\0\0", 8) + bytes_field("/later");
  for (int i = 0; i < 1'000; ++i) asking += get_request("/v");
  std::thread sender([&] {
    while (deaf.send(asking)) {
    }
  });
  RawClient other(server->port());
  other.send(kHandshake);
  for (int i = 0; i < 2'000; ++i) {
    other.send(set_request("/later", "x") + '\x08' + bytes_field("/later"));
    if (i % 100 == 0) {
      EXPECT_NE(other.read_all_so_far(), "");
      EXPECT_LT(server->stats().memory_bytes, 2 * limits::kMaxUnreadReplyBytes + (1 << 20));
    }
  }
  deaf.shut_down_both();
  sender.join();
}

TEST(StoreServer, SaysOnceWhichLimitKeepsClientsWaiting) {
  std::vector<std::string> lines;
  std::mutex mutex;
  const auto told = [&] {
    const std::scoped_lock lock(mutex);
    return lines;
  };
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 140;
  ::setrlimit(RLIMIT_NOFILE, &few);
  const auto server = start({.log = [&](std::string_view line) {
    const std::scoped_lock lock(mutex);
    lines.emplace_back(line);
  }});
  ::setrlimit(RLIMIT_NOFILE, &before);  // for the clients
  constexpr int kClients = 140 - 64 + 5;
  std::vector<RawClient> clients;
  clients.reserve(kClients);
  for (int i = 0; i < kClients; ++i) clients.emplace_back(server->port());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (told().empty() && std::chrono::steady_clock::now() < deadline) ::usleep(10'000);
  ASSERT_EQ(told().size(), 1U);
  EXPECT_NE(told()[0].find("serves 76 clients"), std::string::npos) << told()[0];
  EXPECT_NE(told()[0].find("the limit on open files is"), std::string::npos) << told()[0];
  EXPECT_NE(told()[0].find("ulimit -n"), std::string::npos) << told()[0];
  // Those that waited are served when others have left.
  for (int i = 0; i < 10; ++i) clients[static_cast<std::size_t>(i)].close();
  clients.back().send(kHandshake);
  EXPECT_EQ(clients.back().read_all_so_far(), "");
  EXPECT_EQ(told().size(), 1U);
}

TEST(StoreServer, RefusesWhatDoesNotFitIntoItsMemory) {
  const auto server = start({.memory_limit = std::size_t{32} << 20});
  RawClient good(server->port());
  good.send(kHandshake);
  good.send(set_request("/k", "kept"));
  const std::string value(limits::kMaxValueBytes, 'v');
  RawClient greedy(server->port());
  greedy.send(kHandshake);
  bool is_closed = false;
  for (int i = 0; i < 8 && !is_closed; ++i) {
    is_closed = !greedy.send(set_request("/v" + std::to_string(i), value)) ||
                greedy.read_all_so_far().find("(") != std::string::npos;
  }
  EXPECT_TRUE(is_closed);
  good.send(get_request("/k"));
  EXPECT_EQ(good.read_all_so_far(), bytes_field("kept"));
}

// In /proc, when it has answered, and so its thread has begun; empty: there is none.
std::filesystem::path thread_of(const StoreServer& server) {
  RawClient client(server.port());
  client.send(kHandshake);
  client.read_all_so_far();
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream name(entry.path() / "comm");
    std::string comm;
    std::getline(name, comm);
    if (comm == "ddprun-store") return entry.path();
  }
  return {};
}

TEST(StoreServer, LeavesSignalsToItsOwner) {
  const auto server = start();
  const auto thread = thread_of(*server);
  ASSERT_FALSE(thread.empty());
  // All signals but the unblockable ones are in its mask.
  std::ifstream status(thread / "status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigBlk:")) continue;
    const auto mask = std::stoull(line.substr(7), nullptr, 16);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGUSR1, SIGTSTP}) {
      EXPECT_TRUE(mask >> (number - 1) & 1) << number;
    }
  }
}

// Ranks that meet there wait for its answers, beside others that compute.
TEST(StoreServer, RunsAsSoonAsItWakes) {
  const auto server = start();
  const auto thread = thread_of(*server);
  ASSERT_FALSE(thread.empty());
  const auto its = scheduling_of(std::stoi(thread.filename()));
  ASSERT_TRUE(its);
  EXPECT_LT(its->runtime_ns, 1'000'000U);  // 0 before Linux 6.12
}

}  // namespace
}  // namespace ddprun::rdzv::testing
