// The phase before a round in which there are too few nodes: how long to wait for more. A value of
// the RoundCore.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/common/ids.h"
#include "rendezvous/common/notice_times.h"
#include "rendezvous/round/round_config.h"

namespace ddprun::rdzv {

struct Gathering {
  // How long to wait for the nodes of another leader's round: often some of them died together with
  // it.
  static constexpr std::chrono::milliseconds kReturnTimeout{10'000};

  std::optional<CoreTime> give_up;    // counts from the arrival of the first node
  std::optional<CoreTime> last_call;  // counts from when there are enough nodes; first round only
  Notices notices;                    // say to all how many nodes there are
  std::vector<NodeId> newcomers;      // not told yet

  struct Nodes {
    int ready = 0;
    int usable = 0;            // without nodes that are left out if others come
    int expected = 0;          // nodes of another leader's last round that should come back
    bool has_run = false;      // a round has run already
    bool is_counting = false;  // false: the time does not count before the first node comes
  };
  enum class Next { kWait, kOpen, kGiveUp };
  Next go_on(const RoundConfig& config, const Nodes& nodes, CoreTime now) {
    const bool is_enough = nodes.ready >= config.min_nodes;
    const bool is_full = nodes.usable >= config.max_nodes;
    const bool is_complete =
        nodes.has_run && nodes.usable >= std::max(nodes.expected, config.min_nodes);
    if (is_enough && !last_call) {
      last_call = now + (nodes.has_run ? std::min(config.last_call_timeout, kReturnTimeout)
                                       : config.last_call_timeout);
    }
    if (!is_enough) last_call.reset();
    if (is_full || (is_enough && (is_complete || now >= *last_call))) return Next::kOpen;
    if (!give_up && nodes.is_counting) give_up = now + config.join_timeout;
    return give_up && !is_enough && now >= *give_up ? Next::kGiveUp : Next::kWait;
  }

  // Whether all nodes are to be told how many there are.
  bool is_progress_due(CoreTime now) { return give_up && notices.are_due(now); }

  // Nodes of a round that ran under another leader are here: the last call need not be long.
  void shorten_last_call(CoreTime now) {
    if (last_call) last_call = std::min(*last_call, now + kReturnTimeout);
  }

  // When it decides, as far as is known now.
  std::optional<CoreTime> until() const { return last_call ? last_call : give_up; }
};

}  // namespace ddprun::rdzv
