// The link between an agent and each of its workers: one page of shared memory in which the worker
// writes its progress, and a socket for requests. agent/README.md specifies layout, messages and
// rules, for implementations in other languages; the agent's side is agent/process/worker_link.h,
// the worker's worker_lib/process/agent_link.h.
//
// But for the boundaries, the page has one writer (the worker, one thread at a time) and any number of readers. A note is
// written into the slot that is not the latest and then made the latest, so that a worker that is
// stopped or killed at any instruction leaves a complete note, and the writer never waits.
//
// Do not change the layout: workers are other programs, linked with other releases. New fields may
// replace "reserved" (which is zero); then increase the version.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>

#include "rendezvous/common/worker_abi/worker_progress.h"

namespace ddprun::link {

// Decimal descriptor numbers, for the worker alone: in its children they are closed, or the page
// names another pid.
inline constexpr char kSocketVariable[] = "DDPRUN_LINK_FD";
inline constexpr char kPageVariable[] = "DDPRUN_LINK_PAGE_FD";

// 2: preempt_signal; 3: values; 4: kGroupBroken, the kind of steps, and marks with kStepped;
// 5: replacement in place; 6: kReplicasDiffer, kNorLater; 7: the GPU; 8: step boundaries; 9: stops between two steps;
// 10: kNotFinite
inline constexpr std::uint32_t kVersion = 10;
inline constexpr std::uint32_t kMarksSince = 4;
inline constexpr std::uint32_t kReplacementSince = 5;
inline constexpr std::uint32_t kReplicasDifferSince = 6;
inline constexpr std::uint32_t kGpuSince = 7;
inline constexpr std::uint32_t kBoundariesSince = 8;
inline constexpr std::uint32_t kParksSince = 9;
inline constexpr std::uint32_t kNotFiniteSince = 10;
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kValuesMax = 8;  // of a note
inline constexpr std::size_t kValueNameWords = 3;
inline constexpr std::uint64_t kMagic = 0x4b4e494c'50444400;  // "\0DDPLINK" in memory

// ---- the page

// Written once, before the worker starts.
struct Header {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;  // of the agent
  std::uint32_t bytes = kPageBytes;
  std::int32_t worker_pid = 0;  // only this process may use the link
  std::int32_t agent_pid = 0;   // the socket's other end
  // The signal that announces a preemption; 0: none. Some schedulers send it to the worker too,
  // which learns of the preemption over the link and must not be killed by the signal.
  std::int32_t preempt_signal = 0;
  // Written for a worker that takes the place of one that had reported steps: the step that ends
  // the outage, and where the number is from.
  StepKind wanted_kind = StepKind::kProgram;
  std::int64_t wanted_step = 0;  // 0: none
  std::uint64_t reserved_0[3] = {};
};

// A number with a name of at most 24 bytes, padded with NUL.
struct Value {
  std::array<std::uint64_t, kValueNameWords> name{};
  double number = 0;

  // A longer name is cut.
  static Value of(std::string_view name, double number) {
    Value value;
    value.number = number;
    std::memcpy(value.name.data(), name.data(), std::min(name.size(), sizeof value.name));
    return value;
  }
  // Valid as long as the value.
  std::string_view text() const {
    const std::string_view all(reinterpret_cast<const char*>(name.data()), sizeof name);
    return all.substr(0, all.find('\0'));
  }

  bool operator==(const Value&) const = default;
};

// What a worker reports. Times are nanoseconds of CLOCK_MONOTONIC or CLOCK_MONOTONIC_COARSE.
struct Note {
  std::int64_t step = 0;
  std::int64_t total_steps = 0;  // 0: not known
  std::int64_t step_at_ns = 0;   // when `step` was reported; 0: never
  StepKind step_kind = StepKind::kProgram;
  std::uint64_t collectives = 0;  // begun so far
  WorkerPhase phase = WorkerPhase::kUnknown;
  std::int64_t phase_since_ns = 0;
  std::uint32_t value_count = 0;  // how many of the values are set
  std::array<Value, kValuesMax> values{};

