// An HTTP/1.1 client of one server (etcd's gateway, a status endpoint), plain or over TLS: requests
// one after another over a persistent connection, and streams, whose reply does not end and arrives
// line by line. Created and used on the thread that runs the io_context; names are looked up on
// another thread. No redirects, no proxies.
//
//   HttpClient client(io, {.server = {"10.0.0.5", 2379}});
//   client.send({.target = "/v3/kv/range", .body = "{…}"}, [](Result<HttpReply> reply) { … });
//
// An error does not mean that the server has not acted: if the connection breaks or the time limit
// passes after the request was sent, the server may have performed it. Nothing is sent twice here.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/result.h"
#include "rendezvous/net/transport.h"

namespace ddprun::rdzv {

// "http://host:port/path" or "https://…"; the default port is 80 or 443, the default path "/".
struct HttpUrl {
  bool is_tls = false;
  Endpoint server;
  std::string target;
};
Result<HttpUrl> parse_http_url(std::string_view text);

class HttpConnection;
struct HttpOptions;

// TLS as the client sees it (tls_context.h): makes connections. A connection keeps alive what it
// needs of this.
using TlsContext = std::function<std::shared_ptr<HttpConnection>(boost::asio::io_context& io,
                                                                 const HttpOptions& options)>;

struct HttpOptions {
  Endpoint server;
  std::shared_ptr<TlsContext> tls = nullptr;  // null: plain HTTP
  std::string server_name = "";  // that its certificate must have; empty: the endpoint's host
  // From send() to the complete reply, name lookup, connection and handshake included; for a
  // stream, to the head of the reply.
  std::chrono::milliseconds time_limit{5000};
  std::size_t max_reply_bytes = std::size_t{1} << 20;  // for a stream: of one line
};

struct HttpRequest {
  std::string method = "POST";
  std::string target = "/";
  std::string body = "";  // JSON
  std::vector<std::pair<std::string, std::string>> headers = {};
};

struct HttpReply {
  unsigned status = 0;  // any, even 500: every answer of the server is a success here
  std::string body;
  std::string local_address;  // numeric, of our end of the connection
};

class HttpClient {
 public:
  using Done = std::function<void(Result<HttpReply>)>;

  HttpClient(boost::asio::io_context& io, HttpOptions options)
      : io_(io), options_(std::move(options)) {}
  ~HttpClient();  // nothing is called any more

  // `done` is never called from within send(). The time limit starts when the request's turn comes.
  void send(HttpRequest request, Done done);

 private:
  void post_next();
  void next();
  void finish(Result<HttpReply> reply);

  boost::asio::io_context& io_;
  const HttpOptions options_;
  std::deque<std::pair<HttpRequest, Done>> queue_;  // the first one is in progress
  std::shared_ptr<HttpConnection> connection_;
  const Lifetime lifetime_;
};

class HttpStream final : public Attempt {
 public:
  struct Events {
    std::function<void(unsigned status)> on_open;        // the head has arrived
    std::function<void(std::string_view line)> on_line;  // without the line end
    std::function<void(Error)> on_end;                   // the last event
  };

  HttpStream(boost::asio::io_context& io, const HttpOptions& options, const HttpRequest& request,
             Events events);
  ~HttpStream() override;  // no callback runs afterwards; allowed in an event

 private:
  const std::shared_ptr<HttpConnection> connection_;
};

}  // namespace ddprun::rdzv
