// etcd as the election needs it, in virtual time: keys with revisions, transactions, leases that run
// out, and watches. It is one process, however many members the real one has; it can be away, and
// its leases then wait for it, as those of the real one do.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/etcd/etcd_messages.h"
#include "tests/sim/event_queue.h"

namespace ddprun::sim {

class EtcdModel {
 public:
  explicit EtcdModel(EventQueue& queue) : queue_(queue) {}

  using OnEvent = std::function<void(const rdzv::wire::EtcdEvent&)>;
  // Before a change takes place: whose transaction it is, and what it puts.
  std::function<void(int who, const rdzv::wire::EtcdPut&)> on_put;

  rdzv::wire::EtcdTxnAnswer apply(int who, const rdzv::wire::EtcdTxn& txn) {
    rdzv::wire::EtcdTxnAnswer answer;
    answer.has_succeeded = true;
    for (const auto& each : txn.compares) {
      const auto found = find(each.key);
      const bool is_create = each.what == rdzv::wire::EtcdCompare::What::kCreateRevision;
      answer.has_succeeded &=
          (is_create ? found.create_revision : found.mod_revision) == each.revision;
    }
    for (const auto& each : txn.puts) {  // the lease may have run out meanwhile
      if (each.lease != 0 && !leases_.contains(each.lease)) answer.has_succeeded = false;
    }
    if (answer.has_succeeded && !(txn.puts.empty() && txn.deletes.empty())) {
      revision_ += 1;
      for (const auto& each : txn.puts) put(who, each);
      for (const auto& each : txn.deletes) remove(each);
    }
    answer.revision = revision_;
    for (const auto& key : txn.reads) answer.reads.push_back(find(key));
    return answer;
  }

  std::int64_t grant(CoreTime::duration time) {
    const std::int64_t lease = ++last_lease_;
    leases_[lease] = {time, queue_.now() + time};
    await_end(lease);
    return lease;
  }
  bool keep_alive(std::int64_t lease) {
    const auto found = leases_.find(lease);
    if (found == leases_.end()) return false;
    found->second.ends = queue_.now() + found->second.time;
    return true;
  }
  void revoke(std::int64_t lease) {
    if (leases_.erase(lease) == 0) return;
    std::vector<std::string> keys;
    for (const auto& [key, entry] : entries_) {
      if (entry.lease == lease) keys.push_back(key);
    }
    if (!keys.empty()) revision_ += 1;
    for (const auto& key : keys) remove(key);
  }

  // What is put or deleted from now on; what was missed meanwhile the watcher reads.
  void watch(int who, const std::string& key, OnEvent on_event) {
    watches_[who] = {key, std::move(on_event)};
  }

  bool is_up() const { return is_up_; }
  void set_up(bool is_up) {
    is_up_ = is_up;
    for (auto& [lease, each] : leases_) each.ends = queue_.now() + each.time;
  }

  rdzv::wire::EtcdKeyValue find(const std::string& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? rdzv::wire::EtcdKeyValue{} : found->second;
  }

 private:
  struct Lease {
    CoreTime::duration time{};
    CoreTime ends;
  };
  struct Watch {
    std::string key;
    OnEvent on_event;
  };

  void put(int who, const rdzv::wire::EtcdPut& put) {
    if (on_put) on_put(who, put);
    auto& entry = entries_[put.key];
    if (entry.create_revision == 0) entry.create_revision = revision_;
    entry = {put.key, put.value, entry.create_revision, revision_, put.lease};
    tell({false, entry});
  }
  void remove(const std::string& key) {
    if (entries_.erase(key) == 0) return;
    tell({true, {key, "", 0, revision_, 0}});
  }
  void tell(const rdzv::wire::EtcdEvent& event) {
    for (const auto& [who, watch] : watches_) {
      if (watch.key == event.entry.key) watch.on_event(event);
    }
  }
  void await_end(std::int64_t lease) {
    const auto found = leases_.find(lease);
    if (found == leases_.end()) return;
    queue_.at(found->second.ends, [this, lease] {
      const auto still = leases_.find(lease);
      if (still == leases_.end()) return;
      if (is_up_ && queue_.now() >= still->second.ends) return revoke(lease);
      if (still->second.ends <= queue_.now())
        still->second.ends = queue_.now() + still->second.time;
      await_end(lease);
    });
  }

  EventQueue& queue_;
  bool is_up_ = true;
  std::int64_t revision_ = 1;
  std::int64_t last_lease_ = 0;
  std::map<std::string, rdzv::wire::EtcdKeyValue> entries_;
  std::map<std::int64_t, Lease> leases_;
  std::map<int, Watch> watches_;
};

}  // namespace ddprun::sim
