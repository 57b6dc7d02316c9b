#include "worker_lib/shm/shm_group.h"

#include <unistd.h>

#include <utility>

namespace ddprun::shm {
namespace {

using namespace std::chrono_literals;

// About what a sleep and a wake-up cost: whoever looks so long has lost no more than it could win.
constexpr Queue::Spins kSpins{.waiting = 100us, .beside = 20us};

}  // namespace

NodeGroup::NodeGroup(std::shared_ptr<Segment> segment, int rank, std::vector<int> global_ranks,
                     const std::shared_ptr<PeerWatch>& watch)
    : exchange_(std::move(segment), rank, std::move(global_ranks)),
      messages_(exchange_),
      queue_(exchange_.may_spin() ? kSpins : Queue::Spins{}) {
  for (int other = 0; other < exchange_.size(); ++other) {
    const pid_t pid = exchange_.segment().page(other).pid;
    if (pid == ::getpid()) continue;  // this very rank, or one in another thread of its process
    try {
      watched_.push_back(PeerWatch::watch(watch, pid, [this, other] { exchange_.died(other); }));
    } catch (const Failure& failure) {
      throw Failure(
          Error(failure.error()).with("rank", std::to_string(exchange_.global_rank(other))));
    }
  }
}

NodeGroup::~NodeGroup() { close(); }

}  // namespace ddprun::shm
