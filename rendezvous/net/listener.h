// Opens the listening TCP socket of a server: numeric addresses only, so that nothing here waits
// for a name server. Options of the accepted sockets (no delay, keep-alive) are set on the
// listener, from which Linux copies them: no system call per connection. Free functions, any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::rdzv {

struct ListenOptions {
  std::string address = "127.0.0.1";         // "::" also takes IPv4, on all interfaces
  std::uint16_t port = 0;                    // 0: the kernel chooses
  std::optional<PortRange> port_range = {};  // instead of `port`: the first free one
  int listen_fd = -1;  // >= 0: take over this bound socket instead of all the above
};

struct Listener {
  UniqueFd socket;  // listening, non-blocking, close-on-exec
  Endpoint bound;
};

Result<Listener> open_listener(const ListenOptions& options);

// Reserves a port for a server that another process will open there: bound, never listening. Only a
// socket with SO_REUSEADDR, which PyTorch's store sets, can still bind it.
Result<Listener> reserve_port(const ListenOptions& options);

// Makes a connection that other code accepted like one from such a listener: non-blocking,
// close-on-exec, tuned.
void prepare_connection(int fd);

}  // namespace ddprun::rdzv
