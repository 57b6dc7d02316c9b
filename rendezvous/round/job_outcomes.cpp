#include "rendezvous/round/job_outcomes.h"

#include <utility>

#include "rendezvous/common/duration_text.h"
#include "rendezvous/common/exit_codes.h"

namespace ddprun::rdzv {
JobOutcome cannot_run(int exit_code, std::string sentence) {
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::kCannotRun;
  outcome.exit_code = exit_code;
  outcome.sentence = std::move(sentence);
  return outcome;
}

JobOutcome store_not_opened(std::chrono::milliseconds limit) {
  return cannot_run(
      kExitCannotRun,
      "this node did not open the store that workers meet at within " + duration_text(limit));
}

JobOutcome stopped_by(const NodeLeaving& leaving, JobOutcome outcome) {
  outcome.kind = JobOutcome::Kind::kStopped;
  outcome.stop_signal = leaving.signal;
  outcome.exit_code = leaving.is_preemption ? kExitPreempted : 128 + leaving.signal;
  return outcome;
}

JobOutcome too_few_nodes(const RoundConfig& config, int present, bool has_run,
                         const std::optional<NodeGone>& lost) {
  const std::string there = std::to_string(present) + " of " +
                            nodes_in_words(config.min_nodes, config.max_nodes) + " nodes ";
  const std::string limit = duration_text(config.join_timeout);
  if (!has_run) {
    return cannot_run(
        kExitRendezvousTimeout,
        there + "came within " + limit +
            "; start the others, or give them longer by --rdzv-conf=join_timeout=SECONDS");
  }
  JobOutcome outcome =
      cannot_run(kExitBelowMinimum, there + "are left, and no other came within " + limit);
  outcome.lost_node = lost;
  if (lost) outcome.sentence += "; " + describe(*lost);
  return outcome;
}

}  // namespace ddprun::rdzv
