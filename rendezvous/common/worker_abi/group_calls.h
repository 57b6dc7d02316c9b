// In which collective a worker is, in one of its process groups: what its record (collective_record.h)
// says, as a value that means the same on another machine. Times are durations before the moment at
// which the record was read. Any thread.
//
// Do not trust these values: the worker writes its record itself and may write anything.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/worker_abi/collective_record.h"
#include "rendezvous/common/worker_abi/worker_progress.h"

namespace ddprun {

// What holds a rank's process.
enum class RankState {
  kRuns,             // nothing: it runs, or sleeps
  kStopped,          // a signal has stopped it
  kTraced,           // a debugger, whether that lets it run or not
  kUninterruptible,  // it waits inside of the kernel, where no signal but SIGKILL reaches it, if any
  kFrozen,           // its control group is frozen
};

struct GroupCall {
  record::Call call;
  std::uint64_t number = 0;  // of the group's calls, from 1
  bool is_over = false;
  std::chrono::nanoseconds since{};  // it was entered, or is over

  bool operator==(const GroupCall&) const = default;
};

// One that is over, before the call that a rank is in or was in last.
using EarlierCall = record::NumberedCall;

struct GroupCalls {
  std::string name;      // printable; at most 32 bytes
  std::uint64_t id = 0;  // of the name, equal on all members
  std::uint32_t size = 1;
  std::uint32_t rank = 0;                  // of the group
  std::uint64_t calls = 0;                 // entered so far
  std::optional<GroupCall> at = {};        // the first that it has not left, else the latest
  std::chrono::nanoseconds since_entry{};  // the latest was entered; zero: none was
  std::optional<std::uint32_t> peer = {};  // of messages between two: the other rank of the job
  // The latest before `at`, as far as they are known, if none was entered in the last second: a rank that
  // others wait for may have left their call, and may have called something else.
  std::vector<EarlierCall> before = {};

  bool operator==(const GroupCalls&) const = default;
};

// "all_reduce (call 412 of ddprun)"
inline std::string call_in_words(record::Operation operation, std::uint64_t number,
                                 std::string_view group) {
  const std::string name(name_of(operation));
  if (operation == record::Operation::kInitProcessGroup) return name;
  // The groups of these have a suffix, " (made)".
  if (operation > record::Operation::kInitProcessGroup) group = group.substr(0, group.rfind(" ("));
  if (operation == record::Operation::kNewGroup) return name + " (" + std::string(group) + ")";
  return name + " (call " + std::to_string(number) + " of " + std::string(group) + ")";
}

// At most `count`: those that the worker is in first, then the most recent.
inline std::vector<GroupCalls> group_calls(std::vector<record::RecordedGroup> groups,
                                           std::int64_t now_ns, std::size_t count) {
  std::vector<GroupCalls> calls;
  for (record::RecordedGroup& group : groups) {
    GroupCalls& made = calls.emplace_back();
    made = {std::move(group.name), group.id, group.size, group.rank, group.calls};
    made.peer = group.peer;
    const auto& found = group.open ? group.open : group.last;
    if (!found) continue;
    // A worker may write any time; the age must not become negative.
    const auto since = [now_ns](std::int64_t at) {
      return std::chrono::nanoseconds(at <= 0 || at > now_ns ? 0 : now_ns - at);
    };
    made.at = GroupCall{found->call, found->number, found->left_ns.has_value(),
                        since(found->left_ns.value_or(found->entered_ns))};
    if (group.last) made.since_entry = since(group.last->entered_ns);
    if (made.since_entry < std::chrono::seconds(1)) continue;
    const auto& recent = group.recent;
    std::ranges::copy_if(recent, std::back_inserter(made.before),
                         [&](const EarlierCall& each) { return each.number < found->number; });
  }
  std::ranges::stable_sort(calls, {}, [](const GroupCalls& each) {
    return std::pair(!each.at || each.at->is_over,
                     each.at ? each.at->since : std::chrono::nanoseconds::max());
  });
  if (calls.size() > count) calls.resize(count);
  return calls;
}

// What a worker has reported, with what its record says of collectives, which is the truth where there is one:
// calls that a library makes by itself, such as those of DistributedDataParallel, are in the record alone.
inline std::optional<WorkerProgress> with_calls(std::optional<WorkerProgress> progress,
                                                const std::vector<GroupCalls>& calls) {
  std::uint64_t entered = 0;
  for (const GroupCalls& group : calls) entered += group.calls;
  if (entered == 0) return progress;
  if (!progress) progress.emplace();
  progress->collectives = std::max(progress->collectives, entered);
  const auto& at = calls.front().at;
  const bool is_elsewhere = progress->phase == WorkerPhase::kSaving ||
                            progress->phase == WorkerPhase::kLeaving ||
                            progress->phase == WorkerPhase::kJoining;
  if (!at || is_elsewhere) return progress;
  if (!at->is_over) {
    progress->phase = WorkerPhase::kCollective;
    progress->since_phase = at->since;
  } else if (progress->phase == WorkerPhase::kCollective ||
             progress->phase == WorkerPhase::kUnknown) {
    progress->phase = WorkerPhase::kRunning;
    progress->since_phase = at->since;
  }
  return progress;
}

}  // namespace ddprun
