// The record of a worker's collectives: memory of its own beside the link's page (worker_link.h), made
// by the agent, in which the worker writes every collective that it enters and leaves. So whoever asks
// sees in which call a rank is, also after SIGKILL. agent/README.md specifies the layout, for
// implementations in other languages; the worker's side is worker_lib/process/collective_record.h,
// the agent's agent/process/worker_link.h.
//
// Any thread of the worker may write, without waiting: an entry is claimed by a counter and published
// by a word of its own. A thread that is stopped or killed at any instruction spoils one entry, which
// readers skip. Any number of readers, who trust nothing of it.
//
// Do not change the layout: workers are other programs, linked with other releases.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddprun::record {

// Decimal descriptor number, under the rules of the link's variables.
inline constexpr char kVariable[] = "DDPRUN_LINK_RECORD_FD";

inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint64_t kMagic = 0x44524352'50444400;  // "\0DDPRCRD" in memory
inline constexpr std::size_t kGroupsMax = 48;
inline constexpr std::size_t kEntries = 1024;
inline constexpr std::size_t kBytes = 4096 + kEntries * 64;
inline constexpr std::uint32_t kWorldMax = 1U << 20;
inline constexpr std::uint8_t kNoType = 255;
inline constexpr std::uint32_t kNotBegun = UINT32_MAX;
inline constexpr std::uint32_t kUnknownPeer = UINT32_MAX;

// What a call does. The numbers are part of the layout: do not change them.
enum class Operation : std::uint8_t {
  kOther = 0,
  kAllReduce = 1,
  kBroadcast = 2,
  kReduce = 3,
  kAllGather = 4,
  kGather = 5,
  kScatter = 6,
  kReduceScatter = 7,
  kAllToAll = 8,
  kBarrier = 9,
  kSendReceive =
      10,  // a message from one rank to another, in a group of these two (see add_channel)
  // PyTorch's, each in a group of its own, which has the same members as the process group.
  kInitProcessGroup = 11,
  kNewGroup = 12,
  kMonitoredBarrier = 13,
};

// "all_reduce", …; "a collective" for any other number.
constexpr std::string_view name_of(Operation operation) {
  constexpr std::array<std::string_view, 14> kNames{
      "a collective", "all_reduce",       "broadcast", "reduce",
      "all_gather",   "gather",           "scatter",   "reduce_scatter",
      "all_to_all",   "barrier",          "send_recv", "init_process_group",
      "new_group",    "monitored_barrier"};
  const auto number = static_cast<std::size_t>(operation);
  return kNames[number < kNames.size() ? number : 0];
}

// ---- the layout

// Written by the agent before the worker starts.
struct Header {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;  // of the agent
  std::uint32_t bytes = kBytes;
  std::int32_t worker_pid = 0;  // only this process may write
  std::uint32_t reserved_0[11] = {};
};

// A process group that this worker is a member of.
struct GroupSlot {
  // 0: free; an odd number while it is filled in; then an even one, another with each group.
  std::atomic<std::uint32_t> turn;
  // The other rank of the job, and 1, or kUnknownPeer, in a channel; 0: it is no channel, or not known.
  std::atomic<std::uint32_t> peer;
  std::atomic<std::uint64_t> id;       // FNV-1a of the name, which is equal on all members
  std::atomic<std::uint32_t> size;     // members
  std::atomic<std::uint32_t> rank;     // this worker's among them
  std::atomic<std::uint64_t> calls;    // entered so far: the number of the latest
  std::atomic<std::uint64_t> name[4];  // cut, the rest NUL
};

struct Entry {
  // 0: never used; for claim c (from 0): 2 c + 1 while it is filled in, then 2 c + 2.
  std::atomic<std::uint64_t> turn;
  std::atomic<std::uint64_t> number;     // of the group's calls, from 1
  std::atomic<std::int64_t> entered_ns;  // CLOCK_MONOTONIC
  std::atomic<std::int64_t> left_ns;     // -(c + 1): not yet
  std::atomic<std::uint64_t> elements;   // of the tensor, as far as known
  // A hash of what has to be equal on all members beside operation, type and root (sizes, the operator
  // of a reduction); 0: nothing is said.
  std::atomic<std::uint64_t> signature;
  // From the lowest bits: 16 the group's slot, 8 the operation, 8 the type (c10::ScalarType), 32 when the GPU has begun it:
  // microseconds after it was entered. 0: the host makes the call; kNotBegun: the GPU has not begun it yet.
  std::atomic<std::uint64_t> call;
  std::atomic<std::uint32_t> group_turn;  // of the slot, when the call was made
  std::atomic<std::int32_t> root;         // of the group; -1: none
};

