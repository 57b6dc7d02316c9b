// The steps at the end of a job on this node: which one comes next, and how long it may take. A value of the NodeCore.
//
//   event \ step         before kLeader   kLeader          kProgress   kOutput    kReport and later
//   taken, or too late   next             next (1)         next        next       next; kConsole: exit
//   first signal         kLeader (2)      wait (2)         kOutput     next (3)   shorten (3)
//   later signal         never            kOutput          never       next       shorten once
//
//   (1) kOutput after a signal: kProgress is for observers
//   (2) not later steps, because the exit codes of other nodes depend on kLeader
//   (3) from here on every step has at most half a second. The report and what follows get it, however many signals come
#pragma once

#include <chrono>

#include "agent/core/node_events.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

class EndOfJob {
 public:
  enum class Then { kWait, kTakeStep, kShorten, kExit };

  // `leader_limit`: how long a leader here waits for nodes that do not know of the job's end yet.
  EndOfJob(rdzv::JobOutcome::Kind kind, std::chrono::milliseconds leader_limit)
      : kind_(kind), leader_limit_(leader_limit) {}

  EndStep step() const { return step_; }
  std::chrono::milliseconds limit() const;  // this step's
  Then taken();                             // this step, or its time is over
  Then signalled();

 private:
  enum class Haste { kNone, kSignalled, kHurried };

  Then take(EndStep step);

  rdzv::JobOutcome::Kind kind_{};
  std::chrono::milliseconds leader_limit_{};
  EndStep step_ = EndStep::kLogs;
  Haste haste_ = Haste::kNone;
};

}  // namespace ddprun::agent
