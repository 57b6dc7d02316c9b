#include "rendezvous/etcd/job_keys.h"

#include <utility>

namespace ddprun::rdzv {
namespace {

using What = wire::EtcdCompare::What;

std::string folder_of(const std::string& prefix, const std::string& run_id) {
  std::string folder = prefix;
  if (!folder.empty() && folder.back() != '/') folder += '/';
  for (const char c : run_id) {
    folder += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
  }
  return folder + "/";
}

std::vector<wire::EtcdCompare> still_leads(const JobKeys& keys, std::int64_t revision,
                                           std::int64_t written) {
  return {{What::kCreateRevision, keys.leader, revision},
          wire::EtcdCompare{What::kModRevision, keys.job, written}};
}

std::vector<wire::EtcdCompare> nobody_leads(const JobKeys& keys, std::int64_t job_revision) {
  return {{What::kCreateRevision, keys.leader, 0}, {What::kModRevision, keys.job, job_revision}};
}

tl::unexpected<Error> foreign(const std::string& key, const Error& error) {
  return fail(ErrorCode::kDataLoss,
              "etcd has something else under " + key + " than this job's data: " + error.message +
                  "; give the job another --rdzv-id, or this one an etcd_prefix of its own by "
                  "--rdzv-conf, or delete the key");
}

}  // namespace

JobKeys::JobKeys(const std::string& prefix, const std::string& run_id)
    : leader(folder_of(prefix, run_id) + "leader"), job(folder_of(prefix, run_id) + "job") {}

wire::EtcdTxn read_txn(const JobKeys& keys) {
  wire::EtcdTxn txn;
  txn.reads = {keys.leader, keys.job};
  return txn;
}

wire::EtcdTxn claim_txn(const JobKeys& keys, const Claim& claim, const std::string& address,
                        const JobLeases& leases) {
  LeaderKey key = claim.key;
  key.address = address;
  wire::EtcdTxn txn = read_txn(keys);
  txn.compares = nobody_leads(keys, claim.job_revision);
  txn.puts = {{keys.leader, to_text(key), leases.leader},
              {keys.job, to_text(claim.record), leases.job}};
  return txn;
}

wire::EtcdTxn write_txn(const JobKeys& keys, std::int64_t leader_revision,
                        std::int64_t job_revision, const JobRecord& record,
                        const JobLeases& leases) {
  wire::EtcdTxn txn = read_txn(keys);
  txn.compares = still_leads(keys, leader_revision, job_revision);
  txn.puts = {{keys.job, to_text(record), leases.job}};
  return txn;
}

wire::EtcdTxn depose_txn(const JobKeys& keys, std::int64_t leader_revision) {
  wire::EtcdTxn txn;
  txn.compares = {{What::kCreateRevision, keys.leader, leader_revision}};
  txn.deletes = {keys.leader};
  return txn;
}

std::optional<JobLeases> leases_of_won_claim(const JobKeys& keys, const Claim& claim,
                                             const wire::EtcdTxnAnswer& answer) {
  const auto view = view_of(keys, answer);
  if (!view || !view->leader) return std::nullopt;
  const bool has_won = view->leader->leadership == claim.key.leadership;
  if (!has_won) return std::nullopt;
  return JobLeases{answer.reads.at(0).lease, answer.reads.at(1).lease};
}

RecordWrite result_of_write(std::int64_t leader_revision, const JobRecord& record,
                            const wire::EtcdTxnAnswer& answer) {
  const wire::EtcdKeyValue& leader = answer.reads.at(0);
  const wire::EtcdKeyValue& job = answer.reads.at(1);
  RecordWrite write;
  write.job_revision = job.mod_revision;
  if (leader.create_revision != leader_revision) return write;
  const bool is_there = answer.has_succeeded || job.value == to_text(record);
  write.kind = is_there ? RecordWrite::Kind::kWritten : RecordWrite::Kind::kOvertaken;
  return write;
}

Result<EtcdView> view_of(const JobKeys& keys, const wire::EtcdTxnAnswer& answer) {
  EtcdView view;
  const wire::EtcdKeyValue& leader = answer.reads.at(0);
  const wire::EtcdKeyValue& job = answer.reads.at(1);
  if (leader.create_revision != 0) {
    auto key = read_leader_key(leader.value, leader.create_revision);
    if (!key) return foreign(keys.leader, key.error());
    view.leader = *std::move(key);
  }
  if (job.create_revision != 0) {
    auto record = read_job_record(job.value);
    if (!record) return foreign(keys.job, record.error());
    view.record = *std::move(record);
    view.job_revision = job.mod_revision;
  }
  return view;
}

}  // namespace ddprun::rdzv