struct Memory {
  Header header;
  std::atomic<std::uint64_t> claimed;  // entries so far; entry c is at c % kEntries
  // Threads of the worker that may make calls, and how many of them are inside of the wait for a call that is
  // recorded. 0 threads: nothing is said.
  std::atomic<std::uint32_t> threads;
  std::atomic<std::uint32_t> threads_in_wait;
  std::uint64_t reserved_0[6];
  GroupSlot groups[kGroupsMax];
  std::uint8_t reserved_1[4096 - 128 - kGroupsMax * 64];
  Entry entries[kEntries];
};

static_assert(std::is_standard_layout_v<Memory> && sizeof(Memory) == kBytes);
static_assert(sizeof(Header) == 64 && offsetof(Header, worker_pid) == 16);
static_assert(sizeof(GroupSlot) == 64 && offsetof(GroupSlot, peer) == 4 &&
              offsetof(GroupSlot, id) == 8 && offsetof(GroupSlot, size) == 16 &&
              offsetof(GroupSlot, rank) == 20 && offsetof(GroupSlot, calls) == 24 &&
              offsetof(GroupSlot, name) == 32);
static_assert(sizeof(Entry) == 64 && offsetof(Entry, number) == 8 &&
              offsetof(Entry, entered_ns) == 16 && offsetof(Entry, left_ns) == 24 &&
              offsetof(Entry, elements) == 32 && offsetof(Entry, signature) == 40 &&
              offsetof(Entry, call) == 48 && offsetof(Entry, group_turn) == 56 &&
              offsetof(Entry, root) == 60);
static_assert(offsetof(Memory, claimed) == 64 && offsetof(Memory, threads) == 72 &&
              offsetof(Memory, threads_in_wait) == 76 && offsetof(Memory, groups) == 128 &&
              offsetof(Memory, entries) == 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// ---- values

struct Call {
  Operation operation = Operation::kOther;
  std::uint8_t type = kNoType;
  std::int32_t root = -1;
  std::uint64_t elements = 0;
  std::uint64_t signature = 0;

  bool operator==(const Call&) const = default;
};

constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  for (int i = 0; i < 8; ++i, value >>= 8) hash = (hash ^ (value & 0xff)) * 0x100000001b3;
  return hash;
}
inline constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325;

constexpr std::uint64_t id_of(std::string_view name) {
  std::uint64_t hash = kHashSeed;
  for (const char c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3;
  return hash;
}

// ---- the worker's side

struct GroupPlace {
  std::uint32_t slot = kGroupsMax;  // kGroupsMax: there was none free, and nothing is written
  std::uint32_t turn = 0;
};

// One thread at a time.
inline GroupPlace add_group(Memory& memory, std::string_view name, std::uint32_t rank,
                            std::uint32_t size, std::uint32_t turn, std::uint32_t peer = 0) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  for (std::uint32_t slot = 0; slot < kGroupsMax; ++slot) {
    GroupSlot& group = memory.groups[slot];
    if (group.turn.load(kRelaxed) != 0) continue;
    group.turn.store(2 * turn + 1, kRelaxed);
    std::atomic_thread_fence(std::memory_order_release);
    std::uint64_t words[4] = {};
    std::memcpy(words, name.data(), std::min(name.size(), sizeof words));
    for (std::size_t i = 0; i < 4; ++i) group.name[i].store(words[i], kRelaxed);
    group.peer.store(peer, kRelaxed);
    group.id.store(id_of(name), kRelaxed);
    group.size.store(size, kRelaxed);
    group.rank.store(rank, kRelaxed);
    group.calls.store(0, kRelaxed);
    group.turn.store(2 * turn + 2, std::memory_order_release);
    return {slot, 2 * turn + 2};
  }
  return {};
}

// Messages between two ranks are calls of a group of their own, so that the others are not missed in them:
// one for each sender, receiver and tag, in which the sender has rank 0. `job_peer`: the rank of the job
// that is the other one, if known.
struct Channel {
  std::uint32_t from = 0;  // ranks of the group
  std::uint32_t to = 0;
  int tag = 0;
  std::optional<std::uint32_t> job_peer = {};

  bool operator==(const Channel&) const = default;
};

inline std::string name_of(std::string_view group, const Channel& channel) {
  std::string name = " " + std::to_string(channel.from) + "->" + std::to_string(channel.to);
  if (channel.tag != 0) name += " tag " + std::to_string(channel.tag);
  return std::string(group.substr(0, 32 - std::min<std::size_t>(name.size(), 32))) + name;
}

