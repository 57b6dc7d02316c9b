// A small HTTP server on loopback, plain or TLS, that does what a test wants: each connection gets a
// thread and calls the handler, which reads requests and writes bytes of any kind. Owned by one
// test; its end closes every connection and joins the threads.
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
    virtual std::optional<Request> read() = 0;       // none: the client has closed it
    virtual bool write(std::string_view bytes) = 0;  // as they are; false: closed
    bool reply(unsigned status, const std::string& body);
    virtual void close() = 0;
    virtual void await_end() = 0;  // of the connection, or of the server
  };
  using Handler = std::function<void(Connection&)>;

  // With certificates: TLS; a client then has to show one of that CA's if `wants_client` is set.
  explicit HttpServer(Handler handler, const Certificates* certificates = nullptr,
                      bool wants_client = false);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  rdzv::Endpoint endpoint() const;
  std::string url(const std::string& target) const;  // by the name localhost
  int connections() const;                           // that were accepted so far

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::test
