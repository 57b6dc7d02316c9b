#include "rendezvous/http/http_client.h"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "rendezvous/http/connection_of.h"

namespace ddprun::rdzv {

Result<HttpUrl> parse_http_url(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument,
                "'" + std::string(text) + "' is no address of a web server: " + why +
                    "; give http://HOST:PORT/PATH or https://HOST:PORT/PATH");
  };
  HttpUrl url;
  url.is_tls = text.starts_with("https://");
  if (!url.is_tls && !text.starts_with("http://")) {
    return bad("it begins neither with http:// nor with https://");
  }
  const std::string_view rest = text.substr(text.find("//") + 2);
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
  if (!has_port) host += std::string(":") + (url.is_tls ? "443" : "80");
  auto endpoint = parse_endpoint(host);
  if (!endpoint || endpoint->port == 0) return bad("its host or port is not valid");
  url.server = *std::move(endpoint);
  return url;
}

std::shared_ptr<HttpConnection> HttpConnection::make(boost::asio::io_context& io,
                                                     const HttpOptions& options) {
  if (options.tls) return (*options.tls)(io, options);
  return std::make_shared<ConnectionOf<boost::asio::ip::tcp::socket>>(io, options);
}

// ---- requests one after another

HttpClient::~HttpClient() {
  if (connection_) connection_->close();
}

void HttpClient::send(HttpRequest request, Done done) {
  queue_.emplace_back(std::move(request), std::move(done));
  if (queue_.size() == 1) post_next();
}

void HttpClient::post_next() {
  boost::asio::post(io_, lifetime_.guard([this] { next(); }));
}

void HttpClient::next() {
  if (!connection_ || !connection_->is_reusable()) {
    if (connection_) connection_->close();
    connection_ = HttpConnection::make(io_, options_);
  }
  connection_->exchange(queue_.front().first,
                        [this](Result<HttpReply> reply) { finish(std::move(reply)); });
}

// `done` may destroy the client.
void HttpClient::finish(Result<HttpReply> reply) {
  const Done done = std::move(queue_.front().second);
  queue_.pop_front();
  if (!queue_.empty()) post_next();
  done(std::move(reply));
}

// ---- a reply that goes on

HttpStream::HttpStream(boost::asio::io_context& io, const HttpOptions& options,
                       const HttpRequest& request, Events events)
    : connection_(HttpConnection::make(io, options)) {
  connection_->stream(request, std::move(events));
}
HttpStream::~HttpStream() { connection_->close(); }

}  // namespace ddprun::rdzv