  bool operator==(const Note&) const = default;
};

struct Slot {
  std::atomic<std::int64_t> step;
  std::atomic<std::int64_t> total_steps;
  std::atomic<std::int64_t> step_at_ns;
  std::atomic<std::uint64_t> collectives;
  std::atomic<std::uint32_t> phase;
  std::atomic<std::uint32_t> step_kind;
  std::atomic<std::int64_t> phase_since_ns;
  std::uint64_t reserved_1[2];
};

struct ValueSlot {
  struct Entry {
    std::atomic<std::uint64_t> name[kValueNameWords];
    std::atomic<std::uint64_t> number;  // the bits of a double
  };
  std::atomic<std::uint32_t> count;
  std::uint32_t reserved_0;
  Entry values[kValuesMax];
  std::uint64_t reserved_1[7];
};

// The moments of a process that end an outage. Written when they come, before kStepped is sent, and
// anew if the steps' kind changes.
struct Marks {
  std::atomic<std::int64_t> first_step;
  std::atomic<std::int64_t> first_step_at_ns;   // 0: none yet
  std::atomic<std::int64_t> wanted_step_at_ns;  // Header::wanted_step, or a later one; 0: not yet
  std::atomic<std::uint32_t> step_kind;
  std::uint32_t reserved_0;
};

// Of a worker that can be replaced in place.
struct Recovery {
  std::atomic<std::int64_t> committed;    // steps of the job that are done on this rank
  std::atomic<std::uint32_t> generation;  // in which its groups were made last; 0: at its start
  // 1: death_lock is a pthread_mutex_t of glibc, robust and shared between processes, which the worker's
  // main thread holds until it ends. The kernel then sets FUTEX_OWNER_DIED in its first word, and wakes
  // one waiter, before it frees the memory of the process, which takes much longer. Execve() and the end
  // of the main thread alone do the same, so it is a hint: /proc/PID/stat confirms it.
  std::atomic<std::uint32_t> holds_death_lock;
  alignas(8) std::uint8_t death_lock[64];
  std::uint64_t reserved_0[2];
};

// What a second process of a rank would need on the GPU of its model; written by a worker that can be replaced in place.
struct Gpu {
  std::atomic<std::uint64_t> id;          // the same in all processes that use this GPU; 0: none
  std::atomic<std::uint64_t> free_bytes;  // the GPU's
  std::atomic<std::uint64_t> used_bytes;  // by this worker at most. Written last; 0: not known yet
  std::atomic<std::uint32_t> index;       // as this worker counts the GPUs
  std::uint32_t reserved_0;
};

// The same as it was read.
struct GpuUse {
  std::uint64_t id = 0;
  std::uint32_t index = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t used_bytes = 0;

