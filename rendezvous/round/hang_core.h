// Who waits for whom in a job, and who hangs: from what the records of its ranks say at one moment. Two
// words are kept apart. "Waiting for" is an observation: a rank that evaluates, saves or downloads while the
// others wait is exactly this, and nothing is done to it. "Hung" is a verdict, upon which a rank may be killed
// (--on-hang=restart), and needs proof. Pure; any thread.
//
// clang-format off
//
//   in one group, for longer than the patience                 is
//   ranks are in call n, others have not entered n             waiting for those that have not
//   ... and one of those, or of several that are in it, is     hung (stopped): that one
//       stopped by a signal
//   ... or its control group is frozen                         hung (frozen): that one
//   ... or it has been inside of the kernel, without having    hung (uninterruptible): that one
//       run meanwhile, for kInKernelForGood and the patience
//   ... or they wait, in other groups, for one of those that   hung (cycle): all of the cycle (1)
//       wait here, perhaps by way of others, for kForGood
//   ... and it lasts longer than --hang-timeout                hung (timeout): those that have not entered n, but not
//                                                              those that wait themselves, nor those of a line above (2)
//   ... and all of those wait themselves, in a cycle           hung (cycle): all of the cycle (2, 4)
//   ranks are in call n, and what they call does not match     hung (mismatch): the minority of all whose call n is
//                                                              known, also if they have left it; a tie names all (3)
//   all are in call n, and what they call matches              nothing: a transfer may take long
//   ... and it lasts longer than --hang-timeout                hung (timeout): those that are still in it (2, 4)
//   a rank says nothing of the group                           nothing is said about it, unless the group is all ranks:
//                                                              then it has not come; it may be about to import PyTorch
//   ... and keeps no record (another program)                  nothing, unless it is held (stopped, frozen, …), perhaps
//                                                              before it could write
//
//   A program may call init_process_group with a world size of its own that is larger than the job's. The ranks of the job
//   are then taken for all of the group, and what is said of the call has both sizes.
//
//   A rank that a debugger holds is never hung. (1) Only if all threads of each of these ranks that make calls are inside
//   of a wait, and all calls that the rank is in are part of the cycle: a rank that has only begun a call (async_op) may
//   compute meanwhile, and another of its threads may be the one that comes. (2) Not while a debugger holds any rank of the
//   job, for which others may wait in ways that no record has. --hang-timeout=auto: ten times the longest wait that this
//   job has seen and that ended, at least a minute; and never of a rank that has not done a step in this round, which may
//   compile or load. What rests on `auto` is reported, and no rank is killed for it: the first evaluation is just that.
//   (3) Not if a debugger holds one of them. (4) Only of ranks that have entered and left no call since then.
//
//   `gap`, for which an agent did not run, is added to each of these times.
//
// clang-format on
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/worker_abi/group_calls.h"

namespace ddprun::rdzv {

struct RankCalls {
  int rank = 0;
  RankState state = RankState::kRuns;
  std::chrono::nanoseconds held_for{};  // in that state, without having run meanwhile
  std::optional<std::chrono::nanoseconds> since_step =
      {};  // nothing: it has done none in this round
  std::vector<GroupCalls> groups = {};
  bool keeps_record = false;  // also where it is in no group yet
  bool all_wait = false;      // each of its threads that make calls is inside of the wait for one
};

// A rank that does nothing for so long, where it could not go on by itself, does nothing more.
inline constexpr std::chrono::seconds kForGood{20};
// Disks and file servers may answer late; this is when the kernel itself warns of a process (khungtaskd).
inline constexpr std::chrono::seconds kInKernelForGood{120};

// --hang-timeout.
struct HangTimeout {
  std::chrono::milliseconds fixed{};  // 0: off, or automatic
  bool is_automatic = false;

  // `longest_wait`: that has ended, in this job.
  std::optional<std::chrono::nanoseconds> limit(std::chrono::nanoseconds longest_wait) const;
  bool operator==(const HangTimeout&) const = default;
};

struct HangRules {
  std::chrono::nanoseconds patience{};
  std::chrono::nanoseconds gap{};
  std::optional<std::chrono::nanoseconds> timeout = {};  // nothing: --hang-timeout is off
  bool needs_step = false;                               // the timeout is --hang-timeout=auto

  bool operator==(const HangRules&) const = default;
};

struct WaitingFor {
  std::string group;
  std::uint64_t number = 0;  // of the group's calls
  record::Operation operation = record::Operation::kOther;
  std::chrono::nanoseconds waited{};  // the longest of them
  std::vector<int> waiting = {};      // in ascending order, as all lists of ranks here
  std::vector<int> missing = {};
  std::string reason = {};  // why the call may never end, if that is known

