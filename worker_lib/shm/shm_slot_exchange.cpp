#include "worker_lib/shm/shm_slot_exchange.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "worker_lib/process/message_text.h"

namespace ddprun::shm {
namespace {

constexpr std::size_t kMostCpus = 1024;
constexpr std::chrono::nanoseconds kLeastSpin = std::chrono::microseconds(4);
constexpr std::chrono::nanoseconds kMostSpin = std::chrono::microseconds(100);

// At or after `round`, both modulo 2^32; ranks are never far apart.
bool is_at(std::uint32_t published, std::uint32_t round) {
  return static_cast<std::int32_t>(published - round) >= 0;
}

bool has_core_per_rank(Segment& segment) {
  int cores = 0;
  for (std::size_t word = 0; word < kMostCpus / 64; ++word) {
    std::uint64_t any = 0;
    for (int rank = 0; rank < segment.ranks(); ++rank) any |= segment.page(rank).cpus[word];
    cores += std::popcount(any);
  }
  return cores >= segment.ranks();
}

}  // namespace

void announce(Segment& segment, int rank) {
  RankPage& page = segment.page(rank);
  cpu_set_t cpus;
  if (::sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
    for (std::size_t cpu = 0; cpu < kMostCpus && cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &cpus)) page.cpus[cpu / 64] |= std::uint64_t{1} << (cpu % 64);
    }
  }
  page.culprit = -1;
  page.pid = ::getpid();
  page.state = State::kPresent;
}

SlotExchange::SlotExchange(std::shared_ptr<Segment> segment, int rank,
                           std::vector<int> global_ranks)
    : segment_(std::move(segment)),
      rank_(rank),
      job_ranks_(std::move(global_ranks)),
      may_spin_(has_core_per_rank(*segment_)),
      worth_spinning_(kMostSpin) {}

SlotExchange::~SlotExchange() { leave(); }

void SlotExchange::notify_all() {
  for (int other = 0; other < size(); ++other) {
    notify(segment_->page(other).futex);
    notify(segment_->page(other).message_futex);
  }
}

void SlotExchange::publish() {
  throw_if_given_up();
  page().published.store(++round_);
  for (int other = 0; other < size(); ++other) {
    if (other != rank_) notify(segment_->page(other).futex);
  }
}

int SlotExchange::first_missing() const {
  for (int other = 0; other < size(); ++other) {
    // In one order with the sleepers' count (shm_futex.h): not a mere acquire.
    if (!is_at(segment_->page(other).published.load(), round_)) return other;
  }
  return -1;
}

bool SlotExchange::can_read(std::chrono::nanoseconds spin) {
  const auto is_there = [this] { return first_missing() < 0; };
  if (is_there()) return true;
  if (spin <= spin.zero()) return false;
  const bool was_worth_it = spin_for(std::min(spin, worth_spinning_), is_there);
  worth_spinning_ =
      std::clamp(was_worth_it ? worth_spinning_ * 2 : worth_spinning_ / 2, kLeastSpin, kMostSpin);
  return was_worth_it;
}

bool SlotExchange::is_lost(int rank) const {
  return segment_->page(rank).state.load() != State::kPresent;
}

Error SlotExchange::loss_of(int rank) const {
  const RankPage& page = segment_->page(rank);
  const std::string name = "rank " + std::to_string(global_rank(rank));
  const int culprit = page.culprit.load();
  switch (page.state.load()) {
    case State::kDead:
      return {ErrorCode::kClosed,
              name + " (process " + std::to_string(page.pid.load()) + ") has died"};
    case State::kLeft:
      return {ErrorCode::kUnavailable, name + " has left the group"};
    case State::kGaveUp:
      if (culprit < 0) return {ErrorCode::kUnavailable, name + " has given up"};
      if (segment_->page(culprit).state.load() == State::kDead) return loss_of(culprit);
      return {ErrorCode::kUnavailable,
              name + " has given up waiting for rank " + std::to_string(global_rank(culprit))};
    case State::kAbsent:
    case State::kPresent:
      break;
  }
  return {ErrorCode::kUnavailable, name + " is there"};
}

void SlotExchange::wait(std::chrono::nanoseconds spin, Clock::time_point until,
                        const std::function<std::string()>& what) {
  throw_if_given_up();
  const auto begun = Clock::now();
  int missing = -1;
  int lost = -1;
  // What was published before a loss counts: the round is looked at after the states, too.
  const auto has_ended = [&] {
    missing = first_missing();
    if (missing < 0) return true;
    for (int other = 0; other < size(); ++other) {
      const State state = segment_->page(other).state.load();
      const bool has_no_more = state == State::kDead || state == State::kLeft;
      const bool is_behind =
          !is_at(segment_->page(other).published.load(std::memory_order_acquire), round_);
      const bool is_closed_here = other == rank_ && state == State::kLeft;
      if (is_closed_here || (has_no_more && is_behind)) {
        lost = other;
        break;
      }
      if (state == State::kGaveUp) lost = other;  // its own reason may yet be found
    }
    if (lost < 0) return false;
    missing = first_missing();
    return true;
  };
  if (can_read(spin)) return;
  const bool is_in_time = wait_for(page().futex, until, has_ended);
  if (is_in_time && missing < 0) return;
  if (is_in_time) {
    // The first cause goes from rank to rank.
    const int cause = segment_->page(lost).culprit.load();
    const Error loss = loss_of(lost);
    give_up(Failure(loss.code, what() + ": " + loss.message), cause >= 0 ? cause : lost);
  }
  give_up(Failure(ErrorCode::kTimeout,
                  what() + " timed out: rank " + std::to_string(global_rank(missing)) +
                      " did not come within " + seconds_text(Clock::now() - begun)),
          missing);
}

void SlotExchange::throw_if_given_up() const {
  if (failure_) throw *failure_;
}

void SlotExchange::give_up(const Failure& failure, int culprit) {
  if (!failure_) {
    failure_ = std::make_unique<Failure>(failure);
    page().culprit = culprit;
    State there = State::kPresent;
    page().state.compare_exchange_strong(there, State::kGaveUp);
    notify_all();
  }
  throw *failure_;
}

void SlotExchange::leave() {
  State there = State::kPresent;
  if (page().state.compare_exchange_strong(there, State::kLeft)) notify_all();
}

void SlotExchange::died(int rank) {
  State there = State::kPresent;
  segment_->page(rank).state.compare_exchange_strong(there, State::kDead);
  wake(page().futex);
  wake(page().message_futex);
}

}  // namespace ddprun::shm
