// The leases of a claim: which of them are still needed, which ones the leader holds, and which
// must be revoked. A value without I/O; owned by the shell that claims.
//
// If the answer to a claim is lost, the claim is sent again and then fails because of its own key,
// although it has won. So do not revoke the lease of a failed claim without asking is_of_no_use():
// this agent may lead with it.
#pragma once

#include <cstdint>
#include <optional>

#include "rendezvous/etcd/job_keys.h"

namespace ddprun::rdzv {

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

}  // namespace ddprun::rdzv
