#include "tests/bench/store_load.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "rendezvous/store_wire/store_encoder.h"

namespace ddprun::rdzv::bench {
namespace {

using Clock = std::chrono::steady_clock;
using wire::Query;
using wire::RequestEncoder;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "store_bench: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double server_cpu_us(pid_t pid) {
  double total = 0;
  std::error_code ignored;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", ignored)) {
    std::ifstream file(task.path() / "schedstat");
    double ns = 0;
    if (file >> ns) total += ns / 1000;
  }
  return total;
}

double resident_bytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  double size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4096;
}

UniqueFd open_socket(const Target& target, bool is_blocking) {
  UniqueFd socket(
      ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (is_blocking ? 0 : SOCK_NONBLOCK), 0));
  if (!socket) die("socket");
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // Where BBR is the system's choice its timers cost the generator more than the request does.
  static constexpr char kReno[] = "reno";
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, kReno, sizeof kReno - 1);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(target.port);
  inet_pton(AF_INET, target.host.c_str(), &address.sin_addr);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 &&
      errno != EINPROGRESS) {
    die("connect");
  }
  return socket;
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) die("send");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void read_all(int fd, char* to, std::size_t count) {
  while (count > 0) {
    const ssize_t got = ::recv(fd, to, count, 0);
    if (got <= 0) die("recv");
    to += got;
    count -= static_cast<std::size_t>(got);
  }
}

const std::string& hello() {
  static const std::string bytes = wire::handshake(0x1234);
  return bytes;
}

// A connection that blocks, for the measurements of one client.
struct Client {
  explicit Client(const Target& target) : socket(open_socket(target, /*is_blocking=*/true)) {
    send_all(fd(), hello());
    skip(4);
  }
  int fd() const { return socket.get(); }
  void send(std::string_view bytes) { send_all(fd(), bytes); }
  void skip(std::size_t count) {
    buffer.resize(std::max(buffer.size(), count));
    read_all(fd(), buffer.data(), count);
  }
  void ping() {
    send(RequestEncoder(Query::kPing).number<std::uint32_t>(7).str());
    skip(4);
  }
  UniqueFd socket;
  std::string buffer;
};

std::string wait_request(const std::string& key) {
  return RequestEncoder(Query::kWait).keys(std::vector<std::string>{key}).str();
}

// Many connections on one epoll. It never sleeps: a server whose every reply had to wake a thread
// on this machine would pay for what no client on another machine costs it, and whoever answers
// fastest would pay most.
struct Crowd {
  Crowd() : epoll(::epoll_create1(EPOLL_CLOEXEC)) {}

  void watch(int fd, std::uint32_t index, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u32 = index;
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) die("epoll_ctl");
  }

  template <typename OnEvent>
  void poll(OnEvent&& on_event) {
    std::array<epoll_event, 256> events;
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    int count = 0;
    while (count == 0) {
      count = ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), 0);
      if (count < 0) die("epoll_wait");
      if (Clock::now() > deadline) die("nothing for 30 s");
    }
    for (int i = 0; i < count; ++i) {
      on_event(events[static_cast<std::size_t>(i)].data.u32,
               events[static_cast<std::size_t>(i)].events);
    }
  }
  UniqueFd epoll;
};

std::vector<std::unique_ptr<Client>> connect_many(const Target& target, int count) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < count; ++i) clients.push_back(std::make_unique<Client>(target));
  return clients;
}

// The requests of one loop; each but SET waits for its reply.
struct Loop {
  explicit Loop(int number) {
    const std::string key = "bench/" + std::to_string(number);
    // As PyTorch's client: SET goes out by itself, unanswered; the WAIT that get() begins with
    // follows.
    set = RequestEncoder(Query::kSet).key(key).bytes("0123456789abcdef").str();
    wait = wait_request(key);
    get = RequestEncoder(Query::kGet).key(key).str();
    add = RequestEncoder(Query::kAdd)
              .key("count/" + std::to_string(number))
              .number<std::int64_t>(1)
              .str();
  }
  static constexpr int kReplies = 3;
  void send(int fd) {
    missing = step == 0 ? 1 : step == 1 ? 8 + 16 : 8;
    if (step == 0) {
      send_all(fd, set);
      send_all(fd, wait);
    } else {
      send_all(fd, step == 1 ? get : add);
    }
  }
  std::string set, wait, get, add;
  int step = 0;
  std::size_t missing = 0;
};

