// NodeGroup: a group of ranks that share memory: its segment, its rounds, what is under way, its
// messages, and the watch over its members' processes. What a backend (shm_backend.h) is made of.
// Any thread may post; close() any thread.
#pragma once

#include <memory>
#include <vector>

#include "worker_lib/shm/shm_collectives.h"
#include "worker_lib/shm/shm_mail.h"
#include "worker_lib/shm/shm_queue.h"
#include "worker_lib/shm/shm_watch.h"

namespace ddprun::shm {

class NodeGroup {
 public:
  // After every member has announced itself in the segment. Errors: kUnavailable when one of them
  // has died meanwhile.
  static Result<std::shared_ptr<NodeGroup>> make(std::shared_ptr<Segment> segment, int rank,
                                                 std::vector<int> global_ranks,
                                                 const std::shared_ptr<PeerWatch>& watch);
  ~NodeGroup();
  NodeGroup(const NodeGroup&) = delete;
  NodeGroup& operator=(const NodeGroup&) = delete;

  Rounds& rounds() { return rounds_; }
  Queue& queue() { return queue_; }
  Mail& mail() { return mail_; }

  // Tells the others that this rank is out; whoever waits on it fails at once, here too.
  void close() { rounds_.leave(); }

 private:
  NodeGroup(std::shared_ptr<Segment> segment, int rank, std::vector<int> global_ranks);

  Rounds rounds_;
  std::vector<PeerWatch::Watched> watched_;
  Mail mail_;
  Queue queue_;
};

}  // namespace ddprun::shm
