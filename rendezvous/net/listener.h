// Opens the listening TCP socket of a server: numeric address only, so that nothing here ever waits
// for a name server. What the accepted sockets need (no delay, keep-alive) is set on the listener,
// from which Linux hands it down: no system call per connection.
// Free functions, any thread.
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

// Holds a port for a server that another process will open there: bound, never listening. Nobody
// else gets the port, but a socket with SO_REUSEADDR, as PyTorch's store sets it, may bind it too.
Result<Listener> reserve_port(const ListenOptions& options);

// What a connection accepted from such a listener is: non-blocking, close-on-exec, tuned. For one
// that another accepted.
void prepare_connection(int fd);

}  // namespace ddprun::rdzv
