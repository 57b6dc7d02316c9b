// How the nodes of a job and their leader prove to each other that they belong together: by a token
// (token.h), by munge, or not at all. A value; any thread.
//
// By munge the agent's proof is a credential that only the same user can read. It holds both sides'
// nonces, so it serves for one connection only, and a secret that the agent has just chosen: the
// leader proves that it could read it as it would prove a token.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/leader/munge.h"
#include "rendezvous/round/round_wire.h"

namespace ddprun::rdzv {

struct NodeProof {
  std::string token;                   // secret: never printed; empty: there is none
  std::shared_ptr<const Munge> munge;  // null: it is not used; there is no token beside it
  bool is_waived = false;              // --no-token: to prove nothing is the user's decision

  wire::Wants wants() const {
    if (!token.empty()) return wire::Wants::kToken;
    return munge ? wire::Wants::kMunge : wire::Wants::kNothing;
  }
  bool operator==(const NodeProof&) const = default;
};

}  // namespace ddprun::rdzv
