// What http_client.h says of TLS, as OpenSSL has it: apart, because Asio's TLS headers are large.
#pragma once

#include <boost/asio/ssl/context.hpp>

namespace ddprun::rdzv {

class TlsContext {
 public:
  TlsContext() : context_(boost::asio::ssl::context::tls_client) {}
  boost::asio::ssl::context& context() { return context_; }

 private:
  boost::asio::ssl::context context_;
};

}  // namespace ddprun::rdzv