  bool is_on_gpu() const { return id != 0; }
  bool is_known() const { return !is_on_gpu() || used_bytes != 0; }
  bool operator==(const GpuUse&) const = default;
};

// How all workers of a job leave at the same step. A worker counts its step boundaries from 1, equally with all others: the calls
// of should_leave(), or the committed steps of a loop that can be replaced. At each it stores the number in `passed` and
// then reads `state`, with a full barrier of memory between the two: so the agent, which stores kHold and then reads `passed`,
// knows that the worker passes no further boundary before kLeave or kGoOn. A worker that is held waits with futex(2) for another `state`.
//
// And how all workers of a job are stopped between the same two steps. A worker counts the steps that it reports, from 1, in
// `steps`, and looks at `state` then, likewise. With kPark it waits from step `leave_at` on: it awaits the work that it has
// queued on its devices, sets `parked`, sends kParked, and waits for another `state`, or for its end.
struct Boundaries {
  // Written by the agent:
  std::atomic<std::uint32_t> state;  // a BoundaryState
  // Written by the worker:
  std::atomic<std::uint32_t> parked;  // 1: it waits with kPark
  // By the agent:
  std::atomic<std::int64_t> leave_at;  // where the worker leaves, or parks; before kLeave and kPark
  // Written by the worker:
  std::atomic<std::int64_t> passed;       // the last boundary; 0: none
  std::atomic<std::uint32_t> takes_part;  // 1: it asks at its boundaries whether it is to leave
  std::atomic<std::uint32_t> has_left;    // 1: it was told so, by this page or by kLeave
  std::atomic<std::int64_t>
      steps;  // reported by this process; 0: none, or it looks at no state then
  std::atomic<std::int64_t> step_ns;  // what the last one took; 0: not known. Before `steps`
};
enum class BoundaryState : std::uint32_t { kGoOn = 0, kHold = 1, kLeave = 2, kPark = 3 };

struct Page {
  Header header;
  std::atomic<std::uint64_t> notes;  // written so far; the latest is in slots[notes % 2]
  std::uint64_t reserved_0[7];
  Slot slots[2];
  ValueSlot value_slots[2];  // of the same notes
  Marks marks;
  Recovery recovery;
  Gpu gpu;
  Boundaries boundaries;
  std::uint8_t reserved_1[kPageBytes - 1104];
};

static_assert(std::is_standard_layout_v<Page> && sizeof(Page) == kPageBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(Header) == 64 && offsetof(Header, version) == 8 &&
              offsetof(Header, bytes) == 12 && offsetof(Header, worker_pid) == 16 &&
              offsetof(Header, agent_pid) == 20 && offsetof(Header, preempt_signal) == 24 &&
              offsetof(Header, wanted_kind) == 28 && offsetof(Header, wanted_step) == 32);
static_assert(offsetof(Page, notes) == 64 && offsetof(Page, slots) == 128 && sizeof(Slot) == 64);
static_assert(offsetof(Slot, step) == 0 && offsetof(Slot, total_steps) == 8 &&
              offsetof(Slot, step_at_ns) == 16 && offsetof(Slot, collectives) == 24 &&
              offsetof(Slot, phase) == 32 && offsetof(Slot, step_kind) == 36 &&
              offsetof(Slot, phase_since_ns) == 40);
static_assert(offsetof(Page, marks) == 896 && sizeof(Marks) == 32 &&
              offsetof(Marks, first_step_at_ns) == 8 && offsetof(Marks, wanted_step_at_ns) == 16 &&
              offsetof(Marks, step_kind) == 24);
static_assert(offsetof(Page, recovery) == 928 && sizeof(Recovery) == 96 &&
              offsetof(Recovery, generation) == 8 && offsetof(Recovery, holds_death_lock) == 12 &&
              offsetof(Recovery, death_lock) == 16);
static_assert(offsetof(Page, gpu) == 1024 && sizeof(Gpu) == 32 && offsetof(Gpu, free_bytes) == 8 &&
              offsetof(Gpu, used_bytes) == 16 && offsetof(Gpu, index) == 24);
static_assert(offsetof(Page, boundaries) == 1056 && sizeof(Boundaries) == 48 &&
              offsetof(Boundaries, parked) == 4 && offsetof(Boundaries, steps) == 32 &&
              offsetof(Boundaries, step_ns) == 40 && offsetof(Boundaries, leave_at) == 8 &&
              offsetof(Boundaries, passed) == 16 && offsetof(Boundaries, takes_part) == 24 &&
              offsetof(Boundaries, has_left) == 28);
static_assert(offsetof(Page, value_slots) == 256 && sizeof(ValueSlot) == 320 &&
              offsetof(ValueSlot, values) == 8 && sizeof(ValueSlot::Entry) == 32);

// The numbers of a note beside their places on the page: `copy` stores or loads each.
inline void for_each_number(auto& slot, auto& value_slot, auto& note, const auto& copy) {
  copy(slot.step, note.step);
  copy(slot.total_steps, note.total_steps);
  copy(slot.step_at_ns, note.step_at_ns);
  copy(slot.step_kind, note.step_kind);
  copy(slot.collectives, note.collectives);
  copy(slot.phase, note.phase);
  copy(slot.phase_since_ns, note.phase_since_ns);
  copy(value_slot.count, note.value_count);
  for (std::size_t i = 0; i < std::min<std::size_t>(note.value_count, kValuesMax); ++i) {
    for (std::size_t word = 0; word < kValueNameWords; ++word) {
      copy(value_slot.values[i].name[word], note.values[i].name[word]);
    }
    copy(value_slot.values[i].number, note.values[i].number);
  }
}

inline void write_note(Page& page, const Note& note) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const std::uint64_t next = page.notes.load(kRelaxed) + 1;
  // A reader that sees any of the stores below also sees that this slot is no longer the latest.
  std::atomic_thread_fence(std::memory_order_release);
  for_each_number(page.slots[next % 2], page.value_slots[next % 2], note,
                  []<typename T>(std::atomic<T>& place, const auto& number) {
                    place.store(std::bit_cast<T>(number), kRelaxed);
                  });
  page.notes.store(next, std::memory_order_release);
}

