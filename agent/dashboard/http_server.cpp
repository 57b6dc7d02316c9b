#include "agent/dashboard/http_server.h"

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <unordered_set>

#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/net/socket_address.h"

namespace ddprun::agent {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::seconds kAcceptPause{1};  // if the system has no descriptor left
constexpr std::size_t kLingerBytes = std::size_t{1}
                                     << 20;  // of a refused request, read and ignored

bool is_the_clients_fault(const error_code& ec) {
  return ec.category() == make_error_code(http::error::bad_method).category() &&
         ec != http::error::end_of_stream && ec != http::error::partial_message;
}

class Connection;

class Server final : public HttpServer {
 public:
  Server(asio::io_context& io, Handler the_handler, HttpServerLimits the_limits)
      : handler(std::move(the_handler)), limits(the_limits), acceptor_(io), pause_(io) {}
  ~Server() override;

  Result<void> listen(const rdzv::Endpoint& at);
  const rdzv::Endpoint& bound() const override { return bound_; }
  void forget(const std::shared_ptr<Connection>& connection) { connections_.erase(connection); }
  bool has_room_for_a_stream() const;

  const Handler handler;
  const HttpServerLimits limits;

 private:
  void accept();
  void serve(tcp::socket socket);

  tcp::acceptor acceptor_;
  Timer pause_;
  rdzv::Endpoint bound_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  const Lifetime lifetime_;
};

// ---- a connection -------------------------------------------------------------------------------

class Connection final : public HttpExchange, public std::enable_shared_from_this<Connection> {
  // Wraps a handler so that it does nothing after this was closed.
  template <typename Next>
  auto then(Next next) {
    return [self = shared_from_this(), next](const error_code& ec, std::size_t count) {
      if (self->server_ != nullptr) next(ec, count);
    };
  }

 public:
  Connection(tcp::socket socket, Server& server)
      : server_(&server), socket_(std::move(socket)), deadline_(socket_.get_executor()) {
    error_code ec;
    const auto own = socket_.local_endpoint(ec);
    is_over_loopback_ = !ec && rdzv::socket_address(own.data()).is_loopback();
  }

  void start() { await_request(server_->limits.request); }

  void close() {
    if (server_ == nullptr) return;
    Server* const server = std::exchange(server_, nullptr);
    deadline_.cancel();
    error_code ec;
    socket_.close(ec);
    server->forget(shared_from_this());
  }

  bool is_idle() const { return state_ == State::kAwaitsRequest; }
  bool is_stream() const { return state_ == State::kStreams; }
  std::chrono::steady_clock::time_point idle_since() const { return idle_since_; }

  // ---- HttpExchange

  const std::string& path() const override { return path_; }
  bool is_over_loopback() const override { return is_over_loopback_; }
  bool is_open() const override { return server_ != nullptr; }
  bool is_busy() const override { return is_writing_; }

  void reply(Reply reply) override {
    if (server_ == nullptr || state_ != State::kAnswers) return;
    const bool is_last = !keeps_alive_;
    write(std::move(reply),
          [this, is_last] { is_last ? linger() : await_request(server_->limits.idle); });
  }

  bool begin_events() override {
    if (server_ == nullptr || state_ != State::kAnswers) return false;
    if (!server_->has_room_for_a_stream()) {
      reply({.status = 503,
             .body = "too many pages are open; close one of them\n",
             .headers = {{"Retry-After", "5"}}});
      return false;
    }
    if (is_head_) {
      reply({.content_type = "text/event-stream", .body = {}});
      return false;
    }
    state_ = State::kStreams;
    await_its_end();
    send_event(
        std::make_shared<const std::string>("HTTP/1.1 200 OK\r\n"
                                            "Content-Type: text/event-stream\r\n"
                                            "Cache-Control: no-store\r\n"
                                            "X-Content-Type-Options: nosniff\r\n"
                                            "Connection: close\r\n\r\n"));
    return true;
  }

