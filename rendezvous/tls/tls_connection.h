// An HTTP connection over TLS. What is said in http_connection.h holds.
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
