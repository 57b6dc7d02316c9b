// The floor for store_bench: a server that accepts, reads, answers and closes, and does nothing
// else. No store, no limits, no checks; whole requests only. What ours takes beyond this is ours,
// the rest is the kernel's. Prints its port, ends when its stdin closes.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rendezvous/common/bytes.h"
#include "rendezvous/store_wire/store_protocol.h"

using namespace ddprun::rdzv;
using wire::Query;

namespace {

constexpr int kOn = 1;
constexpr int kOff = 0;

int listen_anywhere() {
  const int listener = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ::setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &kOff, sizeof kOff);
  ::setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
  ::setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0) return -1;
  return ::listen(listener, INT_MAX) == 0 ? listener : -1;
}

void send_all(int fd, std::string_view bytes) {
  if (!bytes.empty()) ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Replies as long as the store's would be, to the requests that the load makes. Nobody waits, but
// for a name that begins as release_ms's do, until somebody sets it.
class Answers {
 public:
  void to(int fd, std::string_view input) {
    reply_.clear();
    while (!input.empty()) answer_one(fd, input);
    send_all(fd, reply_);
  }

 private:
  static std::string_view take_bytes(std::string_view& input) {
    const auto size = wire::load<std::uint64_t>(input.data());
    const std::string_view bytes = input.substr(8, size);
    input.remove_prefix(8 + size);
    return bytes;
  }

  static bool can_be_waited_for(std::string_view key) { return key.starts_with("/release/"); }

  void answer_one(int fd, std::string_view& input) {
    const auto query = static_cast<Query>(input.front());
    input.remove_prefix(1);
    if (query == Query::kValidate) {
      input.remove_prefix(4);
    } else if (query == Query::kPing) {
      reply_ += input.substr(0, 4);
      input.remove_prefix(4);
    } else if (query == Query::kSet) {
      if (can_be_waited_for(take_bytes(input))) release();
      take_bytes(input);
    } else if (query == Query::kWait) {  // of one key
      input.remove_prefix(8);
      if (can_be_waited_for(take_bytes(input))) {
        waiting_.push_back(fd);
      } else {
        reply_ += wire::kStopWaiting;
      }
    } else if (query == Query::kGet) {
      take_bytes(input);
      wire::append<std::uint64_t>(reply_, 16);
      reply_.append(16, 'v');
    } else {  // ADD
      take_bytes(input);
      input.remove_prefix(8);
      wire::append<std::int64_t>(reply_, 1);
    }
  }

  void release() {
    for (const int fd : waiting_) send_all(fd, std::string_view(&wire::kStopWaiting, 1));
    waiting_.clear();
  }

  std::string reply_;
  std::vector<int> waiting_;
};

void serve(int listener) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const auto watch = [epoll](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  };
  watch(listener);
  std::array<epoll_event, 64> events;
  std::array<char, 64 * 1024> buffer;
  Answers answers;
  for (;;) {
    const int count = ::epoll_wait(epoll, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener) {
        for (int client;
             (client = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
          watch(client);
        }
        continue;
      }
      const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
      if (got < 0) continue;
      if (got == 0) {
        ::close(fd);
        continue;
      }
      answers.to(fd, {buffer.data(), static_cast<std::size_t>(got)});
    }
  }
}

}  // namespace

int main() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const int listener = listen_anywhere();
  sockaddr_in6 bound{};
  socklen_t size = sizeof bound;
  if (listener < 0 || ::getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    std::perror("bare_store");
    return 1;
  }
  std::printf("%u\n", unsigned{ntohs(bound.sin6_port)});
  std::fflush(stdout);
  std::thread(serve, listener).detach();
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) continue;
  ::_exit(0);
}
