#include "rendezvous/store_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include "rendezvous/base/thread.h"
#include "rendezvous/listener.h"
#include "rendezvous/store_core.h"
#include "rendezvous/wire/store_decoder.h"

namespace ddprun::rdzv {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using wire::ReplyQueue;
using wire::Request;
using wire::RequestDecoder;

// One buffer for all connections: nearly every request is decoded in it and gone before the next
// read.
constexpr std::size_t kReadBytes = 64 * 1024;
// A client with much to say gives way to the others after this many reads.
constexpr int kReadsInARow = 4;
constexpr int kAcceptsInARow = 64;
// Without a free descriptor, accepting is tried again after this long (and whenever a client
// leaves).
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kLogInterval{1};

HashSeed random_seed() {
  HashSeed seed{};
  // Fails only on kernels without the call; then the table is merely predictable.
  static_cast<void>(::getrandom(seed.data(), sizeof seed, GRND_NONBLOCK));
  return seed;
}

std::string peer_name(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0)
    return "a client that is gone";
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&peer);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    return Endpoint{text, ntohs(v4->sin_port)}.to_string();
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&peer);
  inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  return Endpoint{text, ntohs(v6->sin6_port)}.to_string();
}

const char* reason_of(StoreCore::Verdict verdict) {
  switch (verdict) {
    case StoreCore::Verdict::kServed:
      return "";
    case StoreCore::Verdict::kNotANumber:
      return "added to a value that is no 64-bit integer";
    case StoreCore::Verdict::kNoMemory:
      return "asked for more than the store's memory limit leaves (--store-memory)";
    case StoreCore::Verdict::kReplyTooLong:
      return "asked for a reply that is too long";
  }
  return "";
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

class StoreServer::Loop {
 public:
  Loop(Listener listener, const StoreServerOptions& options)
      : bound_(std::move(listener.bound)),
        acceptor_(io_, tcp::v6(), listener.socket.release()),
        accept_timer_(io_),
        core_(random_seed(), options.memory_limit),
        log_(options.log),
        read_buffer_(new char[kReadBytes]) {}

  ~Loop() {
    io_.stop();
    thread_.join();
  }

  Result<void> start() {
    accept_when_ready();
    auto thread = Thread::start("ddprun-store", [this] { io_.run(); });
    if (!thread) return fail(std::move(thread.error()));
    thread_ = std::move(*thread);
    return {};
  }

  const Endpoint& bound() const { return bound_; }

 private:
  struct Session {
    explicit Session(asio::io_context& io) : socket(io) {}
    tcp::socket socket;
    ClientId client = 0;
    RequestDecoder decoder;
    std::unique_ptr<ReplyQueue> unsent;  // only while the client reads more slowly than it asks
    std::size_t held_bytes = 0;          // on the store's account
    bool is_open = true;
    bool is_finished = false;  // it will send nothing more; close when all is sent

    int fd() { return socket.native_handle(); }
  };
  using SessionPtr = std::shared_ptr<Session>;

  // --- accepting ---

  void accept_when_ready() {
    acceptor_.async_wait(tcp::acceptor::wait_read, [this](boost::system::error_code error) {
      if (!error) accept_some();
    });
  }

  void accept_some() {
    for (int i = 0; i < kAcceptsInARow; ++i) {
      const int fd =
          ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) {
        open(fd);
      } else if (would_block(errno)) {
        break;
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        log(std::string("cannot accept a client, will try again: ") +
            error_from_errno(errno, "accept").message);
        pause_accepting();
        return;
      }  // anything else is one client's misfortune (it is gone already)
    }
    accept_when_ready();
  }

  void pause_accepting() {
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([this](boost::system::error_code error) {
      if (!error) accept_some();
    });
  }

  void open(int fd) {
    auto session = std::make_shared<Session>(io_);
    boost::system::error_code error;
    session->socket.assign(tcp::v6(), fd, error);
    if (error) {
      ::close(fd);
      return;
    }
    session->client = core_.connect();
    if (session->client >= sessions_.size()) sessions_.resize(session->client + 1);
    sessions_[session->client] = session;
    read_when_ready(session);
  }

  // --- reading ---

  void read_when_ready(const SessionPtr& session) {
    session->socket.async_wait(tcp::socket::wait_read,
                               [this, session](boost::system::error_code error) {
                                 if (!error && session->is_open) read_some(session);
                               });
  }

  void read_some(const SessionPtr& session) {
    for (int i = 0; i < kReadsInARow; ++i) {
      const auto direct = session->decoder.direct_space();
      const std::span<char> space =
          direct.empty() ? std::span(read_buffer_.get(), kReadBytes) : direct;
      const ssize_t got = ::recv(session->fd(), space.data(), space.size(), 0);
      if (got < 0 && would_block(errno)) break;
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        finish(session);
        break;
      }
      std::string_view input;
      if (direct.empty()) {
        input = {space.data(), static_cast<std::size_t>(got)};
      } else {
        session->decoder.commit_direct(static_cast<std::size_t>(got));
      }
      serve(session, input);
      if (!session->is_open || static_cast<std::size_t>(got) < space.size()) break;
    }
    deliver_releases();
    if (session->is_open && !session->is_finished) read_when_ready(session);
  }

  void serve(const SessionPtr& session, std::string_view input) {
    Request request;
    for (;;) {
      const auto status = session->decoder.next(input, request);
      ReplyQueue& reply = session->unsent ? *session->unsent : reply_;
      if (status == RequestDecoder::Status::kNeedMore) break;
      if (status == RequestDecoder::Status::kBroken)
        return reject(session, session->decoder.fault());
      if (reply.unsent() > limits::kMaxUnreadReplyBytes) {
        send(session);
        if (session->unsent && session->unsent->unsent() > limits::kMaxUnreadReplyBytes) {
          return reject(session, "does not read its replies");
        }
        if (!session->is_open) return;
      }
      const auto verdict = core_.handle(session->client, request,
                                        session->unsent ? *session->unsent : reply_, released_);
      if (verdict != StoreCore::Verdict::kServed) return reject(session, reason_of(verdict));
    }
    send(session);
    account(*session);
  }

  // Puts what the session holds on the store's account; ends the session that asked for too much.
  void account(Session& session) {
    if (!session.is_open) return;
    const std::size_t before = session.held_bytes;
    session.held_bytes =
        session.decoder.held_bytes() + (session.unsent ? session.unsent->held_bytes() : 0);
    outside_bytes_ += session.held_bytes - before;
    core_.set_outside_bytes(outside_bytes_);
    if (session.held_bytes > before && core_.bytes() + outside_bytes_ > core_.memory_limit()) {
      reject(sessions_[session.client], reason_of(StoreCore::Verdict::kNoMemory));
    }
  }

  // --- sending ---

  // Sends the replies gathered for this session, as far as the client takes them.
  void send(const SessionPtr& session) {
    if (session->unsent) return;  // in order: what waits goes first, when the socket is ready
    if (!flush(*session, reply_)) return close(session);
    if (reply_.empty()) return;
    session->unsent = std::make_unique<ReplyQueue>(std::exchange(reply_, ReplyQueue()));
    send_when_ready(session);
  }

  void send_when_ready(const SessionPtr& session) {
    session->socket.async_wait(tcp::socket::wait_write,
                               [this, session](boost::system::error_code error) {
                                 if (error || !session->is_open) return;
                                 if (!flush(*session, *session->unsent)) {
                                   close(session);
                                   return deliver_releases();
                                 }
                                 if (!session->unsent->empty()) {
                                   account(*session);
                                   return send_when_ready(session);
                                 }
                                 session->unsent.reset();
                                 account(*session);
                                 if (session->is_finished) close(session);
                                 deliver_releases();
                               });
  }

  // False when the connection is broken.
  bool flush(Session& session, ReplyQueue& replies) {
    while (!replies.empty()) {
      std::array<std::string_view, 16> parts;
      std::array<iovec, 16> vectors;
      const std::size_t count = replies.gather(parts);
      for (std::size_t i = 0; i < count; ++i) {
        vectors[i] = {const_cast<char*>(parts[i].data()), parts[i].size()};
      }
      msghdr message{};
      message.msg_iov = vectors.data();
      message.msg_iovlen = count;
      const ssize_t sent = ::sendmsg(session.fd(), &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) {
        const bool is_full = would_block(errno);
        if (!is_full) replies = ReplyQueue();
        return is_full;
      }
      replies.consume(static_cast<std::size_t>(sent));
    }
    return true;
  }

  void deliver_releases() {
    while (!released_.empty()) {
      const SessionPtr session = sessions_[released_.back()];
      released_.pop_back();
      if (!session || session->is_finished) continue;
      (session->unsent ? *session->unsent : reply_).byte(wire::kStopWaiting);
      send(session);
      account(*session);
    }
  }

  // --- ending ---

  // The client sends nothing more: its waiting ends, its replies are still sent.
  void finish(const SessionPtr& session) {
    if (!session->unsent) return close(session);
    session->is_finished = true;
  }

  void reject(const SessionPtr& session, const char* reason) {
    log("closed " + peer_name(session->fd()) + ": it " + reason);
    if (!session->unsent) flush(*session, reply_);
    reply_ = ReplyQueue();
    close(session);
  }

  void close(const SessionPtr& session) {
    if (!session->is_open) return;
    session->is_open = false;
    outside_bytes_ -= session->held_bytes;
    core_.set_outside_bytes(outside_bytes_);
    core_.disconnect(session->client, released_);
    boost::system::error_code ignored;
    session->socket.close(ignored);
    sessions_[session->client].reset();
  }

  void log(const std::string& line) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_log_) {
      ++lines_dropped_;
      return;
    }
    next_log_ = now + kLogInterval;
    std::string text = "store " + bound_.to_string() + ": " + line;
    if (lines_dropped_ > 0)
      text += " (and " + std::to_string(std::exchange(lines_dropped_, 0)) +
              " more since the last line)";
    if (log_) return log_(text);
    std::fprintf(stderr, "ddprun: %s\n", text.c_str());
  }

  Endpoint bound_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer accept_timer_;
  StoreCore core_;
  std::function<void(std::string_view)> log_;
  std::chrono::steady_clock::time_point next_log_;
  std::size_t lines_dropped_ = 0;

  std::unique_ptr<char[]> read_buffer_;
  ReplyQueue reply_;  // for the session being served; empty between events
  std::vector<ClientId> released_;
  std::vector<SessionPtr> sessions_;  // by ClientId
  std::size_t outside_bytes_ = 0;
  Thread thread_;
};

StoreServer::StoreServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
StoreServer::~StoreServer() = default;

Result<std::unique_ptr<StoreServer>> StoreServer::start(const StoreServerOptions& options) {
  auto listener =
      open_listener({options.address, options.port, options.port_range, options.listen_fd});
  if (!listener) return fail(std::move(listener.error()));
  auto loop = std::make_unique<Loop>(std::move(*listener), options);
  auto started = loop->start();
  if (!started) return fail(std::move(started.error()));
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(loop)));
}

std::uint16_t StoreServer::port() const { return loop_->bound().port; }
const Endpoint& StoreServer::bound() const { return loop_->bound(); }

}  // namespace ddprun::rdzv
