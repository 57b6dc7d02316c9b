// How an election is stored in etcd: the keys of a job, the transactions that an ElectionCore and a
// RoundLedger request, and how their answers are read. Pure; any thread.
//
//   PREFIX/ID/leader   a LeaderKey, attached to its leader's lease
//   PREFIX/ID/job      the JobRecord, attached to a lease of an hour that each leader renews
//
// The transactions contain the fences (election_core.h), so that one which etcd performs late,
// after its sender has given up waiting, overwrites nothing newer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/etcd/election_core.h"
#include "rendezvous/etcd/etcd_messages.h"

namespace ddprun::rdzv {

struct JobKeys {
  // A '/' or '%' in the id is written as %2F or %25, so that no id is a part of another.
  JobKeys(const std::string& prefix, const std::string& run_id);

  std::string leader;
  std::string job;
};

struct JobLeases {
  std::int64_t leader = 0;
  std::int64_t job = 0;
};

wire::EtcdTxn read_txn(const JobKeys& keys);
wire::EtcdTxn claim_txn(const JobKeys& keys, const Claim& claim, const std::string& address,
                        const JobLeases& leases);
wire::EtcdTxn write_txn(const JobKeys& keys, std::int64_t leader_revision,
                        std::int64_t job_revision, const JobRecord& record,
                        const JobLeases& leases);
wire::EtcdTxn depose_txn(const JobKeys& keys, std::int64_t leader_revision);

// The leases of `claim` if it has won, as a transaction that reads both keys shows; nullopt if it
// has not. (A claim may fail although it has won: leader_claims.h.)
std::optional<JobLeases> leases_of_won_claim(const JobKeys& keys, const Claim& claim,
                                             const wire::EtcdTxnAnswer& answer);

// The result of a write_txn() of this leader and record.
struct RecordWrite {
  enum class Kind {
    kWritten,    // maybe by an earlier attempt whose answer was lost
    kOvertaken,  // by an earlier write of this leader: write again, over the present record
    kFenced      // this agent is no longer the leader
  };
  Kind kind = Kind::kFenced;
  std::int64_t job_revision = 0;  // of the record as it is now
};
RecordWrite result_of_write(std::int64_t leader_revision, const JobRecord& record,
                            const wire::EtcdTxnAnswer& answer);

// Reads the answer to any of these transactions. If a value was not written by ddprun, the error
// names its key.
Result<EtcdView> view_of(const JobKeys& keys, const wire::EtcdTxnAnswer& answer);

}  // namespace ddprun::rdzv
