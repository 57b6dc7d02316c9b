// A small HTTP server on loopback, plain or TLS, for tests: each connection gets a thread that
// calls the handler, which reads requests and writes arbitrary bytes. Owned by one test; the
// destructor closes every connection and joins the threads.
//
//   HttpServer server([](HttpServer::Connection& client) {
//     while (const auto request = client.read()) client.reply(200, "to " + request->target);
//   });
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/common/endpoint.h"
#include "tests/support/certificates.h"

namespace ddprun::test {

class HttpServer {
 public:
  struct Request {
    std::string method;
    std::string target;
    std::string body;
    std::map<std::string, std::string> headers;  // names in lower case
  };
  class Connection {
   public:
    virtual ~Connection() = default;
    virtual std::optional<Request> read() = 0;  // nullopt: the client has closed the connection
    virtual bool write(std::string_view bytes) = 0;  // as they are; false: closed
    bool reply(unsigned status, const std::string& body);
    virtual void close() = 0;
    virtual void await_end() = 0;  // of the connection, or of the server
  };
  using Handler = std::function<void(Connection&)>;

  // At this port of this address, which the thread that makes it must have; port 0: a free one. With certificates: TLS; if `wants_client` is set, a client must present a certificate of that
  // CA.
  explicit HttpServer(Handler handler, const Certificates* certificates = nullptr,
                      bool wants_client = false, const rdzv::Endpoint& at = {"127.0.0.1", 0});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  rdzv::Endpoint endpoint() const;
  std::string url(const std::string& target) const;  // with the host localhost
  int connections() const;                           // accepted so far

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::test
