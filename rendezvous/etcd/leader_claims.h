// Claims the leadership when the ElectionCore wants it: opens a port, gets the leases, and creates
// both keys. Owned by the EtcdLeader, which also owns the EtcdClient; on the same thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/etcd/claim_leases.h"
#include "rendezvous/etcd/etcd_client.h"
#include "rendezvous/etcd/etcd_spec.h"
#include "rendezvous/etcd/job_keys.h"
#include "rendezvous/net/transport.h"

namespace ddprun::rdzv {

class LeaderClaims {
 public:
  using OpenPort =
      std::function<Result<Listener>(const std::string& host, const std::vector<std::string>&)>;
  using Done = std::function<void(const Result<wire::EtcdTxnAnswer>&)>;

  static constexpr std::chrono::seconds kRecordLease{3600};  // deletes a dead job's record

  LeaderClaims(std::shared_ptr<Transport> transport, EtcdClient& etcd, const JobKeys& keys,
               const EtcdSpec& spec, OpenPort open_port);

  // `leads`: this agent leads already and claims again, at the same port. One claim at a time;
  // `done` is called once. A claim that fails may have won in an earlier attempt (seen()).
  void claim(const Claim& claim, bool leads, Done done);
  // Takes note of what was read from etcd: a claim whose answer was lost may have won.
  void seen(const wire::EtcdTxnAnswer& answer);

  ClaimLeases& leases() { return leases_; }
  const Endpoint& advertised() const { return advertised_; }
  // The port that was opened, if nobody has taken it yet.
  std::optional<Listener> take_listener() { return std::exchange(listener_, std::nullopt); }

 private:
  void claim_with_port();
  void claim_with_leases();
  void finish(const Result<wire::EtcdTxnAnswer>& answer);

  const std::shared_ptr<Transport> transport_;
  EtcdClient& etcd_;
  const JobKeys& keys_;
  const EtcdSpec& spec_;
  const OpenPort open_port_;
  std::unique_ptr<Attempt> look_up_;

  std::optional<Claim> claim_;  // the last one
  Done done_;
  ClaimLeases leases_;
  std::optional<Listener> listener_;
  Endpoint advertised_;
};

}  // namespace ddprun::rdzv
