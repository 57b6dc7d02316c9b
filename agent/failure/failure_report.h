// What ddprun says about failures, as text that a terminal can be shown, whatever programs, hosts and
// workers call themselves and say. Pure: tests compare whole reports.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

// One line, as it happens: "rank 1 (pid 4711) was killed by SIGKILL (signal 9)"; of a worker on
// another host than `here`: "rank 1 (pid 4711 on b12) was …". An empty `here` is everywhere.
std::string describe(const rdzv::WorkerFailure& failure, std::string_view here = {});

// Why there is another round, as a line: "rank 1 (pid 4711) …; restart 1 of 3", "node 3 (b12) was
// lost: …; going on with 3 nodes, 6 workers". Empty for the first round.
std::string describe_change(const rdzv::RoundStart& start, std::string_view here);

// The account at the end of a job that did not succeed: the first cause with everything known of
// it, its consequences under it, a line each. Ends with a newline; empty for a job that succeeded.
std::string failure_report(const rdzv::JobOutcome& outcome, const std::string& program);

// What the job took, and what its restarts and changes of nodes cost of that, as a line.
std::string summary(const rdzv::JobOutcome& outcome, const std::string& program,
                    std::chrono::steady_clock::duration wall,
                    std::chrono::steady_clock::duration lost);

}  // namespace ddprun::agent
