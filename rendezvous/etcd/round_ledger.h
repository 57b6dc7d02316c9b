// A write-ahead log for the leader's messages: nothing that must outlive a leader takes effect
// before etcd has it. The messages of the RoundCore pass through here. A RoundStart, a ReplaceWorker or
// the end of the job is held back, with all messages after it, until the record of it is written. A value
// without I/O; its owner, the leader under etcd, writes due() and calls written() when etcd has it.
//
// Later messages must not overtake those that are held: an agent would then be told of the end of a
// round that it was never told to begin.
#pragma once

#include <deque>
#include <iterator>
#include <utility>
#include <vector>

#include "rendezvous/etcd/job_record.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {

class RoundLedger {
 public:
  // `record`: as it is in etcd.
  explicit RoundLedger(JobRecord record) : record_(std::move(record)) {}

  // Returns the messages that may be sent now.
  std::vector<ToNode> pass(const RoundCore& core, std::vector<ToNode> messages) {
    JobRecord record = newest();
    record.left_out = core.left_out();
    for (const ToNode& each : messages) {
      if (const auto* start = std::get_if<RoundStart>(&each.message)) {
        record.round = start->round;
        record.nodes = start->node_count;
        record.history = core.history();
      } else if (std::holds_alternative<ReplaceWorker>(each.message)) {
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
    if (due() == nullptr) return messages;
    auto& held = held_.back().messages;
    held.insert(held.end(), std::make_move_iterator(messages.begin()),
                std::make_move_iterator(messages.end()));
    return {};
  }

  // The record to write next; null if there is none.
  const JobRecord* due() const { return held_.empty() ? nullptr : &held_.front().record; }
  // etcd has the due record: returns the messages that may be sent now.
  std::vector<ToNode> written() {
    Held held = std::move(held_.front());
    held_.pop_front();
    record_ = std::move(held.record);
    return std::move(held.messages);
  }

  // The record including all that is due; etcd may have it already, if its answer was lost.
  const JobRecord& newest() const { return held_.empty() ? record_ : held_.back().record; }

 private:
  struct Held {
    JobRecord record;
    std::vector<ToNode> messages;  // to be sent when the record is written
  };

  JobRecord record_;
  std::deque<Held> held_;
};

}  // namespace ddprun::rdzv
