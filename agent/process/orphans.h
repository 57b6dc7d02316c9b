// Orphans: processes that workers left behind outside of their process groups, because they made a
// new session (setsid, double fork) and lost their parent. The agent, a child subreaper, reaps
// them, and when a round closes it kills those of this job: their environment has kAgentVariable
// (the first process of a container also adopts processes of others). Event loop thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/loop/blocking_calls.h"

namespace ddprun::agent {

// Set for every worker to a value that no other agent has: host and name_of_this_process().
inline constexpr const char* kAgentVariable = "DDPRUN_AGENT_ID";

// What proc(5) calls state, startcode, env_start and env_end, in /proc/<pid>/stat from the state on.
struct MemoryOfProcess {
  char state = 0;
  std::uint64_t code_start = 0;
  std::uint64_t environment_start = 0;
  std::uint64_t environment_end = 0;
};
// None: there is no such process, or this kernel (gVisor) tells less.
std::optional<MemoryOfProcess> memory_in(const std::string& stat_after_name);

// From now on orphaned descendants become children of this process.
void become_subreaper();

// Looks up environments on a thread: the first take() of a process starts it, a later one returns it.
class EnvironmentLooks {
 public:
  enum class Found {
    kYes,
    kNo,      // also if the process is gone, or belongs to another user
    kUnseen,  // not known yet: ask again
    kHangs,   // the look-up did not return in time
  };

  // `entry`: NAME=value.
  EnvironmentLooks(boost::asio::any_io_executor executor, std::string entry);

  // Returns a result once and then forgets it; kHangs is kept until forget().
  Found take(pid_t pid);
  void forget() { found_.clear(); }

 private:
  void look();

  const boost::asio::any_io_executor executor_;
  const std::string entry_;
  std::deque<pid_t> wanted_;  // the first one is being looked up
  std::map<pid_t, Found> found_;
  std::unique_ptr<BlockingCalls> calls_;  // replaced if a call hangs
};

struct Orphans {
  std::vector<pid_t> pids;
  // The environment of a child is not known: it was not looked up yet, or the child is in exec or
  // about to end. This does not last long: look again before concluding that there are no more.
  bool some_unseen = false;
  std::vector<pid_t> hanging;  // children whose environment cannot be read
};

// The living children whose environment has the entry of `looks`, except those that are known.
Orphans orphans_of(EnvironmentLooks& looks, const std::function<bool(pid_t)>& is_known);

// Reaps children that have ended, until a known one: its owner must reap it and call this again.
void reap_orphans(const std::function<bool(pid_t)>& is_known);

}  // namespace ddprun::agent
