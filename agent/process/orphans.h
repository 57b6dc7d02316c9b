// Processes that workers left behind outside their process groups: those that made a session of
// their own (setsid, double fork) and lost their parent. The agent is a child subreaper, so they
// become its children; it reaps them, and when a round closes it ends those that are of this job.
//
// Which are of this job? Their environment tells (kAgentVariable, which every worker gets): a
// container's first process has children that are none of its business. To read it may hang, where
// the process itself hangs in the kernel, so that a thread does it (EnvironmentLooks). Called from the
// event loop thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/loop/blocking_calls.h"

namespace ddprun::agent {

// Set for every worker to a value that no other agent has.
inline constexpr const char* kAgentVariable = "DDPRUN_AGENT_ID";

// "<host>-<pid>-<nanoseconds since boot>"
std::string make_agent_id(const std::string& host);

// From now on orphaned descendants become children of this process.
void become_subreaper();

// What a process has in its environment, looked up beside the event loop: asked for once, and there
// when asked for again a little later.
class EnvironmentLooks {
 public:
  enum class Found {
    kYes,
    kNo,      // or it is gone, or another user's
    kUnseen,  // not yet: ask again
    kHangs,   // for so long that it is not worth waiting for
  };

  // `entry`: NAME=value.
  EnvironmentLooks(boost::asio::any_io_executor executor, std::string entry);

  // A look is good for one answer, and kHangs for all until forget().
  Found take(pid_t pid);
  void forget() { found_.clear(); }

 private:
  void look();

  const boost::asio::any_io_executor executor_;
  const std::string entry_;
  std::deque<pid_t> wanted_;  // the first is being looked at
  std::map<pid_t, Found> found_;
  std::unique_ptr<BlockingCalls> calls_;  // a new one where one hangs
};

struct Orphans {
  std::vector<pid_t> pids;
  // A child's environment could not be seen: nobody has looked yet, or it is about to execute a
  // program or to end. None takes long: look again before concluding that there are no more.
  bool some_unseen = false;
  std::vector<pid_t> hanging;  // children of whom nobody can tell
};

// The living children of this process, but for those that `is_known` accepts, whose environment has
// the entry of `looks`.
Orphans orphans_of(EnvironmentLooks& looks, const std::function<bool(pid_t)>& is_known);

// Reaps children that have ended. Stops at one that `is_known` accepts, leaving it to its owner,
// who calls this again after reaping it.
void reap_orphans(const std::function<bool(pid_t)>& is_known);

}  // namespace ddprun::agent
