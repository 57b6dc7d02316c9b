#include "rendezvous/round/round_config.h"

namespace ddprun::rdzv {

std::string nodes_in_words(int min_nodes, int max_nodes) {
  return min_nodes == max_nodes ? std::to_string(max_nodes)
                                : std::to_string(min_nodes) + ":" + std::to_string(max_nodes);
}

}  // namespace ddprun::rdzv
