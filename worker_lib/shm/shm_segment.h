// ShmSegment: the memory that the ranks of one node share for their collectives (shm_slot_exchange.h) and
// messages (shm_messages.h): a memfd of sealed size, mapped by each of them. It has no name anywhere
// and goes with its last process, however that ends. One rank makes it, the others get its
// descriptor (shm_handshake.h). Owned by whoever communicates through it; what lies in it is for the
// protocols to use: atomics for what is shared, slots and mailboxes for what was published.
//
//   | slots of rank 0 | … | slots of rank n-1 | mailboxes 0→0, 0→1 … | RankPage 0 … n-1 |
//
// A rank has two slots, which rounds use in turn. Everything begins at zero.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "rendezvous/common/unique_fd.h"
#include "worker_lib/process/shared_memory.h"
#include "worker_lib/shm/shm_reduce.h"

namespace ddprun::shm {

inline constexpr std::uint32_t kVersion = 4;  // of the layout and of all that is said in it
inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kLine = 64;
inline constexpr int kSlots = 2;
inline constexpr int kMostRanks = 1024;

enum class Kind : std::uint32_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduce,
  kGather,
  kAllGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
};

// What a rank is about to do, compared with the others' in the first round of every collective.
struct Call {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  Kind kind = Kind::kBarrier;
  Type type = Type::kUnknown;
  Op op = Op::kNone;
  std::int32_t root = -1;

  bool operator==(const Call&) const = default;
};

enum class State : std::uint32_t {
  kAbsent,
  kPresent,
  kLeft,    // in good order, or on its way out after an error of its own
  kDead,    // its process has ended; written by those who saw it
  kGaveUp,  // on a round that did not come about, see RankPage::culprit
};

// A futex that one rank sleeps on, with any number of its threads. Whoever changes what these wait
// for notifies it afterwards; see notify() and wait_for() in shm_futex.h.
struct alignas(kLine) Futex {
  std::atomic<std::uint32_t> wakes;
  std::atomic<std::uint32_t> sleepers;
};

// What a rank says of itself; written by it alone, but for State::kDead and the futexes.
struct alignas(kPage) RankPage {
  std::atomic<std::uint32_t> published;  // rounds, modulo 2^32
  alignas(kLine) std::array<Call, kSlots> calls;
  alignas(kLine) std::atomic<State> state;
  std::atomic<std::int32_t> pid;
  std::atomic<std::int32_t> culprit;  // for whom a rank that gave up had waited; -1: nobody
  alignas(kLine) std::array<std::atomic<std::uint64_t>, 16> cpus;  // where it may run, one bit each
  Futex futex;
  Futex message_futex;
};

// One direction between two ranks: a ring of bytes.
struct alignas(kPage) Mailbox {
  std::atomic<std::uint64_t> written;              // bytes in all; by the sender
  alignas(kLine) std::atomic<std::uint64_t> read;  // by the receiver
  static constexpr std::size_t kHead = 2 * kLine;

  std::byte* ring() { return reinterpret_cast<std::byte*>(this) + kHead; }
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<State>::is_always_lock_free);

// Sizes that all ranks must have the same of.
struct Geometry {
  std::uint32_t ranks = 0;
  std::uint64_t slot_bytes = 0;     // a multiple of kPage
  std::uint64_t mailbox_bytes = 0;  // of a mailbox with its head, too

  bool operator==(const Geometry&) const = default;
  std::size_t slots_bytes() const { return kSlots * slot_bytes; }  // of a rank
  std::size_t mailboxes_offset() const { return ranks * slots_bytes(); }
  std::size_t pages_offset() const {
    return mailboxes_offset() + std::size_t{ranks} * ranks * mailbox_bytes;
  }
  std::size_t total() const { return pages_offset() + ranks * sizeof(RankPage); }
};

// For `ranks` of a node and so many bytes for each: a fifth of it at most for the mailboxes.
Geometry geometry_for(int ranks, std::size_t bytes_per_rank);

class Segment {
 public:
  // All throw Failure. A new one: kResourceExhausted where memory or a limit is short: of files, of
  // addresses, or of the control group that the process is in.
  static Segment make(const Geometry& geometry);
  // One that another rank of this version has made. kProtocol: it is not of this size, or its size
  // could change under us.
  static Segment map(rdzv::UniqueFd memory, const Geometry& geometry);

  // Takes the memory that is `rank`'s to write, now and not at the first collective.
  // kResourceExhausted where it is short, which later would be a SIGBUS or a SIGKILL.
  void allocate(int rank);

  const Geometry& geometry() const { return geometry_; }
  int ranks() const { return static_cast<int>(geometry_.ranks); }
  const rdzv::UniqueFd& memory() const { return memory_; }

  RankPage& page(int rank);
  std::byte* slot(int rank, std::uint32_t round);
  Mailbox& mailbox(int from, int to);
  std::size_t ring_bytes() const { return geometry_.mailbox_bytes - Mailbox::kHead; }

 private:
  Segment(rdzv::UniqueFd memory, const Geometry& geometry);
  void take(std::size_t offset, std::size_t size);
  std::byte* base() const { return reinterpret_cast<std::byte*>(mapping_.data()); }

  rdzv::UniqueFd memory_;
  Geometry geometry_;
  Mapping mapping_;
};

}  // namespace ddprun::shm
