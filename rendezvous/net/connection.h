// A Stream (transport.h) over a socket: reads what arrives, queues what cannot be sent yet, and
// reports its end once. Everything happens on the thread of its io_context.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/transport.h"

namespace ddprun::rdzv {

// `socket`: connected and non-blocking.
StreamPtr stream_over(const boost::asio::any_io_executor& executor, UniqueFd socket);

}  // namespace ddprun::rdzv
