// The texts of ddprun about failures, safe to print on a terminal even if names and messages of
// hosts, programs and workers contain escape sequences. Pure: tests compare whole reports.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "agent/status/downtime.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

// One line: "rank 1 (pid 4711) was killed by SIGKILL (signal 9)". For a worker on another host than
// `here`: "rank 1 (pid 4711 on b12) was …"; an empty `here` never adds the host.
std::string describe(const rdzv::WorkerFailure& failure, std::string_view here = {});

// It was killed because of what it had reported: --on-nan=stop. `message` says it.
bool was_stopped_for_nan(const rdzv::WorkerFailure& failure);

// Why a new round starts, in one line: "rank 1 (pid 4711) …; restart 1 of 3", "node 3 (b12) was
// lost: …; going on with 3 nodes, 6 workers". Empty for the first round.
std::string describe_change(const rdzv::RoundStart& start, std::string_view here);

// That a user wants another round: "a restart was asked for: ddpctl restart (root, pid 4711)". `by`
// may be empty.
std::string describe_request(const std::string& by);

// That a worker is replaced in place, in one line: "rank 1 (pid 4711) was killed by SIGKILL (signal 9);
// its standby takes its place; restart 1 of 3".
std::string describe_replacement(const rdzv::WorkerFailure& failure, int restarts, int max_restarts,
                                 std::string_view here);

// The report at the end of a job that did not succeed: the first cause in full, and its
// consequences, one line each. Ends with a newline; empty for a job that succeeded. `python`: the
// one that ran the worker that failed first; empty: none, or it is not known.
std::string failure_report(const rdzv::JobOutcome& outcome, const std::string& program,
                           const std::string& python = {});

// One line: how long the job took, and how much of that its restarts and changes of nodes cost,
// until every rank had committed the step after them; or until when else that was counted. `goodput`:
// as in NodeStatus.
std::string summary(const rdzv::JobOutcome& outcome, const std::string& program,
                    std::chrono::steady_clock::duration wall, const Downtime& downtime,
                    std::optional<double> goodput = {});

}  // namespace ddprun::agent