inline GroupPlace add_channel(Memory& memory, std::string_view group, const Channel& channel,
                              bool is_sender, std::uint32_t turn) {
  return add_group(memory, name_of(group, channel), is_sender ? 0 : 1, 2, turn,
                   channel.job_peer ? *channel.job_peer + 1 : kUnknownPeer);
}

inline void remove_group(Memory& memory, GroupPlace place) {
  if (place.slot < kGroupsMax) memory.groups[place.slot].turn.store(0, std::memory_order_release);
}

// What leave() takes; 0: the call is not in the record.
using Ticket = std::uint64_t;

// `begun`: kNotBegun for a call that a GPU makes, of which begin() is told later.
inline Ticket enter(Memory& memory, GroupPlace place, const Call& call, std::int64_t now_ns,
                    std::uint32_t begun = 0) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  if (place.slot >= kGroupsMax) return 0;
  const std::uint64_t number = memory.groups[place.slot].calls.fetch_add(1, kRelaxed) + 1;
  const std::uint64_t claim = memory.claimed.fetch_add(1, kRelaxed);
  Entry& entry = memory.entries[claim % kEntries];
  // A thread that was interrupted in the middle of an entry keeps it.
  std::uint64_t before = entry.turn.load(kRelaxed);
  if (before % 2 != 0 || before > 2 * claim ||
      !entry.turn.compare_exchange_strong(before, 2 * claim + 1, kRelaxed)) {
    return 0;
  }
  std::atomic_thread_fence(std::memory_order_release);
  entry.number.store(number, kRelaxed);
  entry.entered_ns.store(now_ns, kRelaxed);
  entry.left_ns.store(-static_cast<std::int64_t>(claim + 1), kRelaxed);
  entry.elements.store(call.elements, kRelaxed);
  entry.signature.store(call.signature, kRelaxed);
  entry.call.store(place.slot | std::uint64_t{static_cast<std::uint8_t>(call.operation)} << 16 |
                       std::uint64_t{call.type} << 24 | std::uint64_t{begun} << 32,
                   kRelaxed);
  entry.group_turn.store(place.turn, kRelaxed);
  entry.root.store(call.root, kRelaxed);
  entry.turn.store(2 * claim + 2, std::memory_order_release);
  return claim + 1;
}

// The GPU begins the call. Nothing where the entry is another call's by now.
inline void begin(Memory& memory, Ticket ticket, std::int64_t now_ns) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  if (ticket == 0) return;
  Entry& entry = memory.entries[(ticket - 1) % kEntries];
  std::uint64_t call = entry.call.load(kRelaxed);
  if (entry.turn.load(std::memory_order_acquire) != 2 * ticket || call >> 32 != kNotBegun) return;
  const std::int64_t after_us = (now_ns - entry.entered_ns.load(kRelaxed)) / 1000;
  const auto begun =
      static_cast<std::uint64_t>(std::clamp<std::int64_t>(after_us, 1, kNotBegun - 1));
  entry.call.compare_exchange_strong(call, (call & UINT32_MAX) | begun << 32, kRelaxed);
}

// Nothing where the entry is another call's by now.
inline void leave(Memory& memory, Ticket ticket, std::int64_t now_ns) {
  if (ticket == 0) return;
  std::int64_t expected = -static_cast<std::int64_t>(ticket);
  memory.entries[(ticket - 1) % kEntries].left_ns.compare_exchange_strong(
      expected, now_ns, std::memory_order_release, std::memory_order_relaxed);
}

// ---- readers

struct RecordedCall {
  Call call;
  std::uint64_t number = 0;
  std::int64_t entered_ns = 0;
  std::optional<std::int64_t> left_ns;  // nothing: it is in it

  bool operator==(const RecordedCall&) const = default;
};

struct NumberedCall {
  std::uint64_t number = 0;  // counts the group's calls
  Call call;

  bool operator==(const NumberedCall&) const = default;
};
inline constexpr std::size_t kRecentMax = 8;

struct RecordedGroup {
  std::string name;  // printable; at most 32 bytes
  std::uint64_t id = 0;
  std::uint32_t size = 1;
  std::uint32_t rank = 0;
  std::optional<std::uint32_t> peer;  // of a channel: the other rank of the job
  bool is_channel = false;            // as far as it is known
  std::uint64_t calls = 0;            // entered so far
  std::optional<RecordedCall> open;   // the first that it has not left
  std::optional<RecordedCall> last;   // the latest that it entered
  // The last ones before `open`, or else before `last`, of which more than the number is known; by number.
  std::vector<NumberedCall> recent;
};

