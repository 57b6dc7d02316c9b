// A small HTTP server for people and programs of this machine (--metrics-port): GET and HEAD, and
// streams of server-sent events, on loopback only. It shares the agent's event loop and never holds
// it up: nothing blocks, and whatever a client does (garbage, a request without end, an answer that
// it does not read) is bounded in bytes, in connections and in time.
//
// A browser that was lured to another site must not read what is served here. That site cannot ask
// under its own origin (no CORS header is ever sent), and where it has its own name point to
// 127.0.0.1 (DNS rebinding), the Host header still has that name: only loopback's names are served.
//
// Owned by whoever answers; event loop only, like the handler and the exchanges. The mistake to
// avoid: taking loopback for private. Every user of this machine may connect.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun::agent {

struct HttpServerLimits {
  std::size_t connections = 64;  // then the one that has waited longest for a request goes
  std::size_t streams = 16;      // of those; further ones are told to come back later
  std::size_t header_bytes = 8192;
  std::chrono::milliseconds request{10'000};  // from the connection to its first request, whole
  std::chrono::milliseconds idle{60'000};     // from an answer to the next request, whole
  std::chrono::milliseconds write{10'000};    // until the client has taken an answer or an event
  std::chrono::milliseconds linger{1'000};    // that a refused client has to read why
};

// One request, and the way to answer it: reply() once, or begin_events() once and then send_event().
// May be kept as long as the answer takes; after the client has gone all of it does nothing.
class HttpExchange {
 public:
  struct Reply {
    unsigned status = 200;
    std::string content_type = "text/plain; charset=utf-8";
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers = {};  // more of them
  };
  virtual ~HttpExchange() = default;

  virtual const std::string& path() const = 0;  // begins with '/', without the query
  virtual void reply(Reply reply) = 0;

  // False: there are too many already, and the client was told so.
  virtual bool begin_events() = 0;
  // `text`: whole events, shared by all who get the same. Not while is_busy().
  virtual void send_event(std::shared_ptr<const std::string> text) = 0;
  virtual bool is_busy() const = 0;  // the client has not taken all of the last one yet
  // The last one, also while it is busy; then the stream ends.
  virtual void end_events(std::shared_ptr<const std::string> text) = 0;
  virtual bool is_open() const = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;

  // Bound to 127.0.0.1 and listening when it returns; port 0: the kernel chooses.
  static Result<std::unique_ptr<HttpServer>> start(boost::asio::io_context& io, std::uint16_t port,
                                                   Handler handler, HttpServerLimits limits = {});
  ~HttpServer();  // closes every connection
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;

 private:
  class Impl;
  explicit HttpServer(std::shared_ptr<Impl> impl);

  std::shared_ptr<Impl> impl_;
};

// Whether a Host header names this machine by one of loopback's own names, with any port (a
// tunnel's is another one). Pure.
bool is_loopback_host(std::string_view host);

}  // namespace ddprun::agent
