// The store as a server: PyTorch's TCPStore protocol on one listening socket, for unmodified Python
// and LibTorch clients. It lives on a thread of its own, so that nothing that its owner does delays
// the workers and no burst of theirs delays the owner. Never resolves a name, never blocks on a
// client, and no client can end it, fill it beyond `memory_limit` or slow the others down by what
// it sends or does not read.
//
//   auto store = StoreServer::start({.address = "127.0.0.1"});
//   if (!store) return fail(std::move(store.error()));
//   use((*store)->port());
//   store->reset();   // the socket, all connections and all keys are gone
//
// A port that must stay open from round to round has an owner of its own, who accepts and hands the
// connections to the server of the round (listens = false, adopt()); that one goes with its round,
// like any other.
//
// One thread at a time, but for adopt(). The mistake to avoid: keeping a server for a second round;
// workers of the new round would read keys of dead ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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
  // Told of clients that were turned away, a line at a time and at most one line a second, on the
  // store's thread. Default: a line on stderr.
  std::function<void(std::string_view)> log = {};
};

// Of the moment before last, for people.
struct StoreStats {
  std::uint64_t requests = 0;  // since the server began
  std::uint64_t connections = 0;
  std::uint64_t keys = 0;
  std::uint64_t memory_bytes = 0;
};

class StoreServer {
 public:
  // Bound and listening when it returns.
  static Result<std::unique_ptr<StoreServer>> start(const StoreServerOptions& options);

  // Zero and empty without a listening socket.
  std::uint16_t port() const;
  const Endpoint& bound() const;

  // Serves a connection that somebody else accepted, `received` being what was read from it
  // already: for a port that speaks another protocol too. Any thread.
  void adopt(UniqueFd connection, std::string received);

  // Any thread.
  StoreStats stats() const;

  // Ends the service, frees the port, joins the thread and closes every connection, within 10 ms.
  // (Of very many connections the kernel is still telling the last peers when this returns.)
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  class Loop;
  explicit StoreServer(std::unique_ptr<Loop> loop);

  std::unique_ptr<Loop> loop_;
};

}  // namespace ddprun::rdzv
