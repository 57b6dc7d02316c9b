// The store as a server: PyTorch's TCPStore protocol on one listening socket, for unmodified Python
// and LibTorch clients. It runs on a thread of its own, so that it and its owner do not delay each
// other. It never resolves a name and never blocks on a client; no client can end it, make it
// exceed `memory_limit`, or slow the others down by what it sends or does not read.
//
//   auto store = StoreServer::start({.address = "127.0.0.1"});
//   if (!store) return fail(std::move(store.error()));
//   use((*store)->port());
//   store->reset();   // the socket, all connections and all keys are gone
//
// If a port must stay open across rounds, its owner accepts the connections and passes them to the
// server of the round (listens = false, adopt()); that server still ends with its round.
//
// One thread at a time, except for adopt(), erase_if() and stats(). Do not keep a server for a second round,
// because workers of the new round would read keys of the old one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/limits.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::rdzv {

struct StoreServerOptions {
  std::string address = "127.0.0.1";         // numeric IPv4/IPv6; "::" = dual stack, all interfaces
  std::uint16_t port = 0;                    // 0: the kernel chooses
  std::optional<PortRange> port_range = {};  // tried in order when given
  int listen_fd = -1;                        // >= 0: take over this bound socket instead
  bool listens = true;                       // false: serves only connections given to adopt()
  std::size_t memory_limit = limits::kDefaultStoreMemory;
  // Called on the store's thread for clients that were disconnected, with one line each, at most
  // once a second. Default: prints to stderr.
  std::function<void(std::string_view)> log = {};
};

// Statistics for display, slightly out of date.
struct StoreStats {
  std::uint64_t requests = 0;  // since the server began
  std::uint64_t connections = 0;
  std::uint64_t keys = 0;
  std::uint64_t memory_bytes = 0;
};

// A client that waits for a key that is not set yet.
struct StoreWait {
  Endpoint client;
  std::string key;
  std::chrono::steady_clock::time_point since;
};

class StoreServer {
 public:
  // When it returns, the server is bound and listening.
  static Result<std::unique_ptr<StoreServer>> start(const StoreServerOptions& options);

  // 0 and empty if it does not listen.
  std::uint16_t port() const { return bound().port; }
  virtual const Endpoint& bound() const = 0;

  // Serves a connection that other code accepted; `received` are the bytes already read from it:
  // for a port that also speaks another protocol. Any thread.
  virtual void adopt(UniqueFd connection, std::string received) = 0;

  // Drops the keys with such a name, soon. Any thread; the store's thread calls `is_obsolete`.
  virtual void erase_if(std::function<bool(std::string_view name)> is_obsolete) = 0;

  // Any thread.
  virtual StoreStats stats() const = 0;

  // The clients that wait, a hundred at most, as it was when this was called the last time: the store's thread
  // is asked to look again. Any thread.
  virtual std::vector<StoreWait> waits() = 0;

  // Ends the service, frees the port, joins the thread and closes every connection, within 10 ms.
  // (With very many connections, the kernel may still be closing the last ones when this returns.)
  virtual ~StoreServer() = default;
};

}  // namespace ddprun::rdzv
