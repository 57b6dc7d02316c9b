// A client that sends and reads bytes as they are, to say what no honest client says. Blocking,
// with a deadline on everything; a test's own thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/common/bytes.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::rdzv::testing {

class RawClient {
 public:
  static constexpr std::chrono::seconds kDeadline{10};

  explicit RawClient(std::uint16_t port)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ =
        ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  bool is_connected() const { return is_connected_; }
  int fd() const { return socket_.get(); }

  // False when the connection broke before all was sent.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Exactly `count` bytes; fewer when the connection ended or the deadline passed first.
  std::string read(std::size_t count) {
    std::string bytes;
    while (bytes.size() < count && wait_readable()) {
      char buffer[65536];
      const ssize_t got =
          ::recv(socket_.get(), buffer, std::min(sizeof buffer, count - bytes.size()), 0);
      if (got <= 0) break;
      bytes.append(buffer, static_cast<std::size_t>(got));
    }
    return bytes;
  }

  // Everything up to the end of the connection, orderly or reset; nothing when it did not end in
  // time.
  std::optional<std::string> read_to_end() {
    std::string bytes;
    while (wait_readable()) {
      char buffer[65536];
      const ssize_t got = ::recv(socket_.get(), buffer, sizeof buffer, 0);
      if (got <= 0) return bytes;
      bytes.append(buffer, static_cast<std::size_t>(got));
    }
    return std::nullopt;
  }

  // Whether the other side ends the connection while nothing is read here; false when it did not in
  // time.
  bool is_dropped() {
    pollfd poller{socket_.get(), POLLRDHUP, 0};
    constexpr auto kTimeout = std::chrono::duration_cast<std::chrono::milliseconds>(kDeadline);
    return ::poll(&poller, 1, static_cast<int>(kTimeout.count())) > 0;
  }

  // What has been sent to this client so far and not been read: a PING whose echo comes behind it.
  std::string read_all_so_far() {
    const std::uint32_t nonce = 0x70696e67 + ++pings_;
    std::string ping(1, '\x0d');
    wire::append(ping, nonce);
    if (!send(ping)) return "(cannot send)";
    std::string bytes;
    for (;;) {
      const std::string more = read(1);
      if (more.empty()) return bytes + "(connection ended)";
      bytes += more;
      if (bytes.size() >= 4 &&
          wire::load<std::uint32_t>(bytes.data() + bytes.size() - 4) == nonce) {
        return bytes.substr(0, bytes.size() - 4);
      }
    }
  }

  void shut_down() { ::shutdown(socket_.get(), SHUT_WR); }
  void shut_down_both() { ::shutdown(socket_.get(), SHUT_RDWR); }  // any thread
  void close() { socket_.reset(); }

 private:
  bool wait_readable() {
    pollfd poller{socket_.get(), POLLIN, 0};
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    for (;;) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      const int ready = ::poll(&poller, 1, static_cast<int>(left.count()));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
  }

  UniqueFd socket_;
  bool is_connected_ = false;
  std::uint32_t pings_ = 0;
};

}  // namespace ddprun::rdzv::testing
