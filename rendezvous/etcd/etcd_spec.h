// How the agents of a job reach etcd, and what the leader publishes about itself there. A value;
// any thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/http/tls_files.h"

namespace ddprun::rdzv {

struct EtcdSpec {
  std::vector<Endpoint> endpoints;
  std::string prefix = "/ddprun";         // of every key
  std::chrono::milliseconds lease{5000};  // of the leader; expires unless it is renewed
  bool is_tls = false;
  TlsFiles tls;
  std::string user;        // empty: none
  std::string password;    // secret: never printed
  std::string local_addr;  // where other nodes reach this node; empty: its address towards etcd
  std::optional<PortRange> ports;  // for the leader's port; nullopt: any

  bool operator==(const EtcdSpec&) const = default;
};

}  // namespace ddprun::rdzv
