#include "rendezvous/round/hello_check.h"

#include <algorithm>
#include <utility>

#include "rendezvous/common/limits.h"
#include "rendezvous/common/text/durations.h"

namespace ddprun::rdzv {
namespace {

// The highest last round that a node may report. No job has so many rounds, and the round number
// cannot overflow from here.
constexpr Round kLastRoundMax{1'000'000'000};

}  // namespace

std::optional<std::string> check_hello(const RoundConfig& config, Round current,
                                       const NodeHello& hello) {
  if (hello.run_id != config.run_id) {
    return "belongs to job '" + hello.run_id + "', but the leader at this endpoint leads job '" +
           config.run_id + "'; give all nodes of a job the same --rdzv-id, and every job its own " +
           "endpoint";
  }
  // Another job may have the same id: many jobs use the default one.
  const auto other_job = [&](const std::string& what, const std::string& its,
                             const std::string& ours) {
    return "runs " + what + " " + its + ", but the job '" + config.run_id +
           "' at this endpoint was started with " + what + " " + ours +
           "; if this is another job, give it a --rdzv-id and an endpoint of its own";
  };
  if (!config.program.empty() && hello.program != config.program) {
    return other_job("program", hello.program, config.program);
  }
  if (!config.user.empty() && hello.user != config.user) {
    return other_job("as user", hello.user, config.user);
  }
  const auto other = [&](const std::string& option, const std::string& asked,
                         const std::string& job) {
    return "asks for " + option + "=" + asked + ", the job was started with " + option + "=" + job +
           "; give every node the same";
  };
  if (hello.min_nodes != config.min_nodes || hello.max_nodes != config.max_nodes) {
    return other("--nnodes", nodes_in_words(hello.min_nodes, hello.max_nodes),
                 nodes_in_words(config.min_nodes, config.max_nodes));
  }
  const std::string restarts = restarts_in_words(hello.max_restarts, hello.restart_window);
  const std::string its_restarts =
      restarts_in_words(config.restarts.max_restarts,
                        std::chrono::duration_cast<std::chrono::seconds>(config.restarts.window));
  if (restarts != its_restarts) return other("--max-restarts", restarts, its_restarts);
  if (hello.no_progress_restarts != config.restarts.no_progress_restarts) {
    return other("--no-progress-restarts", std::to_string(hello.no_progress_restarts),
                 std::to_string(config.restarts.no_progress_restarts));
  }
  if (config.has_exact_ranks &&
      (!hello.node_rank || *hello.node_rank < 0 || *hello.node_rank >= config.max_nodes)) {
    return "asks for " +
           (hello.node_rank ? "--node-rank=" + std::to_string(*hello.node_rank)
                            : "no --node-rank") +
           "; the " + std::to_string(config.max_nodes) + " nodes of this job have the ranks 0 to " +
           std::to_string(config.max_nodes - 1);
  }
  if (hello.last_round && hello.last_round->round > std::max(current, kLastRoundMax)) {
    return "says that it took part in round " + to_string(hello.last_round->round) +
           ", and no job has so many; start it again";
  }
  return {};
}

RankCheck check_rank(const RoundConfig& config, const Membership& members, const NodeHello& hello) {
  RankCheck check;
  if (!hello.node_rank) return check;
  check.replaces = members.broken_claimant(*hello.node_rank);
  if (check.replaces) return check;
  const auto other = members.connected_claimant(*hello.node_rank);
  if (!other) return check;
  const std::string rank = std::to_string(*hello.node_rank);
  const std::string& other_host = members.hello_of(*other).host;
  if (config.has_exact_ranks) {
    check.taken_by = other;
    const std::string taken = "--node-rank=" + rank + " is taken by " + other_host + "; ";
    check.refusal = taken + "give every node a rank of its own";
    check.warning =
        taken + "waiting for the end of that one, at most " + duration_text(config.silence_limit);
  } else {
    check.warning = "--node-rank=" + rank + " was asked for by " + other_host +
                    " too; nodes that ask for the same rank are sorted by arrival";
  }
  return check;
}

bool may_claim(const RoundConfig& config, std::size_t waiting) {
  return std::cmp_less(waiting, std::max(config.max_nodes, limits::kSparesFloor));
}

std::optional<std::string> check_spares(const RoundConfig& config, const Membership& members) {
  const int spares_max = std::max(config.max_nodes, limits::kSparesFloor);
  if (members.count() - config.max_nodes < spares_max) return {};
  return "the job has all its nodes, " + std::to_string(config.max_nodes) + ", and " +
         std::to_string(spares_max) +
         " spares wait already; start fewer nodes, or give another job a --rdzv-id and an "
         "endpoint of its own";
}

}  // namespace ddprun::rdzv
