#include "worker_lib/shm/shm_group.h"

#include <unistd.h>

#include <utility>

namespace ddprun::shm {
namespace {

using namespace std::chrono_literals;

// About what a sleep and a wake-up cost: whoever looks so long has lost no more than it could win.
constexpr Queue::Spins kSpins{.waiting = 100us, .beside = 20us};

}  // namespace

NodeGroup::NodeGroup(std::shared_ptr<Segment> segment, int rank, std::vector<int> global_ranks)
    : rounds_(std::move(segment), rank, std::move(global_ranks)),
      mail_(rounds_),
      queue_(rounds_.may_spin() ? kSpins : Queue::Spins{}) {}

NodeGroup::~NodeGroup() { close(); }

Result<std::shared_ptr<NodeGroup>> NodeGroup::make(std::shared_ptr<Segment> segment, int rank,
                                                   std::vector<int> global_ranks,
                                                   const std::shared_ptr<PeerWatch>& watch) {
  std::shared_ptr<NodeGroup> group(
      new NodeGroup(std::move(segment), rank, std::move(global_ranks)));
  Rounds& rounds = group->rounds_;
  for (int other = 0; other < rounds.size(); ++other) {
    const pid_t pid = rounds.segment().page(other).pid;
    if (pid == ::getpid()) continue;  // this very rank, or one in another thread of its process
    auto watched = PeerWatch::watch(watch, pid, [at = &rounds, other] { at->died(other); });
    if (!watched) {
      return fail(
          std::move(watched.error()).with("rank", std::to_string(rounds.global_rank(other))));
    }
    group->watched_.push_back(std::move(*watched));
  }
  return group;
}

}  // namespace ddprun::shm
