#include "rendezvous/round/job_outcomes.h"

#include <utility>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/round/round_config.h"

namespace ddprun::rdzv {
namespace {

std::string in_seconds(std::chrono::milliseconds duration) {
  const auto ms = duration.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

}  // namespace

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
      "this node did not open the store that workers meet at within " + in_seconds(limit));
}

JobOutcome stopped_by(const NodeLeaving& leaving, JobOutcome outcome) {
  outcome.kind = JobOutcome::Kind::kStopped;
  outcome.stop_signal = leaving.signal;
  outcome.exit_code = leaving.is_preemption ? kExitPreempted : 128 + leaving.signal;
  return outcome;
}

JobOutcome too_few_nodes(const MissingNodes& missing) {
  const std::string there = std::to_string(missing.present) + " of " +
                            nodes_in_words(missing.min_nodes, missing.max_nodes) + " nodes ";
  const std::string limit = in_seconds(missing.waited);
  if (!missing.has_run) {
    return cannot_run(
        kExitRendezvousTimeout,
        there + "came within " + limit +
            "; start the others, or give them longer by --rdzv-conf=join_timeout=SECONDS");
  }
  JobOutcome outcome =
      cannot_run(kExitBelowMinimum, there + "are left, and no other came within " + limit);
  outcome.lost_node = missing.lost_node;
  if (outcome.lost_node) outcome.sentence += "; " + describe(*outcome.lost_node);
  return outcome;
}

}  // namespace ddprun::rdzv
