// What the leader of a job was started with. A value; any thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "rendezvous/common/ids.h"
#include "rendezvous/round/restart_policy.h"

namespace ddprun::rdzv {

struct RoundConfig {
  std::string run_id;
  std::string program;  // empty: that of the first node
  std::string user;     // likewise
  int min_nodes = 1;
  int max_nodes = 1;
  RestartRules restarts;
  bool has_exact_ranks = false;                // static: node ranks are unique and below max_nodes
  std::optional<NodeId> own_node = NodeId{0};  // whose leave ends the job; ddpctl leader: none
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call_timeout{30'000};
  std::chrono::milliseconds reconnect_grace{300};
  // An agent that lives (it is heard) and does not answer is stuck: OpenStore and JobEnd within this
  // time, RoundStop within its own shutdown_timeout and what may follow that: stacks, SIGKILL, and
  // the end of what the workers left behind.
  std::chrono::milliseconds answer_timeout{10'000};
  std::chrono::milliseconds stop_margin{40'000};
};

// "2:4"; "2" where both are the same.
std::string nodes_in_words(int min_nodes, int max_nodes);

}  // namespace ddprun::rdzv
