// What etcd, or whatever answers in its place, may send; and what may stand in its keys: read as
// anything, it is an error or a value, and a record that was read is written as the same again.
#include <boost/json/src.hpp>
#include <cstdlib>
#include <string_view>

#include "rendezvous/common/base64.h"
#include "rendezvous/etcd/etcd_messages.h"
#include "rendezvous/etcd/job_record.h"

using namespace ddprun::rdzv;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  wire::EtcdTxn txn;
  txn.reads = {"leader", "job"};
  static_cast<void>(wire::read_etcd_txn(text, txn));
  static_cast<void>(wire::read_etcd_lease(text));
  static_cast<void>(wire::read_etcd_watch(text));
  static_cast<void>(wire::read_etcd_token(text));
  static_cast<void>(wire::read_etcd_refusal(text));
  if (const auto bytes = ddprun::from_base64(text);
      bytes && ddprun::to_base64(*bytes).size() != size) {
    std::abort();
  }
  if (const auto key = read_leader_key(text, 1)) {
    if (read_leader_key(to_text(*key), 1).value() != *key) std::abort();
  }
  if (const auto record = read_job_record(text)) {
    // The first writing leaves out what a record does without.
    const JobRecord once = read_job_record(to_text(*record)).value();
    if (read_job_record(to_text(once)).value() != once) std::abort();
  }
  return 0;
}
