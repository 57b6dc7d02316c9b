#include "rendezvous/http/http_connection.h"

#include "rendezvous/http/connection_of.h"
#include "rendezvous/http/tls_context.h"

namespace ddprun::rdzv {

std::shared_ptr<HttpConnection> HttpConnection::make(boost::asio::io_context& io,
                                                     const HttpOptions& options) {
  if (options.tls) return options.tls->connection(io, options);
  return std::make_shared<ConnectionOf<boost::asio::ip::tcp::socket>>(io, options);
}

}  // namespace ddprun::rdzv
