// TLS for the HTTP client (TLS 1.2 or newer, and the server must prove its name): a factory of
// connections. It is an interface so that programs can do without OpenSSL: the only implementation,
// in rendezvous/tls, links five megabytes of it; a program with the target property
// DDPRUN_WITHOUT_TLS defines make_tls_context() itself (launcher/without_tls.cpp).
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>

#include "rendezvous/common/result.h"
#include "rendezvous/http/http_connection.h"
#include "rendezvous/http/tls_files.h"

namespace ddprun::rdzv {

class TlsContext {
 public:
  virtual ~TlsContext() = default;

  // A connection keeps alive what it needs of this object.
  virtual std::shared_ptr<HttpConnection> connection(boost::asio::io_context& io,
                                                     const HttpOptions& options) = 0;
};

// An Error says which file is wrong, and how.
Result<std::shared_ptr<TlsContext>> make_tls_context(const TlsFiles& files);

}  // namespace ddprun::rdzv
