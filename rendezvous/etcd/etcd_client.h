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
#include <string_view>
#include <utility>

#include "rendezvous/common/result.h"
#include "rendezvous/etcd/etcd_http.h"
#include "rendezvous/etcd/etcd_messages.h"
#include "rendezvous/etcd/etcd_spec.h"

namespace ddprun::rdzv {

// Trying again helps only after something has been changed: a setting, a role, or the data in etcd.
bool is_final(const Error& error);

class EtcdClient {
 public:
  template <typename T>
  using Done = std::function<void(Result<T>)>;

  // `spec` must outlive the client, after whose end no callback runs.
  EtcdClient(std::unique_ptr<EtcdHttp> http, const EtcdSpec& spec)
      : http_(std::move(http)), spec_(spec) {}

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
  const std::string& local_address() const { return local_address_; }

 private:
  // The body of an answer with status 200.
  using Answer = std::function<void(const Result<std::string>&)>;
  struct Question {
    std::string target;
    std::string body;
    Answer answer;
    std::size_t endpoints_left = 0;
    bool may_log_in = true;
  };

  HttpRequest request_of(const std::string& target, std::string body) const;
  void ask(std::string target, std::string body, Answer answer);
  void ask_lease(std::string target, std::string body, Done<wire::EtcdLease> done);
  void send(Question question);
  void take(Question question, std::size_t endpoint, Result<HttpReply> reply);
  void ask_next(Question question, std::size_t endpoint, const Error& error);
  Error error_of(const wire::EtcdRefusal& refusal, std::size_t endpoint) const;
  void log_in(Question after);
  void take_watched(std::string_view line);
  void end_watch(Error error);

  const std::unique_ptr<EtcdHttp> http_;
  const EtcdSpec& spec_;
  std::size_t endpoint_ = 0;
  std::string token_;
  std::string local_address_;
  std::unique_ptr<Attempt> stream_;
  std::uint64_t watches_ = 0;  // counts watches
  WatchEvents watch_events_;
  bool refused_ = false;  // the watch
};

}  // namespace ddprun::rdzv
