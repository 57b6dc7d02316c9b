// Who waits for whom in a job, and who hangs: from what the records of its ranks say at one moment. Two
// words are kept apart. "Waiting for" is an observation: a rank that evaluates, saves or downloads while the
// others wait is exactly this. "Hung" is a verdict, and needs proof. Pure; any thread.
//
// | in one group, for longer than the patience                  | is                                        |
// |--------------------------------------------------------------|-------------------------------------------|
// | ranks are in call n, others have not entered n                | waiting for those that have not           |
// | ... and one of those is stopped by a signal                   | hung: that one                            |
// | ... and one of those is traced by a debugger                  | waiting, never hung                       |
// | ranks are in call n, and what they call does not match        | hung: the minority; a tie names all       |
// | all are in call n, and what they call matches                 | nothing: a transfer may take long         |
// | a rank says nothing of the group (no record, other program)   | nothing is said about it, unless the      |
// |                                                               | group is all ranks                        |
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/worker_abi/group_calls.h"

namespace ddprun::rdzv {

struct RankCalls {
  int rank = 0;
  RankState state = RankState::kRuns;
  std::vector<GroupCalls> groups = {};  // nothing: it keeps no record
};

struct WaitingFor {
  std::string group;
  std::uint64_t number = 0;  // of the group's calls
  record::Operation operation = record::Operation::kOther;
  std::chrono::nanoseconds waited{};  // the longest of them
  std::vector<int> waiting = {};      // in ascending order, as all lists of ranks here
  std::vector<int> missing = {};

  // Whether it is still the same wait.
  bool is_same(const WaitingFor& other) const {
    return group == other.group && number == other.number && missing == other.missing;
  }
};

struct Hung {
  enum class Why { kStopped, kMismatch };
  Why why = Why::kStopped;
  std::string group;
  std::uint64_t number = 0;
  std::vector<int> ranks = {};  // who is to blame
  std::string what = {};        // "all_reduce of 12 elements on rank 0, broadcast on rank 1"
  std::chrono::nanoseconds waited{};

  bool is_same(const Hung& other) const {
    return why == other.why && group == other.group && number == other.number &&
           ranks == other.ranks;
  }
};

struct HangFindings {
  std::vector<WaitingFor> waits;  // of several groups the longest first
  std::vector<Hung> hung;
};

// `ranks` are those whose nodes have answered; of others nothing is said.
HangFindings find_hangs(const std::vector<RankCalls>& ranks, int world_size,
                        std::chrono::nanoseconds patience);

// "ranks 0, 1 and 2", "ranks 0, 1, 2, 3, 4, 5 and 1018 more"
std::string ranks_in_words(const std::vector<int>& ranks);
// "rank 3 has not come to all_reduce (call 412), where ranks 0, 1 and 2 wait"
std::string sentence(const WaitingFor& wait);
// "rank 3 is stopped by a signal, and …"
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

}  // namespace ddprun::rdzv
