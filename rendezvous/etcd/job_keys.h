// How an election is spelled in etcd: the keys of a job, the transactions that an ElectionCore and a
// RoundLedger ask for, and what their answers show. Pure; any thread.
//
//   PREFIX/ID/leader   a LeaderKey, kept by its leader's lease
//   PREFIX/ID/job      the JobRecord, kept by a lease of an hour that each leader renews
//
// The fences are here: a claim holds only while nobody leads and the record is the one that was read;
// a record is written only by the leader that still leads, by the revision of its key, over the record
// that it knows. So a transaction that etcd performs late, when its answer is long given up, changes
// nothing that was written since.
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

// The leases under which `claim` leads, as a transaction that reads both keys shows it; none: it does
// not. A claim whose answer was lost is asked again, and then fails on its own key: it has won.
std::optional<JobLeases> leases_of_won_claim(const JobKeys& keys, const Claim& claim,
                                             const wire::EtcdTxnAnswer& answer);

// What has become of a write_txn() of this leader and record.
struct RecordWrite {
  enum class Kind {
    kWritten,    // also by the same transaction before, whose answer was lost
    kOvertaken,  // by an earlier write of this leader: write again, over what is there now
    kFenced      // this leader leads no more
  };
  Kind kind = Kind::kFenced;
  std::int64_t job_revision = 0;  // of the record as it is
};
RecordWrite result_of_write(std::int64_t leader_revision, const JobRecord& record,
                            const wire::EtcdTxnAnswer& answer);

// Of any of them. What is not ddprun's is a sentence that names the key.
Result<EtcdView> view_of(const JobKeys& keys, const wire::EtcdTxnAnswer& answer);

}  // namespace ddprun::rdzv
