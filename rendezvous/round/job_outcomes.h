// The outcomes of a job that no worker has caused, with their exit codes and sentences. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

JobOutcome cannot_run(int exit_code, std::string sentence);

// The leader's own node did not answer OpenStore in time.
JobOutcome store_not_opened(std::chrono::milliseconds limit);

// A stop, or the leave of the leader's own node; keeps the failures in `outcome`.
JobOutcome stopped_by(const NodeLeaving& leaving, JobOutcome outcome);

struct MissingNodes {
  int present = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  std::chrono::milliseconds waited{};
  bool has_run = false;               // true: nodes were lost; false: too few nodes ever came
  std::optional<NodeGone> lost_node;  // the first of them
};
JobOutcome too_few_nodes(const MissingNodes& missing);

}  // namespace ddprun::rdzv
