// One connection of an HTTP client, from the name lookup to the bytes of the reply: HttpConnection,
// and ConnectionOf any Asio stream: plain TCP in this folder, TLS in rendezvous/tls. Derived classes
// define what happens between the TCP connection and the first request, and what the errors of
// their stream mean. Include this only where such a class is defined: Beast's headers take seconds
// to compile.
//
// Owned by a client or a stream (http_client.h), which calls close() when it is done; no callback
// runs after that. Everything happens on the thread that runs the io_context.
#pragma once

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/http/http_client.h"
#include "rendezvous/net/name_lookup.h"

namespace ddprun::rdzv {

class HttpConnection {
 public:
  using Done = HttpClient::Done;

  static std::shared_ptr<HttpConnection> make(boost::asio::io_context& io,
                                              const HttpOptions& options);
  virtual ~HttpConnection() = default;

  // Opens the connection first if it is not open. One exchange at a time, and no stream meanwhile.
  virtual void exchange(const HttpRequest& request, Done done) = 0;
  virtual void stream(const HttpRequest& request, HttpStream::Events events) = 0;

  // After an exchange: whether another one may follow; not if the server has closed the connection.
  virtual bool is_reusable() const = 0;
  virtual void close() = 0;
};

template <typename Stream>
class ConnectionOf : public HttpConnection,
                     public std::enable_shared_from_this<ConnectionOf<Stream>> {
 public:
  // `arguments`: the stream's constructor arguments after the io_context.
  template <typename... Arguments>
  ConnectionOf(boost::asio::io_context& io, HttpOptions options, Arguments&&... arguments)
      : io_(io),
        options_(std::move(options)),
        stream_(io, std::forward<Arguments>(arguments)...),
        deadline_(io) {}

  void exchange(const HttpRequest& request, Done done) override {
    done_ = std::move(done);
    begin(request, options_.max_reply_bytes);
  }

  void stream(const HttpRequest& request, HttpStream::Events events) override {
    events_ = std::move(events);
    begin(request, boost::none);
  }

  // Bytes from a server that was not asked mean the end of the connection.
  bool is_reusable() const override {
    if (!is_open_ || is_over_) return false;
    char byte = 0;
    const auto count = ::recv(const_cast<ConnectionOf*>(this)->socket().native_handle(), &byte, 1,
                              MSG_PEEK | MSG_DONTWAIT);
    return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }

  void close() override {
    is_over_ = true;
    lookup_.reset();
    deadline_.cancel();
    error_code ec;
    socket().close(ec);
  }

 protected:
  using error_code = boost::system::error_code;

  // Called when the TCP connection is established; calls opened() or end() when done.
  virtual void secure() { opened(); }

  virtual Error explain(error_code ec) {
    namespace http = boost::beast::http;
    if (ec == http::error::body_limit || ec == http::error::header_limit ||
        ec == http::error::buffer_overflow) {
      return {ErrorCode::kResourceExhausted,
              "the answer of " + who() + " is larger than it may be (" +
                  std::to_string(options_.max_reply_bytes) + " bytes)"};
    }
    if (ec == http::error::end_of_stream || ec == boost::asio::error::eof ||
        ec == http::error::partial_message) {
      return {ErrorCode::kClosed, who() + " closed the connection before its answer was complete"};
    }
    if (ec.category() == http::make_error_code(http::error::bad_version).category()) {
      return {ErrorCode::kProtocol, who() + " does not speak HTTP (" + ec.message() +
                                        "); check the port" +
                                        (options_.tls ? "" : ", and whether it wants TLS")};
    }
    return {ErrorCode::kUnavailable, who() + ": " + ec.message()};
  }

  // A handler that calls `next`, unless the connection has ended before.
  template <typename Next>
  auto then(Next next) {
    return [self = this->shared_from_this(), next](error_code ec, const auto&...) {
      if (self->is_over_) return;
      ec ? self->end(self->explain(ec)) : next();
    };
  }

  void opened() {
    is_open_ = true;
    write();
  }

  void end(Error error) {
    close();
    if (!done_) return events_.on_end(std::move(error));
    std::exchange(done_, nullptr)(fail(std::move(error)));
  }

  Stream& transport() { return stream_; }
  bool is_open() const { return is_open_; }
  std::string who() const { return options_.server.to_string(); }

  // The server's name that its certificate must have.
  const std::string& name() const {
    return options_.server_name.empty() ? options_.server.host : options_.server_name;
  }

  void under_way(std::string what) { what_was_under_way_ = std::move(what); }

 private:
  using tcp = boost::asio::ip::tcp;

  static constexpr std::uint32_t kMaxHeadBytes = 16'384;
  static constexpr std::size_t kBufferBytes = std::size_t{64} * 1024;
  static constexpr std::size_t kChunkBytes = std::size_t{16} * 1024;

  tcp::socket& socket() { return boost::beast::get_lowest_layer(stream_); }

  // ---- to the server

  std::string text_of(const HttpRequest& request) const {
    std::string text = request.method + " " + request.target +
                       " HTTP/1.1\r\nHost: " + options_.server.to_string() +
                       "\r\nUser-Agent: ddprun";
    for (const auto& [name, value] : request.headers) text += "\r\n" + name + ": " + value;
    if (!request.body.empty()) text += "\r\nContent-Type: application/json";
    if (request.method != "GET") {
      text += "\r\nContent-Length: " + std::to_string(request.body.size());
    }
    return text + "\r\n\r\n" + request.body;
  }

  void begin(const HttpRequest& request, const boost::optional<std::uint64_t>& body_limit) {
    request_ = text_of(request);
    reply_.emplace();
    reply_->header_limit(kMaxHeadBytes);
    reply_->body_limit(body_limit);
    deadline_.arm(options_.time_limit, [this] {
      const auto self = this->shared_from_this();  // its owner may drop it at its end
      end(Error{ErrorCode::kTimeout, who() + " did not answer within " +
                                         duration_text(options_.time_limit) + what_was_under_way_});
    });
    if (is_open_) return write();
    under_way(" (its name is being looked up)");
    if (const auto known = addresses_without_lookup(options_.server.host)) return connect(*known);
    lookup_ = look_up_name(
        io_, options_.server.host, [weak = this->weak_from_this()](const auto& addresses) {
          const auto self = weak.lock();
          if (addresses) return self->connect(*addresses);
          self->end({ErrorCode::kUnavailable, self->who() + ": " + addresses.error().message});
        });
  }

  void connect(const std::vector<std::string>& addresses) {
    under_way(" (there is no connection yet)");
    std::vector<tcp::endpoint> endpoints;
    for (const std::string& each : addresses) {
      endpoints.emplace_back(boost::asio::ip::make_address(each), options_.server.port);
    }
    boost::asio::async_connect(socket(), endpoints, then([this] { connected(); }));
  }

  void connected() {
    error_code ec;
    local_address_ = socket().local_endpoint(ec).address().to_string();
    socket().set_option(tcp::no_delay(true), ec);
    set_probes();
    secure();
  }

  // If the server's machine dies, no packet says so; without probes a stream would wait for hours.
  void set_probes() {
    const auto set = [fd = socket().native_handle()](int level, int option, int value) {
      ::setsockopt(fd, level, option, &value, sizeof value);
    };
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  }

  void write() {
    under_way("");
    boost::asio::async_write(stream_, boost::asio::buffer(request_), then([this] { read_head(); }));
  }

  // ---- its answer

  void read_head() {
    boost::beast::http::async_read_header(stream_, buffer_, *reply_, then([this] {
                                            if (!done_) {
                                              deadline_.cancel();
                                              if (events_.on_open) events_.on_open(status());
                                            }
                                            if (!is_over_) take({});
                                          }));
  }

  unsigned status() const { return reply_->get().result_int(); }

  void read_some() {
    auto& body = reply_->get().body();
    body.data = chunk_.data();
    body.size = chunk_.size();
    boost::beast::http::async_read_some(
        stream_, buffer_, *reply_, [self = this->shared_from_this()](error_code ec, std::size_t) {
          if (!self->is_over_) self->read_part(ec);
        });
  }

  void read_part(error_code ec) {
    if (ec && ec != boost::beast::http::error::need_buffer) return end(explain(ec));
    take({chunk_.data(), chunk_.size() - reply_->get().body().size});
  }

  void take(std::string_view bytes) {
    while (!done_ && !is_over_) {  // of a stream: line by line
      const std::size_t end_of_line = bytes.find('\n');
      text_ += bytes.substr(0, end_of_line);
      if (text_.size() > options_.max_reply_bytes) {
        return end(explain(boost::beast::http::error::body_limit));
      }
      if (end_of_line == std::string_view::npos) break;
      bytes.remove_prefix(end_of_line + 1);
      give_line();
    }
    if (is_over_) return;
    if (done_) text_ += bytes;
    if (!reply_->is_done()) return read_some();
    if (done_) return finish();
    give_line();
    if (!is_over_) end(Error{ErrorCode::kClosed, who() + " has ended its answer"});
  }

  void finish() {
    deadline_.cancel();
    is_open_ = reply_->get().keep_alive() && buffer_.size() == 0;
    HttpReply reply{status(), std::exchange(text_, {}), local_address_};
    std::exchange(done_, nullptr)(std::move(reply));
  }

  void give_line() {
    const std::string line = std::exchange(text_, {});
    if (!line.empty() && events_.on_line) events_.on_line(line);
  }

  boost::asio::io_context& io_;
  const HttpOptions options_;
  Stream stream_;
  std::unique_ptr<Attempt> lookup_;
  Timer deadline_;  // armed until a reply is complete, or a stream has begun
  std::string what_was_under_way_;
  std::string local_address_;
  bool is_open_ = false;
  bool is_over_ = false;

  std::string request_;
  boost::beast::flat_buffer buffer_{kBufferBytes};
  Done done_;  // empty: it is a stream, or there is no request
  HttpStream::Events events_;
  std::optional<boost::beast::http::response_parser<boost::beast::http::buffer_body>> reply_;
  std::array<char, kChunkBytes> chunk_{};
  std::string text_;  // the body so far; of a stream: the line so far
};

}  // namespace ddprun::rdzv
