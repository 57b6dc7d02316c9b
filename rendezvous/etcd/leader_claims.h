// Claims the leadership when the ElectionCore wants it: opens a port, gets the leases, and creates
// both keys. Owned by the EtcdLeader, which also owns the EtcdClient; on the same thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/etcd/etcd_client.h"
#include "rendezvous/etcd/etcd_spec.h"
#include "rendezvous/etcd/job_keys.h"
#include "rendezvous/net/name_lookup.h"
#include "rendezvous/net/transport.h"

namespace ddprun::rdzv {

// The leases of a claim: which of them are still needed, which ones the leader holds, and which
// must be revoked. A value without I/O.
//
// If the answer to a claim is lost, the claim is sent again and then fails because of its own key,
// although it has won. So do not revoke the lease of a failed claim without asking is_of_no_use():
// this agent may lead with it.
class ClaimLeases {
 public:
  enum class Need { kRecord, kLeader, kNothing };

  // A claim begins. An agent that leads keeps its lease of the record.
  void begin(bool leads) { asked_ = {.leader = 0, .job = leads ? held_.job : 0}; }
  Need need() const {
    if (asked_.job == 0) return Need::kRecord;
    return asked_.leader == 0 ? Need::kLeader : Need::kNothing;
  }
  void granted(std::int64_t lease) { (asked_.job == 0 ? asked_.job : asked_.leader) = lease; }
  // All leases are granted: the claim uses them.
  JobLeases claim() { return held_ = asked_; }

  // The leases with which a claim of this agent has won, as etcd shows it; nullopt if it shows
  // none.
  void seen(const std::optional<JobLeases>& won) {
    if (won) held_ = *won;
  }
  // After a failed claim: whether its leases can be revoked.
  static bool is_of_no_use(const JobLeases& claimed, const std::optional<JobLeases>& won) {
    return !won || won->leader != claimed.leader;
  }

  void record_lease_over() { held_.job = 0; }
  void record_lease_renewed(std::int64_t lease) { held_.job = lease; }
  const JobLeases& held() const { return held_; }

 private:
  JobLeases asked_;
  JobLeases held_;
};

class LeaderClaims {
 public:
  using OpenPort =
      std::function<Result<Listener>(const std::string& host, const std::vector<std::string>&)>;
  using Done = std::function<void(const Result<wire::EtcdTxnAnswer>&)>;

  static constexpr std::chrono::seconds kRecordLease{3600};  // deletes a dead job's record

  LeaderClaims(std::shared_ptr<Transport> transport, EtcdClient& etcd, const JobKeys& keys,
               const EtcdSpec& spec, OpenPort open_port)
      : transport_(std::move(transport)),
        etcd_(etcd),
        keys_(keys),
        spec_(spec),
        open_port_(std::move(open_port)) {}

  // `leads`: this agent leads already and claims again, at the same port. One claim at a time;
  // `done` is called once.
  void claim(const Claim& claim, bool leads, Done done) {
    claim_ = claim;
    done_ = std::move(done);
    leases_.begin(leads);
    if (leads || listener_) return claim_with_port();
    const std::string host = spec_.local_addr.empty() ? etcd_.local_address() : spec_.local_addr;
    const auto open = [this, host](const std::vector<std::string>& addresses) {
      auto listener = open_port_(host, addresses);
      if (!listener) return finish(fail(listener.error()));
      advertised_ = {host, listener->bound.port};  // it is open before it is published
      listener_ = std::move(*listener);
      claim_with_port();
    };
    if (const auto known = addresses_without_lookup(host)) return open(*known);
    look_up_ = transport_->look_up(host, [open](const Result<std::vector<std::string>>& addresses) {
      open(addresses ? *addresses : std::vector<std::string>{});
    });
  }

  // Takes note of what was read from etcd: a claim whose answer was lost may have won.
  void seen(const wire::EtcdTxnAnswer& answer) {
    if (claim_) leases_.seen(leases_of_won_claim(keys_, *claim_, answer));
  }

  ClaimLeases& leases() { return leases_; }
  const Endpoint& advertised() const { return advertised_; }
  // The port that was opened, if nobody has taken it yet.
  std::optional<Listener> take_listener() { return std::exchange(listener_, std::nullopt); }

 private:
  void claim_with_port() {
    const auto need = leases_.need();
    if (need == ClaimLeases::Need::kNothing) return claim_with_leases();
    const auto time = need == ClaimLeases::Need::kRecord
                          ? kRecordLease
                          : std::chrono::ceil<std::chrono::seconds>(spec_.lease);
    etcd_.grant(time, [this](const Result<wire::EtcdLease>& lease) {
      if (!lease) return finish(fail(lease.error()));
      leases_.granted(lease->lease);
      claim_with_port();
    });
  }

  void claim_with_leases() {
    const JobLeases claimed = leases_.claim();
    etcd_.txn(claim_txn(keys_, *claim_, advertised_.to_string(), claimed),
              [this, claimed](const Result<wire::EtcdTxnAnswer>& answer) {
                const bool is_lease_over = !answer && answer.error().code == ErrorCode::kNotFound;
                if (is_lease_over) leases_.record_lease_over();
                if (answer && !answer->has_succeeded) {
                  const auto won = leases_of_won_claim(keys_, *claim_, *answer);
                  const bool is_of_no_use = ClaimLeases::is_of_no_use(claimed, won);
                  if (is_of_no_use) etcd_.revoke(claimed.leader, [] {});
                }
                finish(answer);
              });
  }

  // `done` may claim again.
  void finish(const Result<wire::EtcdTxnAnswer>& answer) { std::exchange(done_, nullptr)(answer); }

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
