#include "rendezvous/round/job_outcomes.h"

#include <utility>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/text/durations.h"

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

// A preemption by a signal is one, also if a user has asked for a stop since.
std::string what_stopped(const JobOutcome& outcome) {
  const bool is_preempted = outcome.exit_code == kExitPreempted;
  if (!outcome.sentence.empty() && !(is_preempted && outcome.stop_signal != 0)) {
    return outcome.sentence;
  }
  return outcome.stop_signal != 0 ? signal_name(outcome.stop_signal)
                                  : "a notice that a node is taken back";
}

std::string joined_sentences(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : "; ") + second;
}

JobOutcome too_few_nodes(const RoundConfig& config, int present, bool has_run,
                         const std::optional<NodeGone>& lost, const std::string& missing,
                         const std::string& turned_away) {
  const std::string there = std::to_string(present) + " of " +
                            nodes_in_words(config.min_nodes, config.max_nodes) + " nodes ";
  const std::string limit = duration_text(config.join_timeout);
  const std::string who = joined_sentences(missing, turned_away);
  if (!has_run) {
    // A node that was turned away knows better what to change.
    const std::string advice =
        !turned_away.empty() ? ""
        : config.has_exact_ranks
            ? "start every node with the same --master-addr and --master-port, or give them longer "
              "by --rdzv-conf=timeout=SECONDS"
            : "start every node with the same --rdzv-endpoint and --rdzv-id, or give them longer "
              "by "
              "--rdzv-conf=join_timeout=SECONDS";
    return cannot_run(kExitRendezvousTimeout, joined_sentences(there + "came within " + limit,
                                                               joined_sentences(who, advice)));
  }
  const std::string left = there + "are left, and no other came within " + limit;
  JobOutcome outcome = cannot_run(kExitBelowMinimum, joined_sentences(left, turned_away));
  outcome.lost_node = lost;
  if (lost) outcome.sentence += "; " + describe(*lost);
  return outcome;
}

}  // namespace ddprun::rdzv