// A connection that is being made, one event at a time.
class Greeting {
 public:
  Greeting(const Target& target, Crowd& crowd, std::uint32_t index)
      : socket_(open_socket(target, /*is_blocking=*/false)) {
    say_hello();
    const auto when_connected = is_said_ ? EPOLL_EVENTS{} : EPOLLOUT;
    crowd.watch(socket_.get(), index, EPOLLIN | EPOLLET | when_connected);
  }

  // True when the server has answered.
  bool on_event() {
    if (!is_said_) say_hello();
    char reply[16];
    const ssize_t got = ::recv(socket_.get(), reply, sizeof reply, 0);
    if (got < 0 && errno == EAGAIN) return false;
    if (got != 4) die("handshake");
    return true;
  }

 private:
  // Over loopback the connection is there at once, more often than not.
  void say_hello() {
    const ssize_t sent = ::send(socket_.get(), hello().data(), hello().size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) die("send");
    is_said_ = sent > 0;
  }

  UniqueFd socket_;
  bool is_said_ = false;
};

}  // namespace

double pair_latency_us(const Target& target, int pairs) {
  Client client(target);
  const std::string set = RequestEncoder(Query::kSet).key("pair").bytes("0123456789abcdef").str();
  const std::string wait = wait_request("pair");
  const std::string get = RequestEncoder(Query::kGet).key("pair").str();
  std::vector<double> times;
  for (int i = 0; i < pairs; ++i) {
    const auto start = Clock::now();
    client.send(set);
    client.send(wait);
    client.skip(1);
    client.send(get);
    client.skip(8 + 16);
    times.push_back(us_since(start));
  }
  std::nth_element(times.begin(), times.begin() + pairs / 2, times.end());
  return times[static_cast<std::size_t>(pairs / 2)];
}

Throughput operations(const Target& target, int clients, int in_flight, int requests) {
  const auto connections = connect_many(target, clients);
  std::vector<Loop> loops;
  Crowd crowd;
  for (int i = 0; i < clients; ++i) {
    loops.emplace_back(i);
    crowd.watch(connections[static_cast<std::size_t>(i)]->fd(), static_cast<std::uint32_t>(i),
                EPOLLIN);
  }
  const double cpu_before = server_cpu_us(target.pid);
  const auto start = Clock::now();
  int done = 0;
  int running = 0;
  std::deque<std::size_t> idle;  // longest first
  for (std::size_t i = 0; i < loops.size(); ++i) idle.push_back(i);
  const auto begin = [&](std::size_t i) { loops[i].send(connections[i]->fd()); };
  const auto begin_idle = [&] {
    begin(idle.front());
    idle.pop_front();
  };
  for (; running < in_flight; ++running) begin_idle();
  char buffer[4096];
  while (running > 0) {
    crowd.poll([&](std::uint32_t i, std::uint32_t) {
      Loop& loop = loops[i];
      const ssize_t got = ::recv(connections[i]->fd(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got <= 0) die("recv");
      loop.missing -= static_cast<std::size_t>(got);
      if (loop.missing > 0) return;
      done += loop.step == 0 ? 2 : 1;
      loop.step = (loop.step + 1) % Loop::kReplies;
      if (loop.step > 0) return begin(i);
      if (done >= requests) {
        --running;
      } else {
        idle.push_back(i);
        begin_idle();
      }
    });
  }
  const double wall = us_since(start);
  return {done / wall * 1e6, (server_cpu_us(target.pid) - cpu_before) / done};
}

Throughput handshakes(const Target& target, int at_once, int count) {
  std::vector<std::optional<Greeting>> slots(static_cast<std::size_t>(std::min(at_once, count)));
  Crowd crowd;
  int begun = 0;
  int done = 0;
  const auto begin = [&](std::uint32_t i) {
    slots[i].emplace(target, crowd, i);
    ++begun;
  };
  const double cpu_before = server_cpu_us(target.pid);
  const auto start = Clock::now();
  for (std::uint32_t i = 0; i < slots.size(); ++i) begin(i);
  while (done < count) {
    crowd.poll([&](std::uint32_t i, std::uint32_t) {
      if (!slots[i]->on_event()) return;
      slots[i].reset();
      ++done;
      if (begun < count) begin(i);
    });
  }
  const double wall = us_since(start);
  // The server sees the last ends a little later than we do; one round trip behind them settles it.
  Client(target).ping();
  return {done / wall * 1e6, (server_cpu_us(target.pid) - cpu_before) / done};
}

double release_ms(const Target& target, int waiters) {
  static int round = 0;
  const std::string key = "release/" + std::to_string(target.pid) + "/" + std::to_string(round++);
  const auto connections = connect_many(target, waiters);
  Crowd crowd;
  for (std::size_t i = 0; i < connections.size(); ++i) {
    connections[i]->send(wait_request(key));
    connections[i]->ping();  // the WAIT has been seen
    crowd.watch(connections[i]->fd(), static_cast<std::uint32_t>(i), EPOLLIN);
  }
  Client setter(target);
  const auto start = Clock::now();
  setter.send(RequestEncoder(Query::kSet).key(key).bytes("go").str());
  int left = waiters;
  char byte;
  while (left > 0) {
    crowd.poll([&](std::uint32_t i, std::uint32_t) {
      if (::recv(connections[i]->fd(), &byte, 1, MSG_DONTWAIT) != 1) die("recv");
      --left;
    });
  }
  return us_since(start) / 1000;
}

double connect_all_ms(const Target& target, int count) {
  std::deque<Greeting> greetings;
  Crowd crowd;
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) {
    greetings.emplace_back(target, crowd, static_cast<std::uint32_t>(i));
  }
  int left = count;
  while (left > 0) {
    crowd.poll([&](std::uint32_t i, std::uint32_t) {
      if (greetings[i].on_event()) --left;
    });
  }
  return us_since(start) / 1000;
}