// `calls` is in the order in which it was written, and may have a call twice. The latest before `before`, by number.
inline std::vector<NumberedCall> recent_calls(std::vector<NumberedCall> calls,
                                              std::uint64_t before) {
  std::erase_if(calls, [before](const NumberedCall& each) { return each.number >= before; });
  std::ranges::reverse(calls);
  std::ranges::stable_sort(calls, std::ranges::greater{}, &NumberedCall::number);
  const auto is_same = [](const NumberedCall& one, const NumberedCall& other) {
    return one.number == other.number;
  };
  calls.erase(std::unique(calls.begin(), calls.end(), is_same), calls.end());
  if (calls.size() > kRecentMax) calls.resize(kRecentMax);
  std::ranges::reverse(calls);
  return calls;
}

struct RecordedThreads {
  std::uint32_t count = 0;  // that may make calls
  std::uint32_t in_wait = 0;

  bool all_wait() const { return count > 0 && in_wait >= count; }
};

inline RecordedThreads read_threads(const Memory& memory) {
  return {memory.threads.load(std::memory_order_relaxed),
          memory.threads_in_wait.load(std::memory_order_relaxed)};
}

// Everything but the header, which the worker may have overwritten, is checked: a group or an entry that
// makes no sense is left out.
struct SlotTurns {
  std::array<std::uint32_t, kGroupsMax> turns{};  // 0: there is no group in it
  std::array<std::size_t, kGroupsMax> places{};   // in the list of groups
};

inline std::vector<RecordedGroup> read_groups(const Memory& memory, SlotTurns& slots) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  constexpr auto kAcquire = std::memory_order_acquire;
  std::vector<RecordedGroup> groups;
  for (std::size_t slot = 0; slot < kGroupsMax; ++slot) {
    const GroupSlot& from = memory.groups[slot];
    const std::uint32_t turn = from.turn.load(kAcquire);
    if (turn == 0 || turn % 2 != 0) continue;
    RecordedGroup group;
    std::uint64_t words[4];
    for (std::size_t i = 0; i < 4; ++i) words[i] = from.name[i].load(kRelaxed);
    group.name.assign(reinterpret_cast<const char*>(words), sizeof words);
    group.name.resize(std::min(group.name.find('\0'), group.name.size()));
    group.id = from.id.load(kRelaxed);
    group.size = from.size.load(kRelaxed);
    group.rank = from.rank.load(kRelaxed);
    group.calls = from.calls.load(kRelaxed);
    const std::uint32_t peer = from.peer.load(kRelaxed);
    if (peer > 0 && peer <= kWorldMax) group.peer = peer - 1;
    group.is_channel = peer != 0;
    std::atomic_thread_fence(kAcquire);
    const bool is_sane =
        from.turn.load(kRelaxed) == turn && group.size <= kWorldMax && group.rank < group.size &&
        !group.name.empty() &&
        std::ranges::all_of(group.name, [](char c) { return c >= ' ' && c < '\x7f'; });
    if (!is_sane) continue;
    slots.turns[slot] = turn;
    slots.places[slot] = groups.size();
    groups.push_back(std::move(group));
  }
  return groups;
}

// `take(place, call, begun)` for each entry of one of these groups, in the order in which they were made.
inline void read_entries(const Memory& memory, const SlotTurns& slots, const auto& take) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  constexpr auto kAcquire = std::memory_order_acquire;
  const std::uint64_t claimed = std::min<std::uint64_t>(memory.claimed.load(kAcquire), INT64_MAX);
  const std::uint64_t count = std::min<std::uint64_t>(claimed, kEntries);
  for (std::uint64_t claim = claimed - count; claim < claimed; ++claim) {
    const Entry& entry = memory.entries[claim % kEntries];
    if (entry.turn.load(kAcquire) != 2 * claim + 2) continue;
    const std::uint64_t bits = entry.call.load(kRelaxed);
    const std::uint32_t group_turn = entry.group_turn.load(kRelaxed);
    const std::int64_t left_ns = entry.left_ns.load(kRelaxed);
    const RecordedCall found{
        .call = {static_cast<Operation>(bits >> 16 & 0xff),
                 static_cast<std::uint8_t>(bits >> 24 & 0xff), entry.root.load(kRelaxed),
                 entry.elements.load(kRelaxed), entry.signature.load(kRelaxed)},
        .number = entry.number.load(kRelaxed),
        .entered_ns = entry.entered_ns.load(kRelaxed),
        .left_ns = left_ns < 0 ? std::nullopt : std::optional(left_ns)};
    std::atomic_thread_fence(kAcquire);
    const std::size_t slot = bits & 0xffff;
    if (entry.turn.load(kRelaxed) != 2 * claim + 2 || slot >= kGroupsMax ||
        slots.turns[slot] == 0 || slots.turns[slot] != group_turn) {
      continue;
    }
    take(slots.places[slot], found, static_cast<std::uint32_t>(bits >> 32));
  }
}

