#include "rendezvous/etcd/round_ledger.h"

#include <iterator>
#include <utility>

namespace ddprun::rdzv {

std::vector<ToNode> RoundLedger::pass(const RoundCore& core, std::vector<ToNode> messages) {
  JobRecord record = newest();
  for (const ToNode& each : messages) {
    if (const auto* start = std::get_if<RoundStart>(&each.message)) {
      record.round = start->round;
      record.nodes = start->node_count;
      record.history = core.history();
    }
  }
  if (core.has_ended() && !record.outcome) {
    record.outcome = *core.outcome();
    record.history = core.history();
  }
  if (record != newest()) {
    held_.push_back({std::move(record), std::move(messages)});
    return {};
  }
  if (held_.empty()) return messages;
  auto& held = held_.back().messages;
  held.insert(held.end(), std::make_move_iterator(messages.begin()),
              std::make_move_iterator(messages.end()));
  return {};
}

std::vector<ToNode> RoundLedger::written() {
  Held held = std::move(held_.front());
  held_.pop_front();
  record_ = std::move(held.record);
  return std::move(held.messages);
}

}  // namespace ddprun::rdzv
