// The time before a round in which too few nodes are there: for how long others are waited for. A
// value of the RoundCore.
#pragma once

#include <optional>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/common/ids.h"
#include "rendezvous/round/round_config.h"

namespace ddprun::rdzv {

struct Gathering {
  std::optional<CoreTime> give_up;    // counts from the first node that is there
  std::optional<CoreTime> last_call;  // from the moment when there are enough; first round only
  CoreTime next_progress{};
  std::vector<NodeId> newcomers;  // that were not yet told how far it is

  struct Nodes {
    int ready = 0;
    int expected = 0;          // back from the last round of another leader
    bool has_run = false;      // some round has run
    bool is_counting = false;  // before the first node comes, the time does not count
  };
  enum class Next { kWait, kOpen, kGiveUp };
  Next go_on(const RoundConfig& config, const Nodes& nodes, CoreTime now);

  // Every 10 s all nodes are told how far it is. True at most once for each time.
  bool is_progress_due(CoreTime now);
  // Nodes of a round that ran under another leader are here: no long last call.
  void shorten_last_call(CoreTime now);
  // When it decides, with what is known now.
  std::optional<CoreTime> until() const { return last_call ? last_call : give_up; }
};

}  // namespace ddprun::rdzv
