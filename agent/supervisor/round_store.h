// The store through which the workers of a round meet, on the node with group rank 0: a store
// server in this agent, or a port that the agent reserves for a store in rank 0. Every round needs
// a new one. Its thread starts with the first client, because not every program uses a store. Owned
// by the Supervisor, event loop only; the store's thread calls `log`.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/node_core.h"
#include "agent/job.h"
#include "agent/status/node_status.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/net/name_lookup.h"
#include "rendezvous/store/store_server.h"

namespace ddprun::agent {

class RoundStore {
 public:
  RoundStore(boost::asio::io_context& io, const Job& job, std::function<void(std::string_view)> log)
      : job_(job), log_(std::move(log)), io_(io) {}

  // Finds the numeric address to listen on: the store never resolves a name. Call it once, first.
  // `done` is called before prepare() returns if no name has to be looked up; a look-up is beside
  // the event loop, so that a signal need not wait for a name server.
  void prepare(std::function<void(Result<void>)> done);

  // `own`: this node's address on its connection to the leader, used if no address was given.
  StoreResult open(Round round, const std::string& own);
  void close() {
    idle_.reset();
    server_.reset();
    reserved_port_.reset();
  }

  // Takes a client of the port which leader and store share; closes it if no store is open.
  // Throws if the server's thread cannot be started.
  void adopt(rdzv::UniqueFd client, std::string received);

  // A generation of the round's groups begins: the keys of those before the last one go.
  void begin_generation(std::uint32_t generation);

  std::optional<StoreStatus> status() const;
  // The clients that wait, a moment ago.
  std::vector<rdzv::StoreWait> waits() const {
    return server_ ? server_->waits() : std::vector<rdzv::StoreWait>();
  }

 private:
  // A store that no client has reached yet.
  struct Idle {
    explicit Idle(boost::asio::io_context& io) : listener(io) {}
    rdzv::StoreServerOptions options;
    boost::asio::posix::stream_descriptor listener;  // closed if leader and store share a port
    const Lifetime lifetime;
  };

  Result<std::uint16_t> open_at(const std::string& address);
  Result<std::uint16_t> listen(rdzv::ListenOptions options);
  void serve();

  const Job& job_;
  const std::function<void(std::string_view)> log_;
  boost::asio::io_context& io_;
  std::unique_ptr<rdzv::Attempt> lookup_;
  std::string address_;         // numeric; empty: none was given
  std::unique_ptr<Idle> idle_;  // until the first client comes; then server_
  std::unique_ptr<rdzv::StoreServer> server_;
  std::optional<rdzv::Listener> reserved_port_;  // if rank 0 hosts the store
};

}  // namespace ddprun::agent
