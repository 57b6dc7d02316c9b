// One job under etcd in virtual time: for each agent the shipped EtcdLeader, with its client of etcd,
// its RoundServer while it leads and its RoundClient while it follows, and the real NodeCore, over a
// virtual network and a virtual etcd (virtual_etcd.h). Agents are killed, paused, stopped, cut off
// from etcd and from each other, connections break, answers of etcd are lost, what it is asked is
// done late, and etcd is away.
//
// clang-format off
//   one round    all who start workers of a round were told the same of it, each with a rank of its
//                own; each agent's rounds go up
//   in etcd      when workers start, etcd has that round, or a later one; when an agent hears of the
//                end, etcd has the outcome
//   one leader   only who leads in etcd writes the record; a claim that has won is not given back
//   budget       what is spent never shrinks from round to round, and is never more than allowed; no
//                record takes back a round, a restart or an outcome
//   success      only when every worker of the last round has ended with 0
//   progress     long after the last fault every agent has ended, as etcd says or for a reason of its
//                own, and no worker is left
// clang-format on
#pragma once

#include <cstdint>

#include "tests/sim/simulation.h"

namespace ddprun::sim {

Result simulate_etcd(std::uint64_t seed, bool with_trace = false);

}  // namespace ddprun::sim