inline std::vector<RecordedGroup> read(const Memory& memory) {
  SlotTurns slots;
  std::vector<RecordedGroup> groups = read_groups(memory, slots);
  if (groups.empty()) return groups;
  read_entries(memory, slots, [&](std::size_t place, const RecordedCall& found, std::uint32_t) {
    RecordedGroup& group = groups[place];
    if (!found.left_ns && (!group.open || found.number < group.open->number)) group.open = found;
    // What is known of a call besides its number may be written later.
    const bool is_newer =
        !group.last || found.number > group.last->number ||
        (found.number == group.last->number && group.last->call.operation == Operation::kOther);
    if (is_newer) group.last = found;
    if (found.call.operation != Operation::kOther) {
      group.recent.push_back({found.number, found.call});
    }
  });
  for (RecordedGroup& group : groups) {
    const auto& at = group.open ? group.open : group.last;
    group.recent = recent_calls(std::move(group.recent), at ? at->number : 0);
  }
  return groups;
}

// ---- when a rank has come to its calls

struct Arrival {
  std::uint64_t number = 0;
  std::int64_t entered_ns = 0;  // or begun, by a GPU
  // Nothing: it is in it. Equal to `entered_ns`: it is over, and not known since when.
  std::optional<std::int64_t> left_ns;
  std::int32_t root = -1;  // the member for which all others wait; -1: all wait for all

  bool operator==(const Arrival&) const = default;
};

struct GroupArrivals {
  std::uint64_t id = 0;
  std::uint32_t size = 1;
  std::uint32_t rank = 0;
  bool is_channel = false;
  std::uint64_t entered = 0;        // calls, so far
  std::vector<Arrival> calls = {};  // by number

  bool operator==(const GroupArrivals&) const = default;
};

// No member of the group can leave a call of these before all have come to it.
constexpr bool needs_all(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
    case Operation::kAllGather:
    case Operation::kReduceScatter:
    case Operation::kAllToAll:
    case Operation::kBarrier:
      return true;
    default:
      return false;
  }
}

// The latest calls of each group that need all members or a root, at most so many. A call that a GPU makes counts once it has begun.
inline std::vector<GroupArrivals> read_arrivals(const Memory& memory, std::size_t most) {
  SlotTurns slots;
  std::vector<GroupArrivals> groups;
  std::vector<bool> is_of_nccl;
  for (const RecordedGroup& each : read_groups(memory, slots)) {
    groups.push_back({each.id, each.size, each.rank, each.is_channel, each.calls});
    is_of_nccl.push_back(each.name.starts_with("nccl "));
  }
  if (groups.empty()) return groups;
  read_entries(
      memory, slots, [&](std::size_t place, const RecordedCall& found, std::uint32_t begun) {
        GroupArrivals& group = groups[place];
        if (found.call.operation == Operation::kSendReceive) group.is_channel = true;
        // A worker may write any time; differences and sums of these do not overflow.
        constexpr std::int64_t kTimeMax = INT64_MAX / 4;
        const bool is_of_root = found.call.operation == Operation::kBroadcast ||
                                found.call.operation == Operation::kScatter;
        // An older plugin does not say when the GPU begins.
        const bool has_begun = begun != kNotBegun && (begun != 0 || !is_of_nccl[place]);
        const bool is_known = (is_of_root || needs_all(found.call.operation)) && has_begun &&
                              found.entered_ns > 0 && found.entered_ns < kTimeMax;
        if (!is_known) return;
        const std::int64_t entered = found.entered_ns + std::int64_t{begun} * 1000;
        auto left = found.left_ns;
        if (left && (*left < entered || *left >= kTimeMax)) left = entered;
        if (found.left_ns == found.entered_ns) left = entered;
        // DDP's own broadcasts, of which the root is not known, are of rank 0.
        const std::int32_t root = is_of_root ? std::max(found.call.root, 0) : -1;
        group.calls.push_back({found.number, entered, left, root});
      });
  for (GroupArrivals& group : groups) {
    std::ranges::stable_sort(group.calls, {}, &Arrival::number);
    const auto same = std::ranges::unique(group.calls, {}, &Arrival::number);
    group.calls.erase(same.begin(), same.end());
    const std::size_t more = group.calls.size() - std::min(group.calls.size(), most);
    group.calls.erase(group.calls.begin(), group.calls.begin() + static_cast<std::ptrdiff_t>(more));
  }
  return groups;
}

}  // namespace ddprun::record