  void send_event(std::shared_ptr<const std::string> text) override {
    if (server_ == nullptr || is_writing_) return;
    is_writing_ = true;
    close_after(server_->limits.write);
    asio::async_write(socket_, asio::buffer(*text),
                      then([this, text](const error_code& ec, std::size_t) {
                        is_writing_ = false;
                        deadline_.cancel();
                        if (ec) return close();
                        if (last_event_) send_event(std::exchange(last_event_, {}));
                        if (has_ended_ && !is_writing_) close();
                      }));
  }

  void end_events(std::shared_ptr<const std::string> text) override {
    if (server_ == nullptr || std::exchange(has_ended_, true)) return;
    is_writing_ ? void(last_event_ = std::move(text)) : send_event(std::move(text));
  }

 private:
  enum class State { kAwaitsRequest, kAnswers, kStreams, kLingers };

  void close_after(std::chrono::milliseconds time) {
    deadline_.arm(time, [this] { on_deadline(); });
  }

  void on_deadline() {
    if (state_ != State::kAwaitsRequest || !parser_->got_some()) return close();
    // If a request has begun, the client gets an answer that says what was wrong with it.
    is_late_ = true;
    error_code ec;
    socket_.cancel(ec);
  }

  void await_request(std::chrono::milliseconds time) {
    state_ = State::kAwaitsRequest;
    idle_since_ = std::chrono::steady_clock::now();
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(server_->limits.header_bytes));
    parser_->body_limit(boost::none);  // requests must have no body, which is checked below
    close_after(time);
    http::async_read_header(socket_, buffer_, *parser_,
                            then([this](const error_code& ec, std::size_t) { on_request(ec); }));
  }

  void on_request(const error_code& ec) {
    if (is_late_) return refuse(408, "the request did not arrive in time");
    if (ec == http::error::header_limit) {
      return refuse(431, "the request's header is longer than " +
                             std::to_string(server_->limits.header_bytes) + " bytes");
    }
    if (is_the_clients_fault(ec)) {
      return refuse(400, "this is no HTTP request (" + ec.message() + ")");
    }
    if (ec) return close();
    const auto& request = parser_->get();
    is_head_ = request.method() == http::verb::head;
    keeps_alive_ = request.keep_alive();
    if (request.method() != http::verb::get && !is_head_) {
      return refuse(405, "only GET and HEAD are answered here", {{"Allow", "GET, HEAD"}});
    }
    if (parser_->chunked() || parser_->content_length_remaining().value_or(0) > 0) {
      return refuse(400, "a GET request with a body is refused");
    }
    if (is_over_loopback_ &&
        (request.count(http::field::host) != 1 || !is_loopback_host(request[http::field::host]))) {
      return refuse(403, "use the host name localhost or 127.0.0.1, also through a tunnel");
    }
    const std::string_view target = request.target();
    path_ = target.substr(0, target.find('?'));
    if (!path_.starts_with('/')) return refuse(400, "the request's target is no path");
    state_ = State::kAnswers;
    close_after(server_->limits.write);
    server_->handler(shared_from_this());
  }

  void refuse(unsigned status, const std::string& sentence,
              std::vector<std::pair<std::string, std::string>> headers = {}) {
    state_ = State::kLingers;
    keeps_alive_ = false;
    write({.status = status, .body = sentence + "\n", .headers = std::move(headers)},
          [this] { linger(); });
  }

  void write(const Reply& reply, std::function<void()> next) {
    const auto text = std::make_shared<const std::string>(text_of(reply));
    close_after(server_->limits.write);
    asio::async_write(socket_, asio::buffer(*text),
                      then([this, text, next = std::move(next)](const error_code& ec, std::size_t) {
                        ec ? close() : next();
                      }));
  }

  std::string text_of(const Reply& reply) const {
    const auto reason = http::obsolete_reason(static_cast<http::status>(reply.status));
    std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " " + std::string(reason) +
                       "\r\nContent-Type: " + reply.content_type +
                       "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff"
                       "\r\nContent-Length: " +
                       std::to_string(reply.body.size());
    for (const auto& [name, value] : reply.headers) text += "\r\n" + name + ": " + value;
    text += keeps_alive_ ? "\r\n\r\n" : "\r\nConnection: close\r\n\r\n";
    return is_head_ ? text : text + reply.body;
  }

