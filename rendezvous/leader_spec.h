// Where the leader of a job is to be found, as the launcher decided it: a value of the Job, carried
// out by find_leader.h. Copies, compares; any thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/etcd/etcd_spec.h"
#include "rendezvous/round/liveness.h"

namespace ddprun::rdzv {

struct LeaderSpec {
  enum class Where {
    kAlone,      // here, and nobody else takes part
    kHere,       // here, listening at the endpoint
    kElsewhere,  // at the endpoint
    kToBeFound,  // here if the endpoint is an address of this machine and still free, else there
    kElected,    // wherever the agents elect one, under etcd
  };
  Where where = Where::kAlone;
  Endpoint endpoint;  // a name or a numeric address
  std::chrono::milliseconds join_timeout{600'000};
  KeepAlive keep_alive;
  std::optional<EtcdSpec> etcd;  // kElected
  std::string token;             // secret: never printed; empty: none

  bool operator==(const LeaderSpec&) const = default;
};

}  // namespace ddprun::rdzv
