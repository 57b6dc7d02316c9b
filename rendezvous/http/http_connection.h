// One connection of an HTTP client, plain or TLS: from the name lookup to the bytes of the reply.
// Owned by a client or a stream (http_client.h), which calls close() when it is done; no callback
// runs after that. Everything happens on the thread that runs the io_context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>

#include "rendezvous/common/result.h"
#include "rendezvous/http/http_client.h"

namespace ddprun::rdzv {

class HttpConnection {
 public:
  using Done = std::function<void(Result<HttpReply>)>;

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

}  // namespace ddprun::rdzv
