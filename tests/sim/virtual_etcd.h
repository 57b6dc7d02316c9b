// A model of etcd in virtual time, behind the JSON of its gateway, as far as the election needs it:
// keys with revisions, transactions, leases that expire, and watches from a revision on. It is one
// process, whatever the number of real members; while it is unavailable its leases do not expire,
// as in the real one. Answers are lost, and requests to a member that hung are performed late.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/etcd/etcd_http.h"
#include "rendezvous/etcd/etcd_messages.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/random.h"

namespace ddprun::sim {

class VirtualEtcd {
 public:
  // Until `calm`, answers are lost and requests are performed late.
  VirtualEtcd(EventQueue& queue, Random& random, CoreTime calm)
      : queue_(queue), random_(random), calm_(calm) {}

  // The client of agent `who`, for any number of endpoints.
  std::unique_ptr<rdzv::EtcdHttp> client(int who, ProcessPtr process);

  // For the invariants: called before a put takes place, with the sender of its transaction; and
  // before a lease is revoked.
  std::function<void(int who, const rdzv::wire::EtcdPut&)> on_put;
  std::function<void(int who, std::int64_t lease)> on_revoke;

  // ---- faults
  void set_up(bool is_up);
  void set_cut_off(int who, bool is_cut_off);

  rdzv::wire::EtcdKeyValue find(const std::string& key) const;

 private:
  friend class VirtualEtcdHttp;

  struct Lease {
    CoreTime::duration time{};
    CoreTime ends;
  };
  struct Watch {
    int who = 0;
    ProcessPtr process;
    std::string key;
    std::int64_t from = 0;
    std::weak_ptr<rdzv::HttpStream::Events> events;  // expired: it was closed
    CoreTime last_arrival{};
  };
  using WatchPtr = std::shared_ptr<Watch>;

  bool reaches(int who) { return is_up_ && !cut_off_[who]; }
  rdzv::HttpReply answer(int who, const rdzv::HttpRequest& request);
  rdzv::HttpReply transact(int who, const std::string& body);
  std::string keep_alive(std::int64_t lease);
  void revoke(std::int64_t lease);
  void put(int who, const rdzv::wire::EtcdPut& put);
  void remove(const std::string& key);
  void await_end(std::int64_t lease);
  void tell(const rdzv::wire::EtcdEvent& event);
  void open(const WatchPtr& watch);
  void send(const WatchPtr& watch, const rdzv::wire::EtcdEvent& event);
  void end_watches();

  EventQueue& queue_;
  Random& random_;
  const CoreTime calm_;
  bool is_up_ = true;
  std::map<int, bool> cut_off_;
  std::int64_t revision_ = 1;
  std::int64_t last_lease_ = 0;
  std::map<std::string, rdzv::wire::EtcdKeyValue> entries_;
  std::map<std::int64_t, Lease> leases_;
  std::vector<rdzv::wire::EtcdEvent> history_;
  std::vector<WatchPtr> watches_;
};

}  // namespace ddprun::sim
