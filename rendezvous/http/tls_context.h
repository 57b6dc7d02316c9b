// TLS as the client of HTTP sees it (TLS 1.2 or newer, and the server has to prove its name): a maker
// of connections. Apart from it for the sake of who needs none: rendezvous/tls has the one
// implementation, which brings OpenSSL's five megabytes along, and a program with the target property
// DDPRUN_WITHOUT_TLS defines make_tls_context() itself instead (launcher/without_tls.cpp).
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

  // A connection holds what it needs of this.
  virtual std::shared_ptr<HttpConnection> connection(boost::asio::io_context& io,
                                                     const HttpOptions& options) = 0;
};

// An Error is a sentence about the file that is wrong.
Result<std::shared_ptr<TlsContext>> make_tls_context(const TlsFiles& files);

}  // namespace ddprun::rdzv
