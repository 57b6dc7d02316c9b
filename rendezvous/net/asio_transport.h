// The transport over real sockets and real time: an Asio loop, TCP, and the system's resolver.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>

#include "rendezvous/net/transport.h"

namespace ddprun::rdzv {

// For use on the thread that runs `io`, which must outlive it.
std::shared_ptr<Transport> asio_transport(boost::asio::io_context& io);

}  // namespace ddprun::rdzv
