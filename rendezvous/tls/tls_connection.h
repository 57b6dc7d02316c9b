// An HTTP connection over TLS. The rules of http_connection.h apply.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "rendezvous/http/http_client.h"
#include "rendezvous/http/http_connection.h"

namespace ddprun::rdzv {

std::shared_ptr<HttpConnection> make_tls_connection(boost::asio::io_context& io,
                                                    const HttpOptions& options,
                                                    boost::asio::ssl::context& context);

}  // namespace ddprun::rdzv
