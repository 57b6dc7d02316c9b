// Where the leader of a job is, as the launcher has decided: a value in the Job, which
// find_leader.h carries out. Any thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/etcd/etcd_spec.h"
#include "rendezvous/leader/node_proof.h"
#include "rendezvous/round/liveness.h"

namespace ddprun::rdzv {

struct LeaderSpec {
  enum class Where {
    kAlone,      // here, for a job of one node
    kHere,       // here, listening at the endpoint
    kElsewhere,  // at the endpoint
    kToBeFound,  // here if the endpoint is a free address of this machine, else there
    kElected,    // the agents elect it, under etcd
  };
  Where where = Where::kAlone;
  // kHere only because no node rank was given: a node whose endpoint is on another machine must not lead.
  bool leads_by_default = false;
  Endpoint endpoint;  // a name or a numeric address
  std::chrono::milliseconds join_timeout{600'000};
  KeepAlive keep_alive;
  std::optional<EtcdSpec> etcd;  // kElected
  NodeProof proof;

  bool operator==(const LeaderSpec&) const = default;
};

}  // namespace ddprun::rdzv