// The latest note. nullopt: none was written, or no consistent note could be read in `attempts`
// tries (writing takes nanoseconds, so the page is then probably corrupt).
inline std::optional<Note> read_note(const Page& page, int attempts = 1000) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  while (attempts-- > 0) {
    const std::uint64_t latest = page.notes.load(std::memory_order_acquire);
    if (latest == 0) return std::nullopt;
    Note note;
    for_each_number(page.slots[latest % 2], page.value_slots[latest % 2], note,
                    []<typename T>(const auto& place, T& number) {
                      number = std::bit_cast<T>(place.load(kRelaxed));
                    });
    note.value_count = std::min<std::uint32_t>(note.value_count, std::uint32_t{kValuesMax});
    // The writer uses this slot again only after the other one has become the latest.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (page.notes.load(kRelaxed) == latest) return note;
  }
  return std::nullopt;
}

// ---- the socket: SOCK_SEQPACKET, every message begins with a Message, in the machine's byte order

enum class Kind : std::uint32_t {
  kHello = 1,  // worker to agent: `requests` are those that it supports; the last hello counts
  kLeave = 2,  // agent to worker: leave at the next step
  // Agent to worker, a GroupBroken: a worker of the round is gone, so no call that waits for all will
  // return. To every worker, whatever its hello says.
  kGroupBroken = 3,
  // Worker to an agent of version 4 or later: there are new marks on the page.
  kStepped = 4,

  // Replacement in place (agent/README.md), worker to an agent of version 5 or later:
  // A Message with one descriptor: the memory of its mirror, in which it notes the state that only this
  // rank has. Before the hello with kCanRecover.
  kMirror = 5,
  // `requests` is the generation. The groups were made anew in it, and this rank has its state: the step
  // is done again.
  kRegrouped = 6,
  // `requests` is the generation. The first step in it is committed on this rank.
  kCommitted = 7,
  // A Sentence: why this program cannot be replaced in place; `requests` may have kNorLater.
  kCannotRecover = 8,
  // Worker to an agent of version 6 or later, a ReplicasDiffer: two ranks differ in what is equal on all ranks.
  kReplicasDiffer = 9,
  // Worker to an agent of version 9 or later: it has parked.
  kParked = 10,
  // Worker to an agent of version 10 or later, a NotFinite: a reported value has become NaN or infinite. Once for each name until the
  // value is finite again, and at most kValuesMax in a second.
  kNotFinite = 11,

  // Agent to a worker whose hello had kCanRecover, a Regroup: leave the call that you wait in, and make
  // the groups anew.
  kRegroup = 16,
  // Agent to a prepared standby, a TakePlace: it is the worker of its rank from here on, in this generation.
  // With descriptors: stdout, stderr, and the mirror of the one before.
  kTakePlace = 17,
};

// Bits of Message::requests.
// In a kCannotRecover: nor is any worker of this job replaced in place from here on.
inline constexpr std::uint32_t kNorLater = 1;
// In a hello:
inline constexpr std::uint32_t kTakesLeave = 1;
// Started with zygote::kSocketVariable, this program becomes a zygote (zygote_protocol.h).
inline constexpr std::uint32_t kCanBeZygote = 2;
// This worker takes part in the replacement of others, and can be replaced.
inline constexpr std::uint32_t kCanRecover = 4;
// This prepared standby waits for kTakePlace; it has made its set-up, unless kStandbyGpuVariable says otherwise.
inline constexpr std::uint32_t kIsPrepared = 8;

