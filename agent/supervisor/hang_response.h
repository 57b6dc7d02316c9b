// What follows the verdict that ranks hang, and what is said of a wait that lasts: performs what hang_response::Core
// decides. Owned by Hangs; event loop only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "agent/core/hang_response_core.h"
#include "agent/core/node_core.h"
#include "agent/events/core_recorder.h"
#include "agent/events/event_log.h"
#include "agent/failure/hang_report.h"
#include "agent/query/hang_query.h"
#include "agent/query/job_query.h"
#include "agent/query/stack_query.h"
#include "agent/supervisor/hang_watch.h"
#include "agent/supervisor/node_report.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/workers.h"
#include "rendezvous/common/loop/lifetime.h"

namespace ddprun::agent {

RankStack stack_of(const WorkerStacks& worker);

class HangResponse {
 public:
  struct Others {
    const NodeReport& node;
    Workers& workers;
    JobQuery& job;
    EventLog& events;
    HangWatch& watch;
  };
  using OnVerdict = std::function<void(const WorkerHung&)>;  // this worker is to be killed
  HangResponse(const AgentParts& parts, const Others& others, OnVerdict on_verdict);

  void record_with(CoreRecorder* recorder) { recorder_ = recorder; }  // null: no recording
  // `status`: by which it was found.
  void respond(const rdzv::Hung& hung, const JobStatus& status);
  // What is observed, with the stack of a rank that has not come. Nothing is done.
  void tell(const rdzv::WaitingFor& wait) { post(hang_response::Waits{new_case(), wait}); }
  // The ranks of this node among these are to be killed. Asked by this agent, or by the one that has found them.
  EndHungAnswer end_here(const EndHung& question);
  // The round is over, or another one runs: what was found is of no interest any more.
  void forget() { post(hang_response::RoundOver{}); }

 private:
  using CaseId = hang_response::CaseId;
  struct Case {
    explicit Case(boost::asio::io_context& io) : timer(io) {}
    JobStatus status;  // by which it was found
    std::map<int, RankStack> stacks;
    HangReport report;
    int awaited = 0;  // answers to the question that was asked last
    Timer timer;
  };

  void post(hang_response::Event event) { events_.post(std::move(event)); }
  void step(const hang_response::Event& event);
  void perform(const hang_response::TakeStacks& action);
  void perform(const hang_response::Report& action);
  void perform(const hang_response::ReportWait& action);
  void perform(const hang_response::Confirm& action);
  void perform(const hang_response::End& action);
  void perform(const hang_response::Warn& action) { parts_.log.warn(action.sentence); }
  void perform(const hang_response::ArmTimer& action);
  void perform(const hang_response::Forget& action) { cases_.erase(action.id); }

  CaseId new_case();

  const AgentParts parts_;
  const Others others_;
  const OnVerdict on_verdict_;
  CoreRecorder* recorder_ = nullptr;
  hang_response::Core core_;
  RunToCompletion<hang_response::Event> events_;
  std::map<CaseId, Case> cases_;
  std::uint64_t last_case_ = 0;
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
