// A small HTTP server for people and programs (--metrics-port): GET and HEAD, and streams of
// server-sent events, on loopback, which every user of this machine can reach, or on another address
// of this machine (--metrics-address). Nothing blocks, and whatever a client does is limited in
// bytes, connections and time.
//
// Another web site in a browser of this machine must not be able to read what is for this machine
// only: no CORS header is sent, and against DNS rebinding a request over loopback is answered only
// if its Host header has a name of loopback. A request over another address may come from any host
// that reaches that address: the handler decides what such a client gets.
//
// Owned by its user; event loop only, like the handler and the exchanges.
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

namespace ddprun::agent {

struct HttpServerLimits {
  std::size_t connections = 64;  // then the one that has waited longest for a request is closed
  std::size_t streams = 16;      // of these; more get an answer that says to come back later
  std::size_t header_bytes = 8192;
  std::chrono::milliseconds request{10'000};  // from the connection to its complete first request
  std::chrono::milliseconds idle{60'000};     // from an answer to the complete next request
  std::chrono::milliseconds write{10'000};    // until the client has taken an answer or an event
  std::chrono::milliseconds linger{1'000};    // for a refused client to read the reason
};

// One request. Answer it by reply() once, or by begin_events() once and then send_event(). May be
// kept as long as the answer takes; when the client is gone, all calls do nothing.
class HttpExchange {
 public:
  struct Reply {
    unsigned status = 200;
    std::string content_type = "text/plain; charset=utf-8";
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers = {};  // additional ones
  };
  virtual ~HttpExchange() = default;

  virtual const std::string& path() const = 0;  // begins with '/', without the query
  virtual bool is_over_loopback() const = 0;    // the client is on this machine
  virtual void reply(Reply reply) = 0;

  // False: there are too many streams already, and the client got an answer that says so.
  virtual bool begin_events() = 0;
  // `text`: whole events, shared by all clients that get the same. Not while is_busy().
  virtual void send_event(std::shared_ptr<const std::string> text) = 0;
  virtual bool is_busy() const = 0;  // the client has not taken all of the last event yet
  // The last event, also while is_busy(); then the stream ends.
  virtual void end_events(std::shared_ptr<const std::string> text) = 0;
  virtual bool is_open() const = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;

  // Listening when it returns, at a numeric address; port 0: the kernel chooses.
  static Result<std::unique_ptr<HttpServer>> start(boost::asio::io_context& io,
                                                   const rdzv::Endpoint& at, Handler handler,
                                                   HttpServerLimits limits = {});
  virtual ~HttpServer() = default;  // closes every connection

  virtual const rdzv::Endpoint& bound() const = 0;
};

// Whether a Host header has one of loopback's names, with any port (a tunnel has its own). Pure.
bool is_loopback_host(std::string_view host);

}  // namespace ddprun::agent
