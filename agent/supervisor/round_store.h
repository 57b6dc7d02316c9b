// Where the workers of a round meet, on the node that has group rank 0: a store that this agent
// serves, or a port that it only holds for the store of rank 0 itself. A fresh one for every round.
//
// Owned by the supervisor, event loop only; `log` is called by the store's thread. The mistake to
// avoid: keeping it open into the next round, whose workers would read keys of dead ones.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "agent/core/node_core.h"
#include "agent/job.h"
#include "agent/status/node_status.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/net/name_lookup.h"
#include "rendezvous/store/store_server.h"

namespace ddprun::agent {

class RoundStore {
 public:
  RoundStore(boost::asio::io_context& io, const Job& job, std::function<void(std::string_view)> log)
      : job_(job), log_(std::move(log)), lookup_(io) {}
  RoundStore(const RoundStore&) = delete;
  RoundStore& operator=(const RoundStore&) = delete;

  // Finds out at which address it is to listen. Once, before everything else; `done` is called from
  // here where no name server has to be asked.
  void prepare(std::function<void(Result<void>)> done);

  // `own`: the address that this node has towards its leader, for a store that was given none.
  StoreResult open(Round round, const std::string& own);
  void close();

  // Of the port that is the leader's too. Nothing to do where no store is open.
  void adopt(rdzv::UniqueFd client, std::string received);

  std::optional<StoreStatus> status() const;

 private:
  Result<std::uint16_t> open_at(const std::string& address);

  const Job& job_;
  const std::function<void(std::string_view)> log_;
  rdzv::NameLookup lookup_;
  std::string address_;  // numeric; empty: none was given
  std::unique_ptr<rdzv::StoreServer> server_;
  std::optional<rdzv::Listener> reserved_port_;  // where rank 0 hosts the store instead
};

}  // namespace ddprun::agent
