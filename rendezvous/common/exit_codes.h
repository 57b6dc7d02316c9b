// The exit codes of ddprun that are not a worker's own; README's "Errors and exit codes" says for
// each what it means, whether a retry can help, and what state things are in afterwards.
#pragma once

namespace ddprun {

inline constexpr int kExitSuccess = 0;
inline constexpr int kExitUsage = 2;                // wrong usage; nothing was started
inline constexpr int kExitRendezvousTimeout = 110;  // the nodes did not come together in time
inline constexpr int kExitLeaderLost = 111;         // the leader went away; workers were stopped
inline constexpr int kExitBelowMinimum = 112;       // fewer nodes than the minimum were left
inline constexpr int kExitPreempted = 113;    // told to leave early: put the job back in the queue
inline constexpr int kExitCannotRun = 114;    // the agent itself could not work (port, memory, …)
inline constexpr int kExitWorkerStuck = 115;  // a worker did not end even after SIGKILL
inline constexpr int kExitNoProgress = 116;   // a restart would be in vain: do not requeue
inline constexpr int kExitNotExecutable = 126;  // as in a shell
inline constexpr int kExitNotFound = 127;       // as in a shell

}  // namespace ddprun