  // If the socket is closed while unread bytes are left, TCP resets the connection and the answer may
  // be lost. So the client closes first, or a time limit ends.
  void linger() {
    state_ = State::kLingers;
    error_code ec;
    socket_.shutdown(tcp::socket::shutdown_send, ec);
    close_after(server_->limits.linger);
    drain(kLingerBytes);
  }

  void drain(std::size_t left) {
    socket_.async_read_some(asio::buffer(unread_),
                            then([this, left](const error_code& ec, std::size_t count) {
                              ec || count >= left ? close() : drain(left - count);
                            }));
  }

  // A browser that listens to events sends nothing more; the only thing to read is the end of its
  // connection.
  void await_its_end() {
    socket_.async_read_some(asio::buffer(unread_),
                            then([this](const error_code&, std::size_t) { close(); }));
  }

  Server* server_;  // none: closed
  tcp::socket socket_;
  Timer deadline_;
  State state_ = State::kAwaitsRequest;
  std::chrono::steady_clock::time_point idle_since_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::empty_body>> parser_;
  std::array<char, 4096> unread_;
  std::string path_;
  bool is_over_loopback_ = false;
  bool is_late_ = false;
  bool is_head_ = false;
  bool keeps_alive_ = false;
  bool is_writing_ = false;
  bool has_ended_ = false;                         // the stream gets nothing after
  std::shared_ptr<const std::string> last_event_;  // this event, which waits for the one before it
};

// ---- the server ---------------------------------------------------------------------------------

Result<void> Server::listen(const rdzv::Endpoint& at) {
  auto listener = rdzv::open_listener({.address = at.host, .port = at.port});
  if (!listener) return fail(std::move(listener.error()));
  bound_ = listener->bound;
  const bool is_ipv6 = bound_.host.find(':') != std::string::npos;
  error_code ec;
  acceptor_.assign(is_ipv6 ? tcp::v6() : tcp::v4(), listener->socket.get(), ec);
  if (ec) return fail(error_from_errno(ec.value(), "the listening socket"));
  std::ignore = listener->socket.release();
  accept();
  return {};
}

void Server::accept() {
  acceptor_.async_accept(lifetime_.guard([this](const error_code& ec, tcp::socket socket) {
    if (ec == asio::error::operation_aborted) return;
    if (!ec) serve(std::move(socket));
    if (!ec || ec == asio::error::connection_aborted) return accept();
    pause_.arm(kAcceptPause, [this] { accept(); });
  }));
}

void Server::serve(tcp::socket socket) {
  if (connections_.size() >= limits.connections) {
    std::shared_ptr<Connection> oldest;
    for (const auto& each : connections_) {
      if (each->is_idle() && (!oldest || each->idle_since() < oldest->idle_since())) oldest = each;
    }
    if (!oldest) return;
    oldest->close();
  }
  const auto connection = std::make_shared<Connection>(std::move(socket), *this);
  connections_.insert(connection);
  connection->start();
}

bool Server::has_room_for_a_stream() const {
  const auto streams =
      std::ranges::count_if(connections_, [](const auto& each) { return each->is_stream(); });
  return static_cast<std::size_t>(streams) < limits.streams;
}

Server::~Server() {
  for (const auto& each : std::exchange(connections_, {})) each->close();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(asio::io_context& io,
                                                      const rdzv::Endpoint& at, Handler handler,
                                                      HttpServerLimits limits) {
  auto server = std::make_unique<Server>(io, std::move(handler), limits);
  if (auto listening = server->listen(at); !listening) return fail(std::move(listening.error()));
  return server;
}

bool is_loopback_host(std::string_view host) {
  if (const std::size_t colon = host.rfind(':');
      colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos) {
    const std::string_view port = host.substr(colon + 1);
    if (port.empty() || port.find_first_not_of("0123456789") != std::string_view::npos) {
      return false;
    }
    host = host.substr(0, colon);
  }
  return boost::beast::iequals(host, "localhost") || host == "127.0.0.1" || host == "[::1]";
}

}  // namespace ddprun::agent
