// NodeGroup: a group of ranks that share memory: its segment, its slots, what is under way, its
// messages, and the watch over its members' processes. What a backend (shm_backend.h) is made of.
// Any thread may post; close() any thread.
#pragma once

#include <memory>
#include <vector>

#include "worker_lib/shm/shm_collectives.h"
#include "worker_lib/shm/shm_messages.h"
#include "worker_lib/shm/shm_queue.h"
#include "worker_lib/shm/shm_watch.h"

namespace ddprun::shm {

class NodeGroup {
 public:
  // After every member has announced itself in the segment. Throws Failure when one of them has died
  // meanwhile.
  NodeGroup(std::shared_ptr<Segment> segment, int rank, std::vector<int> global_ranks,
            const std::shared_ptr<PeerWatch>& watch);
  ~NodeGroup();
  NodeGroup(const NodeGroup&) = delete;
  NodeGroup& operator=(const NodeGroup&) = delete;

  SlotExchange& exchange() { return exchange_; }
  Queue& queue() { return queue_; }
  Messages& messages() { return messages_; }

  // Tells the others that this rank is out; whoever waits on it fails at once, here too.
  void close() { exchange_.leave(); }

 private:
  SlotExchange exchange_;
  std::vector<PeerWatch::Watched> watched_;
  Messages messages_;
  Queue queue_;
};

}  // namespace ddprun::shm
