// The leases of a claim: which of them it needs, which ones a leader holds, and which are given back.
// A value without I/O; owned by the shell that claims.
//
// A claim whose answer was lost is asked again, and then fails on its own key: it has won. The mistake
// to avoid: giving back, after a claim that failed, the lease by which this agent leads.
#pragma once

#include <cstdint>
#include <optional>

#include "rendezvous/etcd/job_keys.h"

namespace ddprun::rdzv {

class ClaimLeases {
 public:
  enum class Need { kRecord, kLeader, kNothing };

  // A claim begins. Who leads keeps the lease of the record.
  void begin(bool leads) { asked_ = {.leader = 0, .job = leads ? held_.job : 0}; }
  Need need() const {
    if (asked_.job == 0) return Need::kRecord;
    return asked_.leader == 0 ? Need::kLeader : Need::kNothing;
  }
  void granted(std::int64_t lease) { (asked_.job == 0 ? asked_.job : asked_.leader) = lease; }
  // All are there: the claim is made with them.
  JobLeases claim() { return held_ = asked_; }

  // What etcd shows of a claim of this agent that has won; none: it shows none.
  void seen(const std::optional<JobLeases>& won) {
    if (won) held_ = *won;
  }
  // Of a claim that failed.
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
