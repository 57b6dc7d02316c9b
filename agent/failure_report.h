// What ddprun says about failures, as text. Pure: tests compare whole reports.
#pragma once

#include <chrono>
#include <string>

#include "rendezvous/round_messages.h"

namespace ddprun::agent {

// One line, as it happens: "rank 1 (pid 4711) was killed by SIGKILL (signal 9)".
std::string describe(const rdzv::WorkerFailure& failure);

// The account at the end of a job that did not succeed: the first cause with everything known of
// it, its consequences under it, a line each. Ends with a newline; empty for a job that succeeded.
std::string failure_report(const rdzv::JobOutcome& outcome, const std::string& program);

// What the job took, and what its restarts cost of that, as a line.
std::string summary(const rdzv::JobOutcome& outcome, const std::string& program,
                    std::chrono::steady_clock::duration wall,
                    std::chrono::steady_clock::duration lost);

}  // namespace ddprun::agent
