// One client of the store server: its socket, what has arrived of its next request, and the replies
// that it has not read yet. Owned by the server's loop, used on its thread; makes no decisions.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "rendezvous/common/unique_fd.h"
#include "rendezvous/store/store_core.h"
#include "rendezvous/store_wire/reply_queue.h"
#include "rendezvous/store_wire/store_decoder.h"

namespace ddprun::rdzv {

struct StoreConnection {
  UniqueFd socket;
  ClientId client = 0;
  wire::RequestDecoder decoder;
  std::unique_ptr<wire::ReplyQueue> unsent;  // only while the client reads more slowly than it asks
  std::size_t held_bytes = 0;                // counted by the store
  bool is_finished = false;  // it will send nothing more; close when all replies are sent
  // Received bytes that are not processed until the client has read its replies: it is paused
  // meanwhile, and nothing more is received. (Null for nearly all clients.)
  std::unique_ptr<std::string> backlog;

  bool is_paused() const { return backlog != nullptr; }
  std::size_t bytes_in_memory() const;
  std::string peer_name() const;  // HOST:PORT

  // Sends as much of `replies` as the socket accepts now. False: the connection is broken.
  bool flush(wire::ReplyQueue& replies);
};

}  // namespace ddprun::rdzv
