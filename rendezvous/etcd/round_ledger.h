// Nothing that must outlive a leader takes effect before etcd has it. What a RoundCore says passes
// through here: a RoundStart, or the end of the job, is held back, with all that comes after it,
// until the record that says so is written. A value without I/O; owned by who leads under etcd, who
// writes what is due() and says when it is there.
//
// The mistake to avoid: letting later messages pass what is held. An agent would then hear of the end
// of a round that it was never told to begin.
#pragma once

#include <deque>
#include <vector>

#include "rendezvous/etcd/job_record.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {

class RoundLedger {
 public:
  // The record as it is in etcd.
  explicit RoundLedger(JobRecord record) : record_(std::move(record)) {}

  // What of it may be said now.
  std::vector<ToNode> pass(const RoundCore& core, std::vector<ToNode> messages);
  // What etcd has to be told next; none: nothing.
  const JobRecord* due() const { return held_.empty() ? nullptr : &held_.front().record; }
  // It is there: what may be said then.
  std::vector<ToNode> written();

  const JobRecord& record() const { return record_; }
  // With all that is due; etcd may have it already, and its answer be lost.
  const JobRecord& newest() const { return held_.empty() ? record_ : held_.back().record; }

 private:
  struct Held {
    JobRecord record;
    std::vector<ToNode> messages;  // may be said when it is written
  };

  JobRecord record_;
  std::deque<Held> held_;
};

}  // namespace ddprun::rdzv
