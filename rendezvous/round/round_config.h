// The settings of a job's leader. A value; any thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "rendezvous/common/ids.h"
#include "rendezvous/round/restart_policy.h"

namespace ddprun::rdzv {

struct RoundConfig {
  std::string run_id;
  std::string program;  // empty: the first node's
  std::string user;     // empty: the first node's
  int min_nodes = 1;
  int max_nodes = 1;
  RestartRules restarts;
  bool has_exact_ranks = false;                // static: node ranks are unique and below max_nodes
  std::optional<NodeId> own_node = NodeId{0};  // its leave ends the job; nullopt for ddpctl leader
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call_timeout{30'000};
  std::chrono::milliseconds reconnect_grace{300};
  // A node of which nothing is heard for so long is lost.
  std::chrono::milliseconds silence_limit{6'000};
  // An agent that is heard but does not answer in time is stuck. Its time limits: this one for
  // OpenStore and JobEnd; for RoundStop its own shutdown_timeout plus stop_margin, for what may
  // follow: stacks, SIGKILL, and the end of the processes that the workers left behind.
  std::chrono::milliseconds answer_timeout{10'000};
  std::chrono::milliseconds stop_margin{40'000};
  std::chrono::milliseconds replace_timeout{30'000};  // until all workers have regrouped
};

// "3"; "3/3600s": restarts count for so long.
inline std::string restarts_in_words(int restarts, std::chrono::seconds window) {
  return std::to_string(restarts) +
         (window.count() == 0 ? "" : "/" + std::to_string(window.count()) + "s");
}

// "2:4"; "2" if both are equal.
inline std::string nodes_in_words(int min_nodes, int max_nodes) {
  const std::string most = std::to_string(max_nodes);
  return min_nodes == max_nodes ? most : std::to_string(min_nodes) + ":" + most;
}

}  // namespace ddprun::rdzv
