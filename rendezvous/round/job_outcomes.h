// The outcomes of a job that no worker has caused, with their exit codes and sentences. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "rendezvous/round/round_config.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

JobOutcome cannot_run(int exit_code, std::string sentence);

// The leader's own node did not answer OpenStore in time.
JobOutcome store_not_opened(std::chrono::milliseconds limit);

// A stop, or the leave of the leader's own node; keeps the failures in `outcome`.
JobOutcome stopped_by(const NodeLeaving& leaving, JobOutcome outcome);

// Why a job was stopped: the signal, "ddpctl stop (root, pid 4711)", or the notice upon which it was preempted.
std::string what_stopped(const JobOutcome& outcome);

// `has_run`: nodes were lost; else too few nodes ever came. `lost`: the first of them. `missing` and `turned_away`
// say which nodes did not come, and which ones were refused; empty: nothing is known.
JobOutcome too_few_nodes(const RoundConfig& config, int present, bool has_run,
                         const std::optional<NodeGone>& lost, const std::string& missing,
                         const std::string& turned_away);

// Both with "; " between them; either may be empty.
std::string joined_sentences(const std::string& first, const std::string& second);

}  // namespace ddprun::rdzv
