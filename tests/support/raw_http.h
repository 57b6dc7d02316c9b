// An HTTP client that sends arbitrary bytes to a port, of 127.0.0.1 by default, and reads the answer. Blocking,
// with a deadline for each read. Owned by one test.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::test {

class RawHttp {
 public:
  explicit RawHttp(std::uint16_t port, const char* host = "127.0.0.1")
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval deadline{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    ::inet_pton(AF_INET, host, &address.sin_addr);
    is_connected_ =
        ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }

  bool is_connected() const { return is_connected_; }
  int fd() const { return socket_.get(); }

  // False: the other side has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Returns everything up to and including `end`, or up to the other side's close or the deadline.
  // Continues where the last call ended.
  std::string read_until(std::string_view end) {
    std::size_t at = 0;
    while ((at = received_.find(end)) == std::string::npos) {
      if (!receive()) return std::exchange(received_, {});
    }
    std::string text = received_.substr(0, at + end.size());
    received_.erase(0, at + end.size());
    return text;
  }
  std::string read_all() {
    while (receive()) {
    }
    return std::exchange(received_, {});
  }
  bool was_closed() const { return was_closed_; }  // by the other side, seen while reading

  // One reply with a Content-Length, head and body.
  std::string read_reply() {
    std::string reply = read_until("\r\n\r\n");
    const std::size_t at = reply.find("Content-Length: ");
    std::size_t left = at == std::string::npos ? 0 : std::stoul(reply.substr(at + 16));
    while (received_.size() < left && receive()) {
    }
    reply += received_.substr(0, left);
    received_.erase(0, left);
    return reply;
  }

 private:
  bool receive() {
    char bytes[65536];
    const ssize_t count = ::recv(socket_.get(), bytes, sizeof bytes, 0);
    if (count <= 0) {
      was_closed_ = count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
      return false;
    }
    received_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  rdzv::UniqueFd socket_;
  bool is_connected_ = false;
  bool was_closed_ = false;
  std::string received_;
};

inline std::string get_request(std::string_view path, std::string_view more = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(more) +
         "\r\n";
}

// The whole reply; empty if there is no answer.
inline std::string http_get(std::uint16_t port, std::string_view path) {
  RawHttp client(port);
  return client.is_connected() && client.send(get_request(path)) ? client.read_reply() : "";
}

}  // namespace ddprun::test
