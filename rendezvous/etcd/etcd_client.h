// A client of etcd's v3 JSON gateway: the few things that an election needs, over one connection that
// is kept, to one of several endpoints. Whatever fails because of the endpoint (it is away, has no
// leader, says nothing) is asked of the next one, each once; a login that has expired is renewed.
// Everything happens on the thread of its EtcdHttp.
//
// The mistake to avoid: a transaction that must not happen twice. What gets no answer is asked
// again, and may have been done; so every transaction here is guarded by a revision, or sets what
// it would set again.
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
  std::string user = "";  // empty: etcd asks for none
  std::string password = "";
};

// Asking again helps only if something is changed first: a setting, a role, or what is in etcd.
bool is_final(const Error& error);

class EtcdClient {
 public:
  template <typename T>
  using Done = std::function<void(Result<T>)>;

  EtcdClient(std::unique_ptr<EtcdHttp> http, EtcdOptions options);
  ~EtcdClient();  // nothing is called any more
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // Errors: kPermissionDenied (user, password, certificate, role), kResourceExhausted (etcd is
  // full), kProtocol (it is no etcd), kInvalidArgument; the others may pass.
  void txn(wire::EtcdTxn txn, Done<wire::EtcdTxnAnswer> done);
  void grant(std::chrono::seconds time, Done<wire::EtcdLease> done);
  void keep_alive(std::int64_t lease, Done<wire::EtcdLease> done);
  void revoke(std::int64_t lease, std::function<void()> done);  // however it went

  // What becomes of a key, from a revision on. One at a time; ends the one before.
  struct WatchEvents {
    std::function<void(wire::EtcdEvent)> on_event;
    std::function<void(Error)> on_end;
  };
  void watch(const std::string& key, std::int64_t from_revision, WatchEvents events);

  // Numeric: where this machine is on the way to etcd. Empty: etcd was never reached.
  const std::string& local_address() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rdzv
