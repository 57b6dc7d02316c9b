// Processes that workers left behind outside their process groups: those that made a session of
// their own (setsid, double fork) and lost their parent. The agent is a child subreaper, so they
// become its children; it reaps them, and when a round closes it ends those that are of this job.
//
// Which are of this job? Their environment tells (kAgentVariable, which every worker gets): a
// container's first process has children that are none of its business. Called from the event loop
// thread only.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace ddprun::agent {

// Set for every worker to a value that no other agent has.
inline constexpr const char* kAgentVariable = "DDPRUN_AGENT_ID";

// "<host>-<pid>-<nanoseconds since boot>"
std::string make_agent_id(const std::string& host);

// From now on orphaned descendants become children of this process.
void become_subreaper();

struct Strangers {
  std::vector<pid_t> pids;
  // A child's environment could not be seen: it is about to execute a program or to end, neither of
  // which takes long. Look again before concluding that there are no more.
  bool some_unseen = false;
};

// The living children of this process, but for those that `is_known` accepts, whose environment has
// kAgentVariable=<agent_id>.
Strangers strangers_of(const std::string& agent_id, const std::function<bool(pid_t)>& is_known);

// Reaps children that have ended. Stops at one that `is_known` accepts, leaving it to its owner,
// who calls this again after reaping it.
void reap_strangers(const std::function<bool(pid_t)>& is_known);

}  // namespace ddprun::agent
