// What follows the verdict that ranks hang, and what is said of a wait that lasts: performs what hang_response::Core
// decides. Owned by the Supervisor; event loop only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "agent/core/hang_response_core.h"
#include "agent/failure/hang_report.h"
#include "agent/query/hang_query.h"
#include "agent/query/job_query.h"
#include "agent/query/stack_query.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/run_to_completion.h"
#include "rendezvous/common/loop/timer.h"

namespace ddprun::agent {

RankStack stack_of(const WorkerStacks& worker);

class HangResponse {
 public:
  struct Hooks {
    std::function<JobQuery&()> query;
    // Of this node's workers, within kStackLimit.
    std::function<void(const StackQuery&, std::function<void(std::vector<WorkerStacks>)>)> stacks;
    std::function<void(const HangReport&)> report;
    std::function<void(const rdzv::WaitingFor&, const std::map<int, RankStack>&)> wait_report;
    // Whether it is still so; nothing: a debugger, or a tool that takes stacks, holds a rank just now.
    std::function<void(const rdzv::Hung&, std::function<void(std::optional<bool>)>)> confirm;
    std::function<EndHungAnswer(const EndHung&)> end;  // on this node
    std::function<void(std::string_view)> warn;
    std::function<void(const hang_response::Event&, std::size_t actions)> record;
  };
  // `ends`: as hang_response::Core has it.
  HangResponse(boost::asio::io_context& io, bool ends, Hooks hooks);

  // `status`: by which it was found.
  void respond(const rdzv::Hung& hung, const JobStatus& status);
  // What is observed, with the stack of a rank that has not come. Nothing is done.
  void tell(const rdzv::WaitingFor& wait) { post(hang_response::Waits{new_case(), wait}); }
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
  void perform(const hang_response::Warn& action) { hooks_.warn(action.sentence); }
  void perform(const hang_response::ArmTimer& action);
  void perform(const hang_response::Forget& action) { cases_.erase(action.id); }

  CaseId new_case();

  boost::asio::io_context& io_;
  const Hooks hooks_;
  hang_response::Core core_;
  RunToCompletion<hang_response::Event> events_;
  std::map<CaseId, Case> cases_;
  std::uint64_t last_case_ = 0;
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