double check_ms(const Target& target, int keys) {
  Client client(target);
  std::vector<std::string> names;
  for (int i = 0; i < keys; ++i) names.push_back("check/" + std::to_string(i));
  // By single SETs: PyTorch's server takes ten seconds for a MULTI_SET of this length.
  std::string sets;
  for (const auto& name : names) sets += RequestEncoder(Query::kSet).key(name).bytes("1").str();
  client.send(sets);
  client.ping();
  const std::string check = RequestEncoder(Query::kCheck).keys(names).str();
  const auto start = Clock::now();
  client.send(check);
  client.skip(1);
  const double time = us_since(start) / 1000;
  if (client.buffer[0] != wire::kReady) die("CHECK of present keys");
  return time;
}

double multi_set_ms(const Target& target, int keys, std::size_t value_bytes) {
  Client client(target);
  RequestEncoder set(Query::kMultiSet);
  set.number<std::uint64_t>(static_cast<std::uint64_t>(keys));
  const std::string value(value_bytes, 'v');
  for (int i = 0; i < keys; ++i)
    set.key("multi/" + std::to_string(value_bytes) + "/" + std::to_string(i)).bytes(value);
  const auto start = Clock::now();
  client.send(set.str());
  client.ping();
  return us_since(start) / 1000;
}

double large_value_mb_per_s(const Target& target, std::size_t bytes, int rounds) {
  Client client(target);
  const std::string value(bytes, 'v');
  const std::string set = RequestEncoder(Query::kSet).key("large").bytes(value).str();
  const std::string wait = wait_request("large");
  const std::string get = RequestEncoder(Query::kGet).key("large").str();
  client.buffer.resize(bytes + 8);
  const auto start = Clock::now();
  for (int i = 0; i < rounds; ++i) {
    client.send(set);
    client.send(wait);
    client.skip(1);
    client.send(get);
    client.skip(bytes + 8);
  }
  return 2.0 * static_cast<double>(bytes) * rounds / us_since(start);
}

double idle_connection_bytes(const Target& target, int count) {
  const double before = resident_bytes(target.pid);
  const auto connections = connect_many(target, count);
  return (resident_bytes(target.pid) - before) / count;
}

}  // namespace ddprun::rdzv::bench
