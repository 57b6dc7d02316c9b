// etcd's v3 JSON gateway as values and text: requests and answers, with keys and values as plain
// bytes (the gateway's base64 is handled in here). Pure; any thread.
//
// The gateway writes 64-bit numbers as strings, leaves out fields that are 0, false or empty, and
// in a watch puts every message on a line of its own. Any other answer is an error (kProtocol),
// never an exception.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun::rdzv::wire {

struct EtcdKeyValue {
  std::string key;
  std::string value;
  std::int64_t create_revision = 0;  // 0: there is no such key
  std::int64_t mod_revision = 0;
  std::int64_t lease = 0;
  bool operator==(const EtcdKeyValue&) const = default;
};

struct EtcdCompare {  // equals; 0: there is no such key
  enum class What { kCreateRevision, kModRevision };
  What what = What::kCreateRevision;
  std::string key;
  std::int64_t revision = 0;
};
struct EtcdPut {
  std::string key;
  std::string value;
  std::int64_t lease = 0;
};
struct EtcdTxn {
  std::vector<EtcdCompare> compares;  // all hold:
  std::vector<EtcdPut> puts;          // these, and
  std::vector<std::string> deletes;   // these; in either case
  std::vector<std::string> reads;     // the state afterwards, in this order
};

std::string etcd_txn(const EtcdTxn& txn);
std::string etcd_grant(std::int64_t seconds);
std::string etcd_lease(std::int64_t lease);  // for keepalive and revoke
std::string etcd_watch(std::string_view key, std::int64_t from_revision);
std::string etcd_authenticate(std::string_view user, std::string_view password);

struct EtcdTxnAnswer {
  std::int64_t revision = 0;  // of the whole of etcd, afterwards
  bool has_succeeded = false;
  std::vector<EtcdKeyValue> reads;  // one for each; revision 0 if the key does not exist
};
struct EtcdLease {
  std::int64_t lease = 0;
  std::int64_t seconds = 0;  // 0: it has expired
};
struct EtcdEvent {
  bool is_delete = false;
  EtcdKeyValue entry;
};
struct EtcdWatchAnswer {
  bool is_canceled = false;  // the revision is compacted, or access is not allowed
  std::vector<EtcdEvent> events;
};

Result<EtcdTxnAnswer> read_etcd_txn(std::string_view body, const EtcdTxn& txn);
Result<EtcdLease> read_etcd_lease(std::string_view body);
Result<EtcdWatchAnswer> read_etcd_watch(std::string_view line);
Result<std::string> read_etcd_token(std::string_view body);

// The contents of an answer whose status is not 200.
struct EtcdRefusal {
  int code = -1;  // of gRPC; -1: not an answer of the gateway
  std::string message;
};
EtcdRefusal read_etcd_refusal(std::string_view body);

}  // namespace ddprun::rdzv::wire
