#include "rendezvous/http/http_client.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <deque>
#include <utility>

#include "rendezvous/http/http_connection.h"

namespace ddprun::rdzv {
namespace {

constexpr std::uint16_t kHttpPort = 80;
constexpr std::uint16_t kHttpsPort = 443;

}  // namespace

Result<HttpUrl> parse_http_url(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument,
                "'" + std::string(text) + "' is no address of a web server: " + why +
                    "; give http://HOST:PORT/PATH or https://HOST:PORT/PATH");
  };
  HttpUrl url;
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    url.is_tls = true;
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else {
    return bad("it begins neither with http:// nor with https://");
  }
  const auto is_printable = [](char c) { return c > ' ' && c < '\x7f'; };
  if (!std::ranges::all_of(rest, is_printable))
    return bad("it has a character that must be escaped");
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string host(rest.substr(0, slash));
  url.target = slash == rest.size() ? "/" : rest.substr(slash, rest.find('#') - slash);
  if (host.empty() || host.find('@') != std::string::npos)
    return bad("its host or port is not valid");
  const std::size_t colon = host.rfind(':');
  const bool has_port = colon != std::string::npos && !host.ends_with(']');
  if (!has_port) host += ":" + std::to_string(url.is_tls ? kHttpsPort : kHttpPort);
  auto endpoint = parse_endpoint(host);
  if (!endpoint || endpoint->port == 0) return bad("its host or port is not valid");
  url.server = *std::move(endpoint);
  return url;
}

// ---- requests one after another

class HttpClient::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(boost::asio::io_context& io, HttpOptions options) : io_(io), options_(std::move(options)) {}

  void send(HttpRequest request, Done done) {
    queue_.emplace_back(std::move(request), std::move(done));
    if (queue_.size() > 1) return;
    boost::asio::post(io_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->next();
    });
  }

  void close() {
    queue_.clear();
    if (connection_) connection_->close();
  }

 private:
  void next() {
    if (queue_.empty()) return;
    if (!connection_ || !connection_->is_reusable()) {
      if (connection_) connection_->close();
      connection_ = HttpConnection::make(io_, options_);
    }
    connection_->exchange(queue_.front().first, [weak = weak_from_this()](Result<HttpReply> reply) {
      if (const auto self = weak.lock()) self->finish(std::move(reply));
    });
  }

  // `done` may destroy the client.
  void finish(Result<HttpReply> reply) {
    if (queue_.empty()) return;
    const Done done = std::move(queue_.front().second);
    queue_.pop_front();
    if (!queue_.empty()) {
      boost::asio::post(io_, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->next();
      });
    }
    done(std::move(reply));
  }

  boost::asio::io_context& io_;
  const HttpOptions options_;
  std::deque<std::pair<HttpRequest, Done>> queue_;  // the first one is in progress
  std::shared_ptr<HttpConnection> connection_;
};

HttpClient::HttpClient(boost::asio::io_context& io, HttpOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {}
HttpClient::~HttpClient() { impl_->close(); }
void HttpClient::send(HttpRequest request, Done done) {
  impl_->send(std::move(request), std::move(done));
}

// ---- a reply that goes on

class HttpStream::Impl {
 public:
  Impl(boost::asio::io_context& io, const HttpOptions& options)
      : connection(HttpConnection::make(io, options)) {}
  const std::shared_ptr<HttpConnection> connection;
};

HttpStream::HttpStream(boost::asio::io_context& io, HttpOptions options, HttpRequest request,
                       Events events)
    : impl_(std::make_shared<Impl>(io, options)) {
  impl_->connection->stream(request, std::move(events));
}
HttpStream::~HttpStream() { impl_->connection->close(); }

}  // namespace ddprun::rdzv
