// A client of etcd's v3 JSON gateway: the operations that an election needs, over one persistent
// connection to one of several endpoints. A request that fails because of the endpoint
// (unreachable, no leader, no answer) is sent to the next one, to each endpoint once; an expired
// login is renewed. Everything happens on the thread of its EtcdHttp.
//
// A request that gets no answer is sent again, although etcd may have performed it. So every
// transaction must be safe to repeat: guarded by a revision, or idempotent.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/result.h"
#include "rendezvous/etcd/etcd_http.h"
#include "rendezvous/etcd/etcd_messages.h"

namespace ddprun::rdzv {

struct EtcdOptions {
  std::vector<Endpoint> endpoints;
  std::string user = "";  // empty: etcd has no authentication
  std::string password = "";
};

// Trying again helps only after something has been changed: a setting, a role, or the data in etcd.
bool is_final(const Error& error);

class EtcdClient {
 public:
  template <typename T>
  using Done = std::function<void(Result<T>)>;

  EtcdClient(std::unique_ptr<EtcdHttp> http, EtcdOptions options);
  ~EtcdClient();  // no callback runs afterwards
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // Errors: kPermissionDenied (user, password, certificate, role), kResourceExhausted (etcd is
  // full), kProtocol (this is not etcd), kInvalidArgument; the others may be temporary.
  void txn(wire::EtcdTxn txn, Done<wire::EtcdTxnAnswer> done);
  void grant(std::chrono::seconds time, Done<wire::EtcdLease> done);
  void keep_alive(std::int64_t lease, Done<wire::EtcdLease> done);
  void revoke(std::int64_t lease, std::function<void()> done);  // called on success and on failure

  // Watches a key, from a revision on. One watch at a time; a new one ends the one before.
  struct WatchEvents {
    std::function<void(wire::EtcdEvent)> on_event;
    std::function<void(Error)> on_end;
  };
  void watch(const std::string& key, std::int64_t from_revision, WatchEvents events);

  // This machine's numeric address on its connection to etcd. Empty: etcd was never reached.
  const std::string& local_address() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rdzv
