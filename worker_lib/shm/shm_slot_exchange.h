// SlotExchange: how the ranks of a segment exchange data, piece by piece. In a round every rank
// fills its slot and publishes it; when all have, each reads what it needs of the others' slots.
//
//   exchange.call() = …;  write to exchange.mine();  exchange.publish();
//   exchange.wait(…);  read exchange.of(rank) …            // until the next publish()
//
// A rank has two slots, used in turn. Who fills a slot for round r + 2 has waited for round r + 1,
// which every rank publishes only after it has read all of round r: so nothing is overwritten that
// somebody still reads, and no rank is ever more than a round ahead. That is all the protocol there
// is; tests/model/shm_slot_exchange.pml checks it for every interleaving of two and of three ranks.
//
// A rank that has died, left or given up before it published ends the wait of all the others with a
// Failure that names it; what it did publish stays valid. After a Failure the group is of no use:
// this rank has given up, says so to the others, and every later call throws the same.
//
// Owned by a NodeGroup; one thread at a time, but for died(), leave(), loss_of() and is_lost() (any).
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/error.h"
#include "worker_lib/shm/shm_futex.h"
#include "worker_lib/shm/shm_segment.h"

namespace ddprun::shm {

class SlotExchange {
 public:
  // `global_ranks`: what the ranks of the segment are called in messages. Its own part of the segment is
  // allocated.
  SlotExchange(std::shared_ptr<Segment> segment, int rank, std::vector<int> global_ranks);
  ~SlotExchange();
  SlotExchange(const SlotExchange&) = delete;
  SlotExchange& operator=(const SlotExchange&) = delete;

  int rank() const { return rank_; }
  int size() const { return segment_->ranks(); }
  std::size_t capacity() const { return segment_->geometry().slot_bytes; }
  int global_rank(int rank) const { return job_ranks_[static_cast<std::size_t>(rank)]; }
  Segment& segment() { return *segment_; }

  // For the round to come.
  std::byte* mine() { return segment_->slot(rank_, round_); }
  Call& call() { return page().calls[round_ % kSlots]; }
  void publish();
  // Counts collectives, from 1.
  std::uint64_t next_call() { return ++calls_; }

  // Of the round that was published last, after wait().
  const std::byte* of(int rank) const { return segment_->slot(rank, round_ - 1); }
  const Call& call_of(int rank) const { return segment_->page(rank).calls[(round_ - 1) % kSlots]; }

  // Whether every rank has published that round; looks for `spin` at most.
  bool can_read(std::chrono::nanoseconds spin);
  // Until it has, at most `until`; looks for `spin` before it sleeps. `what` is being done, for messages.
  void wait(std::chrono::nanoseconds spin, Clock::time_point until,
            const std::function<std::string()>& what);

  // Something that all ranks find out alike, or that only this one knows: throws it, now and ever
  // after.
  [[noreturn]] void give_up(const Failure& failure, int culprit = -1);
  void throw_if_given_up() const;

  // Tells the others that this rank makes no further round, and ends a wait of its own. Idempotent.
  void leave();
  // `rank`'s process has ended: for the thread that saw it.
  void died(int rank);
  // One that has died, left or given up. kClosed: its process has ended, or that of the rank it had
  // given up on; else kUnavailable.
  Error loss_of(int rank) const;
  bool is_lost(int rank) const;

  // Whether there is a core for each rank, so that looking takes none from a rank that works.
  bool may_spin() const { return may_spin_; }

 private:
  RankPage& page() { return segment_->page(rank_); }
  int first_missing() const;
  void notify_all();

  std::shared_ptr<Segment> segment_;
  int rank_;
  std::vector<int> job_ranks_;
  std::uint32_t round_ = 0;  // that comes next
  std::uint64_t calls_ = 0;
  bool may_spin_ = false;
  // How long to spin at most: shorter when spinning has not helped recently, since others may use the core.
  std::chrono::nanoseconds worth_spinning_;
  std::unique_ptr<Failure> failure_;
};

// Says in the page of `rank` which cores it may run on, and that it is there; for may_spin(), all
// before the first SlotExchange is made.
void announce(Segment& segment, int rank);

}  // namespace ddprun::shm
