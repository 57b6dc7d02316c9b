// How much of a job's time moved it forward, and what each restart cost (Downtime). Pure: the owner
// passes in what happens on this node and when. Owned by the EventLog.
//
//   what happens                   before the first round  between rounds        a round runs
//   failed: a worker failed, or    the first counts        –                     the outage before ends,
//     the round is being stopped                                                  if it lasts; the next begins
//   all_ended: no worker is left   –                       the first: "stopped"  – (the job succeeds)
//   round_runs                     the start is over       the outage has its    –
//                                                          "stopped", "started"
//   stepped: marks of a worker     –                       –                     "joined", "repeated"
//   replaced: a worker takes the   –                       –                     the outage has its "stopped"
//     place of one that has ended                                                 and no "started"
//   regrouped, committed           –                       –                     its "joined", its "repeated"
//   worker_ended                   –                       its last step         its last step; with 0: it
//                                                                                has done its part
//   finished                       –                       –                     the outage ends, if it lasts
//
// Which step ends an outage: the one after the latest that any rank of this node had done. Numbers
// of steps are compared only if they are of one kind and that is not kCounted; otherwise each rank's
// first step ends the outage. Ranks that have never reported a step are not awaited as long as
// others have; a job that never reports any is back when its workers run. A replacement in place is
// over when each rank has committed a step in its generation; no step is repeated, because the one in
// which the worker ended was committed by nobody, or by all.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "agent/status/downtime.h"
#include "rendezvous/common/worker_abi/worker_progress.h"

namespace ddprun::agent {

class DowntimeClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  struct WantedStep {
    StepKind kind = StepKind::kProgram;
    std::int64_t step = 0;
  };

  DowntimeClock(TimePoint started, int local_world_size)
      : started_(started), ranks_(static_cast<std::size_t>(local_world_size)) {}

  void failed(TimePoint now);
  void all_ended(TimePoint now);
  // Returns the time since its cause, which is the job's start for the first round.
  Duration round_runs(TimePoint now);
  void stepped(int local_rank, const StepMarks& marks) { rank(local_rank).marks = marks; }
  // A generation begins. Returns the time since its cause; of a rank of another node that is not known.
  Duration replaced(std::uint32_t generation, TimePoint now);
  void regrouped(int local_rank, std::uint32_t generation, TimePoint now);
  void committed(int local_rank, std::uint32_t generation, TimePoint now);
  // `step`: the last one that it reported. `has_succeeded`: it ended with 0.
  void worker_ended(int local_rank, std::optional<std::int64_t> step, StepKind kind,
                    bool has_succeeded, TimePoint now);
  void finished(TimePoint now);

  // The step that the next process of a rank has to commit; nothing: none is known.
  std::optional<WantedStep> wanted_step(int local_rank) const;

  // Of the latest restart, if it was a replacement in place.
  std::optional<std::uint32_t> generation() const {
    return outage_ ? outage_->generation : std::nullopt;
  }
  // The downtime of the latest restart, once: when every rank has taken the steps that end it.
  std::optional<Downtime> take_recovered(TimePoint now);

  Downtime latest(TimePoint now) const;       // of the latest restart
  Downtime all(TimePoint now) const;          // of all together
  int in_place() const { return in_place_; }  // how many of them replaced one worker only
  Duration until_first_step(TimePoint now) const;
  Duration wall(TimePoint now) const { return now - started_; }
  // The share of the time since the first step that moved the job forward: without all downtime and
  // what follows a failure. Nothing: no rank of this node has reported a step.
  std::optional<double> goodput(TimePoint now) const;

 private:
  struct Rank {
    // The latest step of all processes so far that have ended.
    std::optional<std::int64_t> step;
    StepKind kind = StepKind::kProgram;
    bool has_reported = false;         // in an earlier round
    std::optional<WantedStep> wanted;  // in this round
    StepMarks marks;                   // of this round
    std::optional<TimePoint> done_at;  // it ended with 0
    // In the outage's generation.
    std::optional<TimePoint> regrouped_at;
    std::optional<TimePoint> committed_at;
  };
  struct Outage {
    TimePoint failed_at;
    TimePoint stopped_at;
    TimePoint ran_at;
    std::optional<TimePoint> over_at;  // the next failure, or the end
    // Of a replacement in place, which has `ran_at` when the place is taken.
    std::optional<std::uint32_t> generation;
  };
  struct Reached;  // what the awaited ranks have reached

  Rank& rank(int local_rank) { return ranks_[static_cast<std::size_t>(local_rank)]; }
  Reached reached(const Outage& outage, TimePoint now) const;
  Reached reached_in_place(const Outage& outage, TimePoint now) const;
  void settle(TimePoint now);

  TimePoint started_;
  std::vector<Rank> ranks_;  // by local rank
  std::optional<TimePoint> failed_at_;
  std::optional<TimePoint> stopped_at_;
  std::optional<TimePoint> first_ran_at_;
  std::optional<Duration> start_;  // once the first round is over
  std::optional<Outage> outage_;   // that led to the current round
  bool was_taken_ = true;          // by take_recovered()
  int in_place_ = 0;
  Downtime settled_ = no_downtime();  // of the outages before
};

}  // namespace ddprun::agent
