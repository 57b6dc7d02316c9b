// Hangs of the job as this node sees them: watches for them (HangWatch), reports them, and has them ended (HangResponse).
// It also says what workers do that have not come together after a replacement, and keeps for the recording what the
// records of ranks said when a verdict was given and at the end. Owned by the Supervisor; event loop only.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "agent/core/node_core.h"
#include "agent/core/worker_event.h"
#include "agent/events/core_recorder.h"
#include "agent/status/node_status.h"
#include "agent/supervisor/hang_response.h"
#include "agent/supervisor/hang_watch.h"
#include "agent/supervisor/node_report.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/round_store.h"
#include "agent/supervisor/workers.h"
#include "rendezvous/common/loop/blocking_calls.h"

namespace ddprun::agent {

class Hangs {
 public:
  struct Others {
    const NodeReport& node;
    Workers& workers;
    const RoundStore& store;
    JobQuery& job;
    EventLog& events;
  };
  Hangs(const AgentParts& parts, const Others& others, HangResponse::OnVerdict on_verdict);

  void record_with(CoreRecorder* recorder);  // null: no recording

  // Call it before other observers: it reads what a worker did last.
  void on(const WorkerEvent& event);
  // A worker was replaced some time ago, and these have not come together with the others since.
  void show_late(const std::vector<int>& local_ranks, std::chrono::seconds after);

  // Fills in what NodeReport::status() leaves out.
  void fill(NodeStatus& status) const;

 private:
  void on_finding(const HangFinding& finding);
  void on(const hang_finding::Waits& found);
  void on(const hang_finding::StillWaits& found) { response_.tell(found.wait); }
  void on(const hang_finding::StillWaitsInStore& found);
  void on(const hang_finding::Hung& found);

  void tell_of_store(const std::vector<rdzv::StoreWait>& waits,
                     const std::map<std::uint16_t, int>& rank_of_port);
  void note_calls(const hang_finding::Hung& found);
  void keep_calls(int local_rank);
  void note_last_calls();

  const AgentParts parts_;
  const Others others_;
  HangWatch watch_;
  HangResponse response_;
  BlockingCalls sockets_;  // the files of workers may be held by a file server
  CoreRecorder* recorder_ = nullptr;
  std::vector<rdzv::RankCalls>
      last_calls_;  // with a recording: what ended workers of this round did last
};

}  // namespace ddprun::agent
