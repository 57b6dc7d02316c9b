// The phase before a round in which there are too few nodes: how long to wait for more. A value of
// the RoundCore.
#pragma once

#include <optional>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/common/ids.h"
#include "rendezvous/round/round_config.h"

namespace ddprun::rdzv {

struct Gathering {
  std::optional<CoreTime> give_up;    // counts from the arrival of the first node
  std::optional<CoreTime> last_call;  // counts from when there are enough nodes; first round only
  CoreTime next_progress{};
  std::vector<NodeId> newcomers;  // not told yet how many nodes there are

  struct Nodes {
    int ready = 0;
    int expected = 0;          // nodes of another leader's last round that should come back
    bool has_run = false;      // a round has run already
    bool is_counting = false;  // false: the time does not count before the first node comes
  };
  enum class Next { kWait, kOpen, kGiveUp };
  Next go_on(const RoundConfig& config, const Nodes& nodes, CoreTime now);

  // Every 10 s all nodes are told how many there are. Returns true at most once per interval.
  bool is_progress_due(CoreTime now);
  // Nodes of a round that ran under another leader are here: the last call need not be long.
  void shorten_last_call(CoreTime now);
  // When it decides, as far as is known now.
  std::optional<CoreTime> until() const { return last_call ? last_call : give_up; }
};

}  // namespace ddprun::rdzv
