#include "tests/support/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ddprun::test {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

template <typename Stream>
class ConnectionOver final : public HttpServer::Connection {
 public:
  explicit ConnectionOver(Stream& stream) : stream_(stream) {}

  std::optional<HttpServer::Request> read() override {
    http::request<http::string_body> message;
    error_code ec;
    http::read(stream_, buffer_, message, ec);
    if (ec) return std::nullopt;
    HttpServer::Request request{
        std::string(message.method_string()), std::string(message.target()), message.body(), {}};
    for (const auto& field : message) {
      std::string name = field.name_string();
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
      request.headers[name] = field.value();
    }
    return request;
  }

  bool write(std::string_view bytes) override {
    error_code ec;
    asio::write(stream_, asio::buffer(bytes.data(), bytes.size()), ec);
    return !ec;
  }

  void close() override {
    ::shutdown(boost::beast::get_lowest_layer(stream_).native_handle(), SHUT_RDWR);
  }

  void await_end() override {
    error_code ec;
    char byte = 0;
    while (!ec) stream_.read_some(asio::buffer(&byte, 1), ec);
  }

 private:
  Stream& stream_;
  boost::beast::flat_buffer buffer_;
};

}  // namespace

bool HttpServer::Connection::reply(unsigned status, const std::string& body) {
  return write("HTTP/1.1 " + std::to_string(status) +
               " Status\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

class HttpServer::Impl {
 public:
  Impl(Handler handler, const Certificates* certificates, bool wants_client,
       const rdzv::Endpoint& at)
      : handler_(std::move(handler)), acceptor_(io_, {asio::ip::make_address(at.host), at.port}) {
    if (certificates != nullptr) {
      tls_.emplace(asio::ssl::context::tls_server);
      tls_->use_certificate_chain_file(certificates->server);
      tls_->use_private_key_file(certificates->server_key, asio::ssl::context::pem);
      if (wants_client) {
        tls_->load_verify_file(certificates->ca);
        tls_->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
      }
    }
    accepting_ = std::thread([this] { accept(); });
  }

  ~Impl() {
    is_over_ = true;
    ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
    accepting_.join();
    {
      const std::scoped_lock lock(mutex_);
      for (const auto& socket : sockets_) ::shutdown(socket->native_handle(), SHUT_RDWR);
    }
    for (std::thread& each : threads_) each.join();
  }

  rdzv::Endpoint endpoint() const {
    const auto local = acceptor_.local_endpoint();
    return {local.address().to_string(), local.port()};
  }
  bool is_tls() const { return tls_.has_value(); }
  int connections() const { return connections_; }

 private:
  void accept() {
    while (!is_over_) {
      auto socket = std::make_shared<tcp::socket>(io_);
      error_code ec;
      acceptor_.accept(*socket, ec);
      if (ec) return;
      connections_ += 1;
      const std::scoped_lock lock(mutex_);
      sockets_.push_back(socket);
      threads_.emplace_back([this, socket] {
        serve(*socket);
        ::shutdown(socket->native_handle(), SHUT_RDWR);
      });
    }
  }

  void serve(tcp::socket& socket) {
    if (!tls_) {
      ConnectionOver<tcp::socket> connection(socket);
      return handler_(connection);
    }
    asio::ssl::stream<tcp::socket&> stream(socket, *tls_);
    error_code ec;
    stream.handshake(asio::ssl::stream_base::server, ec);
    if (ec) return;
    ConnectionOver<asio::ssl::stream<tcp::socket&>> connection(stream);
    handler_(connection);
  }

  const Handler handler_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  std::optional<asio::ssl::context> tls_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> connections_{0};
  std::mutex mutex_;
  std::vector<std::shared_ptr<tcp::socket>> sockets_;
  std::vector<std::thread> threads_;  // of connections; the acceptor creates them
  std::thread accepting_;
};

HttpServer::HttpServer(Handler handler, const Certificates* certificates, bool wants_client,
                       const rdzv::Endpoint& at)
    : impl_(std::make_unique<Impl>(std::move(handler), certificates, wants_client, at)) {}
HttpServer::~HttpServer() = default;
rdzv::Endpoint HttpServer::endpoint() const { return impl_->endpoint(); }
int HttpServer::connections() const { return impl_->connections(); }
std::string HttpServer::url(const std::string& target) const {
  return std::string(impl_->is_tls() ? "https" : "http") +
         "://localhost:" + std::to_string(endpoint().port) + target;
}

}  // namespace ddprun::test
