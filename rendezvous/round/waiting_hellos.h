// Hellos of nodes that ask for a rank which a connected node has: they wait until that node's end is known, at most
// silence_limit. A value of the RoundCore.
//
//   hello \ its rank      free                       taken, before the limit    taken, after it
//   waits                 handled like a new one     waits on                   refused; after a pause of this process the
//                                                                               limit begins anew
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "rendezvous/common/clock.h"
#include "rendezvous/common/own_pause.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

class WaitingHellos {
 public:
  struct Settled {
    NodeId node{};
    NodeHello hello;
    bool is_refused = false;
  };

  void add(NodeId node, NodeHello hello, CoreTime until) {
    waiting_.emplace(node, Waiting{std::move(hello), until});
  }
  bool has(NodeId node) const { return waiting_.contains(node); }
  bool remove(NodeId node) { return waiting_.erase(node) > 0; }
  std::size_t size() const { return waiting_.size(); }

  std::optional<CoreTime> deadline() const {
    const auto first =
        std::ranges::min_element(waiting_, {}, [](const auto& each) { return each.second.until; });
    return first == waiting_.end() ? std::nullopt : std::optional(first->second.until);
  }

  // One that waits no more, and is removed from here. Another hello may get its rank then, so each is asked for by itself.
  template <typename IsTaken>
  std::optional<Settled> settle(CoreTime now, CoreTime::duration limit,
                                CoreTime::duration pause_min, const IsTaken& is_taken) {
    for (auto& [node, waiting] : waiting_) {
      const bool taken = is_taken(waiting.hello);
      const bool was_paused = own_pause(waiting.until, now, pause_min) > CoreTime::duration::zero();
      if (taken && was_paused) waiting.until = now + limit;
      if (taken && now < waiting.until) continue;
      auto out = waiting_.extract(node);
      return Settled{out.key(), std::move(out.mapped().hello), taken};
    }
    return std::nullopt;
  }

 private:
  struct Waiting {
    NodeHello hello;
    CoreTime until;
  };
  std::map<NodeId, Waiting> waiting_;
};

}  // namespace ddprun::rdzv
