#include "rendezvous/net/connection.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "rendezvous/common/limits.h"
#include "rendezvous/net/socket_address.h"

namespace ddprun::rdzv {
namespace {

constexpr std::size_t kReadBytes = std::size_t{16} * 1024;
constexpr int kReadsPerTurn = 4;  // then other connections have their turn

using boost::system::error_code;

template <typename NameOf>
std::string numeric(NameOf name_of, int socket) {
  SocketAddress address;
  if (name_of(socket, &address.any, &address.size) != 0 || !address.is_ip()) return "";
  return numeric_host(address);
}

class Connection final : public Stream, public std::enable_shared_from_this<Connection> {
 public:
  Connection(const boost::asio::any_io_executor& executor, UniqueFd socket)
      : socket_(executor, socket.release()) {}

  void start(Events events) override {
    const bool is_first = events_ == nullptr;
    events_ = std::make_shared<const Events>(std::move(events));
    if (is_first) await_bytes();
  }

  void send(std::string_view bytes) override {
    if (!socket_.is_open() || is_finished_) return;
    unsent_ += bytes;
    if (!awaits_room_) {
      write();
    } else if (unsent_.size() > limits::kMaxUnreadRoundBytes) {  // the peer may never read again
      cut_off();
    }
  }

  void finish_sending() override {
    if (!socket_.is_open() || std::exchange(is_finished_, true)) return;
    if (unsent_.empty()) ::shutdown(socket_.native_handle(), SHUT_WR);
  }

  void close() override {
    if (!socket_.is_open()) return;
    error_code ignored;
    socket_.close(ignored);
    events_.reset();
  }

  UniqueFd release() override {
    events_.reset();
    return UniqueFd(socket_.release());
  }

  std::size_t unsent() const override { return unsent_.size(); }
  bool is_open() const override { return socket_.is_open(); }
  std::string local_address() override { return numeric(::getsockname, socket_.native_handle()); }
  std::string peer_address() override { return numeric(::getpeername, socket_.native_handle()); }

 private:
  void await_bytes() {
    socket_.async_wait(socket_.wait_read, [self = shared_from_this()](error_code ec) {
      if (!ec && self->socket_.is_open()) self->read();
    });
  }

  void read() {
    std::array<char, kReadBytes> buffer;
    for (int turn = 0; turn < kReadsPerTurn && socket_.is_open(); ++turn) {
      const ssize_t count = ::recv(socket_.native_handle(), buffer.data(), buffer.size(), 0);
      if (count > 0) {
        const auto events = events_;  // it may be replaced meanwhile
        events->on_bytes({buffer.data(), static_cast<std::size_t>(count)});
        if (static_cast<std::size_t>(count) < buffer.size()) break;
      } else if (count == 0) {
        return end({ErrorCode::kClosed, "the other side closed the connection"});
      } else if (errno == EAGAIN || errno == EINTR) {
        break;
      } else {
        return end(error_from_errno(errno, "reading"));
      }
    }
    if (socket_.is_open()) await_bytes();
  }

  void await_room() {
    awaits_room_ = true;
    socket_.async_wait(socket_.wait_write, [self = shared_from_this()](error_code ec) {
      self->awaits_room_ = false;
      if (!ec && self->socket_.is_open()) self->write();
    });
  }

  void write() {
    std::size_t sent = 0;
    while (sent < unsent_.size()) {
      const ssize_t count = ::send(socket_.native_handle(), unsent_.data() + sent,
                                   unsent_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count >= 0) {
        sent += static_cast<std::size_t>(count);
      } else if (errno == EAGAIN) {
        break;
      } else if (errno != EINTR) {
        return cut_off();
      }
    }
    unsent_.erase(0, sent);
    if (unsent_.empty()) {
      unsent_.shrink_to_fit();
      if (is_finished_) ::shutdown(socket_.native_handle(), SHUT_WR);
    } else if (unsent_.size() > limits::kMaxUnreadRoundBytes) {
      cut_off();
    } else {
      await_room();
    }
  }

  // Reading ends too, and reports it.
  void cut_off() {
    ::shutdown(socket_.native_handle(), SHUT_RDWR);
    unsent_.clear();
  }

  void end(const Error& error) {
    const auto events = events_;
    close();
    events->on_end(error);
  }

  boost::asio::posix::stream_descriptor socket_;
  std::shared_ptr<const Events> events_;  // null: not started, or ended
  std::string unsent_;
  bool awaits_room_ = false;
  bool is_finished_ = false;
};

}  // namespace

StreamPtr stream_over(const boost::asio::any_io_executor& executor, UniqueFd socket) {
  return std::make_shared<Connection>(executor, std::move(socket));
}

}  // namespace ddprun::rdzv
