// The leader of the job as the supervisor has it: found, joined, told, and heard. What it says becomes
// events of the one queue; what other nodes ask goes to the JobQuery, and who looks for the store to
// the supervisor.
//
// Owned by the Supervisor; event loop only. Nothing of it is called from within join() or tell().
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/core/node_core.h"
#include "agent/events/core_recorder.h"
#include "agent/job.h"
#include "agent/loop/timer.h"
#include "agent/query/job_query.h"
#include "rendezvous/common/result.h"
#include "rendezvous/find_leader.h"
#include "rendezvous/leader/leader.h"

namespace spdlog {
class logger;
}

namespace ddprun::agent {

class LeaderPort {
 public:
  struct Events {
    std::function<void(NodeEvent)> event;
    std::function<void(rdzv::StoreClientArrived)> store_client;  // of the job's shared port
  };
  LeaderPort(boost::asio::io_context& io, const Job& job, std::string host,
             std::shared_ptr<spdlog::logger> log, JobQuery& query, Events events);
  LeaderPort(const LeaderPort&) = delete;
  LeaderPort& operator=(const LeaderPort&) = delete;

  // LeaderFound or CannotRun follows, maybe from here. `recorder` of what a leader that is in this
  // process decides; null: nobody records.
  void find(CoreRecorder* recorder);

  // Once it is found. `after`: the round that this node was in under a leader of before.
  void join(std::optional<rdzv::LastRound> after);
  void tell(const rdzv::ToLeader& message);

  rdzv::Leader* leader() const { return leader_.get(); }  // null: not found yet
  bool is_here() const { return leader_ && leader_->is_here(); }
  // It was heard, and has not lost this node, nor this node it, since.
  bool has_been_heard() const { return has_been_heard_; }
  std::string local_address() const { return leader_->local_address(); }

  // At the end of this node. Calls `done` once, when nobody needs the leader here any more; one
  // elsewhere: when it knows of the end, or half a second later. From here where that is so already.
  void leave(std::function<void()> done);
  // To be called after every event of the loop.
  void look();

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
  void on(rdzv::StoreClientArrived client) { events_.store_client(std::move(client)); }

  boost::asio::io_context& io_;
  const Job& job_;
  const std::string host_;
  const std::shared_ptr<spdlog::logger> log_;
  JobQuery& query_;
  const Events events_;
  bool has_been_heard_ = false;
  std::unique_ptr<rdzv::LeaderSearch> search_;
  std::unique_ptr<rdzv::Leader> leader_;
  std::function<void()> when_left_;  // none: nobody leaves
  Timer leave_timer_;
};

}  // namespace ddprun::agent
