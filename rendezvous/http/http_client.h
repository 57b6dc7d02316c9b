// HTTP/1.1 towards one server (etcd's gateway, a status endpoint), plain or over TLS: requests one
// after another over a connection that is kept, and a stream, whose reply goes on and comes line by
// line. Made and used on the thread that runs the io_context; names are looked up beside it. No
// redirects, no proxies.
//
//   HttpClient client(io, {.server = {"10.0.0.5", 2379}});
//   client.send({.target = "/v3/kv/range", .body = "{…}"}, [](Result<HttpReply> reply) { … });
//
// The mistake to avoid: taking an error for "it was not done". When the connection breaks, or the
// time is over, after the request was sent, the server may have done it all the same; nothing is
// sent twice here.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/result.h"

namespace ddprun::rdzv {

// "http://host:port/path" or "https://…"; without a port it is 80 or 443, without a path "/".
struct HttpUrl {
  bool is_tls = false;
  Endpoint server;
  std::string target;
};
Result<HttpUrl> parse_http_url(std::string_view text);

class TlsContext;  // made by make_tls_context(), tls_context.h

struct HttpOptions {
  Endpoint server;
  std::shared_ptr<TlsContext> tls = nullptr;  // none: plain
  std::string server_name = "";  // that its certificate has to bear; empty: the endpoint's host
  // From the question to the whole answer, name lookup, connection and handshake included; of a
  // stream, to the head of the answer.
  std::chrono::milliseconds time_limit{5000};
  std::size_t max_reply_bytes = std::size_t{1} << 20;  // of a stream: of one line
};

struct HttpRequest {
  std::string method = "POST";
  std::string target = "/";
  std::string body = "";
  std::string content_type = "application/json";  // where there is a body
  std::vector<std::pair<std::string, std::string>> headers = {};
};

struct HttpReply {
  unsigned status = 0;  // any, 500 too: that the server answered is no error here
  std::string body;
  std::string local_address;  // numeric: of our end of the connection
};

class HttpClient {
 public:
  using Done = std::function<void(Result<HttpReply>)>;

  HttpClient(boost::asio::io_context& io, HttpOptions options);
  ~HttpClient();  // nothing is called any more
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // `done` is never called from within. The time limit counts from when its turn comes.
  void send(HttpRequest request, Done done);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

class HttpStream {
 public:
  struct Events {
    std::function<void(unsigned status)> on_open;        // the head is there
    std::function<void(std::string_view line)> on_line;  // without its end
    std::function<void(Error)> on_end;                   // nothing comes after it
  };

  HttpStream(boost::asio::io_context& io, HttpOptions options, HttpRequest request, Events events);
  ~HttpStream();  // nothing is called any more; may be in one of the events
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rdzv
