// The supervisor's connection to the leader: finds it, joins it, sends messages. What the leader
// says becomes an event of the supervisor's queue; requests of other nodes go to the JobQuery.
// Owned by the Supervisor; event loop only. join() and tell() never call back.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/core/node_core.h"
#include "agent/events/core_recorder.h"
#include "agent/job.h"
#include "agent/output/log.h"
#include "agent/query/job_query.h"
#include "agent/supervisor/round_store.h"
#include "rendezvous/common/result.h"
#include "rendezvous/find_leader.h"
#include "rendezvous/leader/leader.h"

namespace ddprun::agent {

class LeaderPort {
 public:
  using Post = std::function<void(NodeEvent)>;
  // `store`: it gets clients that come to the leader's port.
  LeaderPort(boost::asio::io_context& io, const Job& job, std::string host, Log log,
             JobQuery& query, RoundStore& store, Post post);

  // LeaderFound or CannotRun follows, possibly before find() returns. `recorder` records the core
  // of a leader in this process; null: no recording.
  void find(CoreRecorder* recorder);

  // Call it after LeaderFound. `after`: the last round that ran on this node, if there was one.
  void join(std::optional<rdzv::LastRound> after);
  void tell(const rdzv::ToLeader& message) {
    if (leader_) leader_->tell(message);
  }

  rdzv::Leader* leader() const { return leader_.get(); }  // null: not found yet
  bool is_here() const { return leader_ && leader_->is_here(); }
  // A message of the leader came, and since then neither side has declared the other lost.
  bool has_been_heard() const { return has_been_heard_; }
  std::string local_address() const { return leader_->local_address(); }

  // At the end of this node. Calls `done` once, perhaps at once: when no node needs the leader here
  // any more, or one elsewhere knows of this node's end (after half a second at the latest).
  void leave(std::function<void()> done);
  // Checks whether leave() is complete. To be called after every event of the loop.
  void look() {
    if (when_left_ && (!leader_ || leader_->may_exit())) std::exchange(when_left_, nullptr)();
  }

 private:
  rdzv::LeaderEvents events(CoreRecorder* recorder);
  void take(Result<rdzv::FoundLeader> found);
  void on(rdzv::ToAgent message);
  void on(rdzv::LeaderGone gone);
  void on(const rdzv::LeaderNotice& notice);
  void on(const rdzv::LeaderWarning& warning);
  void on(const rdzv::PeerRequest& request) { query_.take(request); }
  void on(rdzv::PeerReply reply) { query_.take(std::move(reply)); }
  void on(rdzv::PeerAck ack) { query_.take(std::move(ack)); }
  void on(rdzv::StoreClientArrived client) {
    store_.adopt(std::move(client.socket), std::move(client.received));
  }

  boost::asio::io_context& io_;
  const Job& job_;
  const std::string host_;
  const Log log_;
  JobQuery& query_;
  RoundStore& store_;
  const Post post_;
  bool has_been_heard_ = false;
  std::unique_ptr<rdzv::Attempt> search_;
  std::unique_ptr<rdzv::Leader> leader_;
  std::function<void()> when_left_;  // empty: leave() was not called, or is complete
  Timer leave_timer_;
};

}  // namespace ddprun::agent
