// What follows the verdict that ranks hang: the stacks of these, and then those of all others, are taken, each
// within a limit; the report is made; and, with --on-hang=restart, those that hang are killed on their nodes, if they still do
// and it is a verdict. And what is told of a wait that lasts. One after the other. Owned by the Supervisor; event loop only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/failure/hang_report.h"
#include "agent/loop/timer.h"
#include "agent/query/hang_query.h"
#include "agent/query/job_query.h"
#include "agent/query/stack_query.h"
#include "rendezvous/common/lifetime.h"

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
  };
  // `ends`: those that hang are killed, if it is a verdict.
  HangResponse(boost::asio::io_context& io, bool ends, Hooks hooks);

  // `status`: by which it was found.
  void respond(const rdzv::Hung& hung, const JobStatus& status);
  // What is observed, with the stack of a rank that has not come. Nothing is done.
  void tell(const rdzv::WaitingFor& wait);
  // The round is over, or another one runs: what was found is of no interest any more.
  void forget();

 private:
  struct Case {
    rdzv::Hung hung = {};
    JobStatus status = {};
    std::optional<rdzv::WaitingFor> wait = {};  // only that is told
    std::map<int, RankStack> stacks = {};
    bool is_about_others = false;  // what is asked now
    int awaited = 0;               // answers: this node's stacks, and those of the other nodes
  };

  void begin(Case added);
  void ask_first();
  void ask(StackQuery question);
  void take(const std::vector<WorkerStacks>& stacks);
  void taken();
  void confirm(const HangReport& report, int attempts);
  void act(const HangReport& report);
  void heard(EndHung& question, const EndHungAnswer& answer);
  void end_elsewhere(std::vector<EndHung> questions, int attempts);
  void next();

  boost::asio::io_context& io_;
  const bool ends_;
  const Hooks hooks_;
  std::deque<Case> cases_;
  std::uint64_t rounds_ = 0;
  Timer again_;
  const rdzv::Lifetime lifetime_;
};

}  // namespace ddprun::agent