  // Whether it is still the same wait.
  bool is_same(const WaitingFor& other) const {
    return group == other.group && number == other.number && missing == other.missing;
  }
};

struct Hung {
  enum class Why { kStopped, kMismatch, kFrozen, kUninterruptible, kCycle, kTimeout };
  enum class Basis { kProof, kSeconds, kAutomatic };  // the last two: of --hang-timeout
  Why why = Why::kStopped;
  Basis basis = Basis::kProof;
  std::string group;
  std::uint64_t number = 0;
  std::vector<int> ranks = {};  // who is to blame
  // Of a mismatch "all_reduce of 12 elements on rank 0, broadcast on rank 1", of a cycle who waits where for
  // whom, else the call.
  std::string what = {};
  std::chrono::nanoseconds waited{};
  std::vector<int> waiting = {};  // for them; nothing: all are in the call

  // Whether it is a verdict, upon which a rank may be killed; else it is a report.
  bool is_verdict() const { return basis != Basis::kAutomatic; }
  bool is_same(const Hung& other) const {
    return why == other.why && basis == other.basis && group == other.group &&
           number == other.number && ranks == other.ranks;
  }
};
// "stopped", "mismatch", …
std::string_view name_of(Hung::Why why);

struct HangFindings {
  std::vector<WaitingFor> waits;  // of several groups the longest first
  std::vector<WaitingFor> slow;   // calls that all are in: `missing` is empty
  std::vector<Hung> hung;         // likewise
};

// `ranks` are those whose nodes have answered; of others nothing is said.
HangFindings find_hangs(const std::vector<RankCalls>& ranks, int world_size,
                        const HangRules& rules);

// "rank 3 has not come to all_reduce (call 412 of ddprun), where ranks 0, 1 and 2 wait", or, where all have,
// "all_reduce (call 412 of ddprun) has not ended: ranks 0 and 1 are in it"
std::string sentence(const WaitingFor& wait);
// "rank 3 is stopped by a signal, and ranks 0, 1 and 2 wait for it in all_reduce (call 412 of ddprun)"
std::string sentence(const Hung& hung);

// How long a wait may last before it is spoken of: 5 times what all but the slowest hundredth of the last
// steps took, and a second at least.
class WaitPatience {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // That rank had done `step` at that time, as it says.
  void stepped(int rank, std::int64_t step, Time at);
  std::chrono::nanoseconds patience() const;

 private:
  struct Last {
    std::int64_t step = 0;
    Time at;
  };
  std::map<int, Last> last_;
  std::vector<std::chrono::nanoseconds> steps_;  // a ring of the last ones
  std::size_t next_ = 0;
};

// When a wait is told on the terminal, whatever the reason: after a minute, and after 5, 15 and 60. Of several waits
// at a time one is told, so that whatever holds the job costs a line.
class WaitLines {
 public:
  // A test has no minutes.
  explicit WaitLines(std::chrono::nanoseconds minute = std::chrono::minutes(1)) : minute_(minute) {}

  // That which is to be told now: one for a rank that waits for no other, if there is any.
  std::optional<WaitingFor> due(const HangFindings& found);
  void forget() { told_ = 0; }

 private:
  std::chrono::nanoseconds minute_;
  std::size_t told_ = 0;
};

// How long the longest wait of a node's ranks has lasted that has ended, in whatever round: what a job does
// from time to time, such as an evaluation by rank 0.
class LongestWait {
 public:
  // How long the node's rank that has been in a call for longest has been there now; zero: none is in one.
  void looked(std::chrono::nanoseconds waits) {
    if (waits < current_) longest_ = std::max(longest_, current_);
    current_ = waits;
  }
  // The round is over: what has not ended by itself says nothing.
  void forget_current() { current_ = {}; }
  std::chrono::nanoseconds longest() const { return longest_; }

 private:
  std::chrono::nanoseconds current_{};
  std::chrono::nanoseconds longest_{};
};

// How long a process has been held, from looks at it.
class HeldFor {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `switches`: how often it has been given a processor or has given one up, so that an equal number
  // means that it has not run between two looks.
  std::chrono::nanoseconds looked(RankState state, std::uint64_t switches, Time now);

 private:
  RankState state_ = RankState::kRuns;
  std::uint64_t switches_ = 0;
  Time since_{};
};

}  // namespace ddprun::rdzv
