#include "rendezvous/http/http_connection.h"

#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rendezvous/http/tls_context.h"
#include "rendezvous/net/name_lookup.h"

namespace ddprun::rdzv {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

using PlainStream = tcp::socket;
using TlsStream = asio::ssl::stream<tcp::socket>;

constexpr std::uint32_t kMaxHeadBytes = 16 * 1024;
constexpr std::size_t kBufferBytes = std::size_t{64} * 1024;
constexpr std::size_t kChunkBytes = std::size_t{16} * 1024;

http::request<http::string_body> message_of(const HttpRequest& request,
                                            const HttpOptions& options) {
  http::request<http::string_body> message;
  message.version(11);
  message.method_string(request.method);
  message.target(request.target);
  message.set(http::field::host, options.server.to_string());
  message.set(http::field::user_agent, "ddprun");
  if (!request.body.empty()) message.set(http::field::content_type, request.content_type);
  for (const auto& [name, value] : request.headers) message.set(name, value);
  message.body() = request.body;
  message.prepare_payload();
  return message;
}

template <typename Stream>
class ConnectionOf final : public HttpConnection,
                           public std::enable_shared_from_this<ConnectionOf<Stream>> {
 public:
  static constexpr bool kIsTls = std::is_same_v<Stream, TlsStream>;

  ConnectionOf(asio::io_context& io, const HttpOptions& options)
      : options_(options), stream_(make_stream(io, options)), lookup_(io), deadline_(io) {}

  void exchange(const HttpRequest& request, Done done) override {
    done_ = std::move(done);
    is_streaming_ = false;
    reply_.emplace();
    reply_->header_limit(kMaxHeadBytes);
    reply_->body_limit(options_.max_reply_bytes);
    begin(request);
  }

  void stream(const HttpRequest& request, HttpStream::Events events) override {
    events_ = std::move(events);
    is_streaming_ = true;
    stream_reply_.emplace();
    stream_reply_->header_limit(kMaxHeadBytes);
    stream_reply_->body_limit(boost::none);
    begin(request);
  }

  // What an idle server sends is its end.
  bool is_reusable() const override {
    if (!is_open_ || is_over_) return false;
    char byte = 0;
    const auto count = ::recv(const_cast<ConnectionOf*>(this)->socket().native_handle(), &byte, 1,
                              MSG_PEEK | MSG_DONTWAIT);
    return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }

  void close() override {
    is_over_ = true;
    lookup_.cancel();
    deadline_.cancel();
    error_code ec;
    socket().close(ec);
  }

 private:
  static Stream make_stream(asio::io_context& io, const HttpOptions& options) {
    if constexpr (kIsTls) {
      return Stream(io, options.tls->context());
    } else {
      return Stream(io);
    }
  }

  tcp::socket& socket() {
    if constexpr (kIsTls) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

  // A handler of what comes next, unless this ends first.
  template <typename Next>
  auto then(Next next) {
    return [self = this->shared_from_this(), next](error_code ec, const auto&...) {
      if (self->is_over_) return;
      ec ? self->end(self->explain(ec)) : next();
    };
  }

  // ---- to the server

  void begin(const HttpRequest& request) {
    request_ = message_of(request, options_);
    deadline_.expires_after(options_.time_limit);
    // One that is ready already cannot be cancelled: it finds that its question is not the last one.
    deadline_.async_wait([weak = this->weak_from_this(), question = ++question_](error_code ec) {
      const auto self = weak.lock();
      if (ec || !self || self->is_over_ || self->question_ != question) return;
      self->end(Error{ErrorCode::kTimeout,
                      self->who() + " did not answer within " +
                          std::to_string(self->options_.time_limit.count()) + " ms" +
                          self->what_was_under_way_,
                      {}});
    });
    if (is_open_) return write();
    what_was_under_way_ = " (its name is being looked up)";
    if (const auto known = addresses_without_lookup(options_.server.host)) return connect(*known);
    lookup_.start(options_.server.host, [weak = this->weak_from_this()](const auto& addresses) {
      const auto self = weak.lock();
      if (!self || self->is_over_) return;
      if (addresses) return self->connect(*addresses);
      self->end({ErrorCode::kUnavailable, self->who() + ": " + addresses.error().message, {}});
    });
  }

  void connect(const std::vector<std::string>& addresses) {
    what_was_under_way_ = " (there is no connection yet)";
    std::vector<tcp::endpoint> endpoints;
    for (const std::string& each : addresses) {
      endpoints.emplace_back(asio::ip::make_address(each), options_.server.port);
    }
    asio::async_connect(socket(), endpoints, then([this] { connected(); }));
  }

  void connected() {
    error_code ec;
    local_address_ = socket().local_endpoint(ec).address().to_string();
    socket().set_option(tcp::no_delay(true), ec);
    set_probes();
    if constexpr (kIsTls) {
      what_was_under_way_ = " (the TLS handshake is not done)";
      if (!expect_name()) {
        return end(Error{ErrorCode::kInvalidArgument,
                         who() + ": the name '" + name() + "' cannot be checked",
                         {}});
      }
      stream_.async_handshake(asio::ssl::stream_base::client, then([this] {
                                is_open_ = true;
                                write();
                              }));
    } else {
      is_open_ = true;
      write();
    }
  }

  // A server whose machine has died says nothing; a stream would wait for it for hours.
  void set_probes() {
    const auto set = [fd = socket().native_handle()](int level, int option, int value) {
      ::setsockopt(fd, level, option, &value, sizeof value);
    };
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  }

  const std::string& name() const {
    return options_.server_name.empty() ? options_.server.host : options_.server_name;
  }

  bool expect_name() {
    if constexpr (kIsTls) {
      X509_VERIFY_PARAM* expected = SSL_get0_param(stream_.native_handle());
      error_code ec;
      asio::ip::make_address(name(), ec);
      if (!ec) return X509_VERIFY_PARAM_set1_ip_asc(expected, name().c_str()) == 1;
      X509_VERIFY_PARAM_set_hostflags(expected, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
      if (X509_VERIFY_PARAM_set1_host(expected, name().c_str(), 0) != 1) return false;
      // What SSL_set_tlsext_host_name is, without its cast.
      std::string sni = name();
      return SSL_ctrl(stream_.native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME,
                      TLSEXT_NAMETYPE_host_name, sni.data()) == 1;
    }
    return true;
  }

  void write() {
    what_was_under_way_ = "";
    http::async_write(stream_, request_,
                      then([this] { is_streaming_ ? read_head() : read_reply(); }));
  }

  // ---- its answer

  void answered() {
    deadline_.cancel();
    ++question_;
  }

  void read_reply() {
    http::async_read(stream_, buffer_, *reply_, then([this] {
                       answered();
                       is_open_ = reply_->get().keep_alive() && buffer_.size() == 0;
                       HttpReply reply{reply_->get().result_int(), std::move(reply_->get().body()),
                                       local_address_};
                       const Done done = std::move(done_);
                       done(std::move(reply));
                     }));
  }

  void read_head() {
    http::async_read_header(stream_, buffer_, *stream_reply_, then([this] {
                              answered();
                              if (events_.on_open) {
                                events_.on_open(stream_reply_->get().result_int());
                              }
                              if (!is_over_) read_some();
                            }));
  }

  void read_some() {
    auto& body = stream_reply_->get().body();
    body.data = chunk_.data();
    body.size = chunk_.size();
    http::async_read_some(stream_, buffer_, *stream_reply_,
                          [self = this->shared_from_this()](error_code ec, std::size_t) {
                            if (!self->is_over_) self->read_part(ec);
                          });
  }

  void read_part(error_code ec) {
    if (ec && ec != http::error::need_buffer) return end(explain(ec));
    take({chunk_.data(), chunk_.size() - stream_reply_->get().body().size});
  }

  void take(std::string_view bytes) {
    while (!is_over_) {
      const std::size_t end_of_line = bytes.find('\n');
      line_ += bytes.substr(0, end_of_line);
      if (line_.size() > options_.max_reply_bytes) {
        return end(explain(http::error::body_limit));
      }
      if (end_of_line == std::string_view::npos) break;
      bytes.remove_prefix(end_of_line + 1);
      give_line();
    }
    if (is_over_) return;
    if (!stream_reply_->is_done()) return read_some();
    give_line();
    if (is_over_) return;
    end(Error{ErrorCode::kClosed, who() + " has ended its answer", {}});
  }

  void give_line() {
    const std::string line = std::exchange(line_, {});
    if (!line.empty() && events_.on_line) events_.on_line(line);
  }

  // ---- what goes wrong

  std::string who() const { return options_.server.to_string(); }

  void end(Error error) {
    close();
    if (is_streaming_) return events_.on_end(std::move(error));
    const Done done = std::move(done_);
    done(fail(std::move(error)));
  }

  Error explain(error_code ec) {
    if (ec == http::error::body_limit || ec == http::error::header_limit ||
        ec == http::error::buffer_overflow) {
      return {ErrorCode::kResourceExhausted,
              "the answer of " + who() + " is larger than it may be (" +
                  std::to_string(options_.max_reply_bytes) + " bytes)",
              {}};
    }
    const bool is_cut_off = ec == http::error::end_of_stream || ec == asio::error::eof ||
                            ec == http::error::partial_message ||
                            ec == asio::ssl::error::stream_truncated;
    if (is_cut_off) {
      const bool is_in_handshake = kIsTls && !is_open_;
      return {ErrorCode::kClosed,
              who() + (is_in_handshake
                           ? " closed the connection instead of a TLS handshake; is it meant "
                             "to be spoken to by TLS?"
                           : " closed the connection before its answer was complete"),
              {}};
    }
    if (ec.category() == http::make_error_code(http::error::bad_version).category()) {
      return {ErrorCode::kProtocol,
              who() + " does not speak HTTP (" + ec.message() + "); check the port" +
                  (kIsTls ? "" : ", and whether it wants TLS"),
              {}};
    }
    if (ec.category() == asio::error::get_ssl_category()) return explain_tls(ec);
    return {ErrorCode::kUnavailable, who() + ": " + ec.message(), {}};
  }

  Error explain_tls(error_code ec) {
    if constexpr (kIsTls) {
      const long verdict = SSL_get_verify_result(stream_.native_handle());
      if (verdict != X509_V_OK) {
        const bool is_name =
            verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH;
        return {ErrorCode::kPermissionDenied,
                "the certificate of " + who() + " is not trusted: " +
                    (is_name ? "it is not for '" + name() + "'"
                             : std::string(X509_verify_cert_error_string(verdict))),
                {}};
      }
    }
    if (ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == SSL_R_WRONG_VERSION_NUMBER) {
      return {
          ErrorCode::kProtocol, who() + " does not speak TLS; check the port and the protocol", {}};
    }
    return {ErrorCode::kPermissionDenied, who() + " ends the TLS connection: " + ec.message(), {}};
  }

  const HttpOptions options_;
  Stream stream_;
  NameLookup lookup_;
  asio::steady_timer deadline_;
  std::uint64_t question_ = 0;  // counts them, and the answers
  std::string what_was_under_way_;
  std::string local_address_;
  bool is_open_ = false;
  bool is_over_ = false;
  bool is_streaming_ = false;

  http::request<http::string_body> request_;
  boost::beast::flat_buffer buffer_{kBufferBytes};
  Done done_;
  std::optional<http::response_parser<http::string_body>> reply_;
  HttpStream::Events events_;
  std::optional<http::response_parser<http::buffer_body>> stream_reply_;
  std::array<char, kChunkBytes> chunk_{};
  std::string line_;  // not whole yet
};

}  // namespace

std::shared_ptr<HttpConnection> HttpConnection::make(asio::io_context& io,
                                                     const HttpOptions& options) {
  if (options.tls) return std::make_shared<ConnectionOf<TlsStream>>(io, options);
  return std::make_shared<ConnectionOf<PlainStream>>(io, options);
}

}  // namespace ddprun::rdzv