// Set, with any value, where the agent replaces workers in place if they can be: what that needs costs a
// program nothing otherwise.
inline constexpr char kReplacesVariable[] = "DDPRUN_REPLACES";
// Set, with any value, for a prepared standby: it has the environment of a worker of its rank, makes its
// set-up without the others, and waits.
inline constexpr char kPreparedVariable[] = "DDPRUN_PREPARED";
// For a prepared standby whose model is to be on a GPU: "WHEN INDEX BYTES", a Preparation, the GPU as its worker counts it, and
// how many bytes have to be free there before the standby's model may come.
inline constexpr char kStandbyGpuVariable[] = "DDPRUN_STANDBY_GPU";
enum class Preparation : std::uint32_t {
  kWhole,  // "whole": it makes its set-up, and waits then
  kContext,  // "context": it makes a context of CUDA, waits, and makes its set-up when it has its place
  kNothing,  // "nothing": the context, too
};
inline constexpr std::array<std::string_view, 3> kPreparations{"whole", "context", "nothing"};

// Its number: the mirror of the worker whose standby it is, as that has sent it. In it is what the
// program's set-up was told by the other ranks.
inline constexpr char kMirrorVariable[] = "DDPRUN_MIRROR_FD";

// Its number: memory of the node for snapshots of the training, which the agent keeps from one round to the
// next and never looks into (worker_lib/process/snapshot_memory.h). Empty at first. Every worker of the node
// has it, standbys included.
inline constexpr char kSnapshotVariable[] = "DDPRUN_SNAPSHOT_FD";
inline constexpr char kSnapshotName[] = "ddprun-snapshot";  // as memfd_create() has it

struct Message {
  std::uint32_t kind = 0;
  std::uint32_t version = kVersion;  // of the sender
  std::int32_t pid = 0;              // of the sender
  std::uint32_t requests = 0;
};
static_assert(sizeof(Message) == 16 && std::is_trivially_copyable_v<Message>);

struct GroupBroken {
  Message head{.kind = static_cast<std::uint32_t>(Kind::kGroupBroken)};
  std::int32_t rank = 0;    // of the worker that is gone; of a lost node the first one's
  std::uint32_t round = 0;  // of this worker too, which lives in no other
};
static_assert(sizeof(GroupBroken) == 24 && std::is_trivially_copyable_v<GroupBroken>);

struct Regroup {
  Message head{.kind = static_cast<std::uint32_t>(Kind::kRegroup)};
  std::int32_t rank = 0;         // that is replaced
  std::uint32_t generation = 0;  // that begins; counts from 1 in each round
};
static_assert(sizeof(Regroup) == 24 && std::is_trivially_copyable_v<Regroup>);
struct TakePlace {
  Message head{.kind = static_cast<std::uint32_t>(Kind::kTakePlace)};
  std::int32_t rank = 0;  // its own
  std::uint32_t generation = 0;
};
static_assert(sizeof(TakePlace) == 24 && std::is_trivially_copyable_v<TakePlace>);

struct Sentence {
  Message head;
  char text[240] = {};  // the rest NUL
};
static_assert(sizeof(Sentence) == 256 && std::is_trivially_copyable_v<Sentence>);

struct ReplicasDiffer {
  Message head{.kind = static_cast<std::uint32_t>(Kind::kReplicasDiffer)};
  std::int64_t step = 0;  // at which it was seen first
  std::int32_t rank = 0;
  std::int32_t other = 0;
  char what[224] = {};  // a sentence, the rest NUL
};
static_assert(sizeof(ReplicasDiffer) == 256 && std::is_trivially_copyable_v<ReplicasDiffer>);

struct NotFinite {
  Message head{.kind = static_cast<std::uint32_t>(Kind::kNotFinite)};
  std::int64_t step = 0;  // at which it was reported
  Value value;
};
static_assert(sizeof(NotFinite) == 56 && std::is_trivially_copyable_v<NotFinite>);

}  // namespace ddprun::link
