// Notices that ranks wait for others, and tells of it once for each wait: looks at this node's workers once a second while
// they run. When a worker of the job has waited for long, the first node asks all others and tells (agent/core/wait_core.h).
// The rules are those of rendezvous/round/hang_core.h. Owned by Hangs; event loop only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "agent/core/wait_core.h"
#include "agent/query/job_query.h"
#include "agent/status/job_status.h"
#include "agent/supervisor/node_report.h"
#include "agent/supervisor/round_store.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/round/hang_core.h"
#include "rendezvous/store/store_server.h"

namespace ddprun::agent {

namespace hang_finding {

struct Waits {  // ranks wait for others
  rdzv::WaitingFor wait;
};
struct StillWaits {  // after a minute, and later (WaitLines)
  rdzv::WaitingFor wait;
};
struct StillWaitsInStore {  // likewise, for keys of the round's store, on the node that has it
  std::vector<rdzv::StoreWait> waits;
};
struct Hung {
  rdzv::Hung hung;
  JobStatus status;  // by which it was found
  rdzv::HangRules rules;
};

}  // namespace hang_finding

using HangFinding = std::variant<hang_finding::Waits, hang_finding::StillWaits,
                                 hang_finding::StillWaitsInStore, hang_finding::Hung>;

class HangWatch {
 public:
  struct Others {
    const NodeReport& node;
    const RoundStore& store;
    JobQuery& job;
  };
  using OnFinding = std::function<void(const HangFinding&)>;
  HangWatch(boost::asio::io_context& io, rdzv::HangTimeout timeout, rdzv::WaitLines lines,
            const Others& others, OnFinding on_finding);

  // Looks until no round runs.
  void round_began();
  // Another node has told this one, which is the first.
  void others_wait() { asker_.told(Clock::now()); }
  // Asks the nodes once more whether it is still so; nothing: a debugger, or a tool that takes stacks, holds a
  // rank just now.
  void confirm(const rdzv::Hung& hung, std::function<void(std::optional<bool>)> done);

  std::chrono::microseconds longest_wait() const;  // of this node's ranks, in the whole job
  // The verdicts on the current round, as long as a rank waits.
  std::vector<HungStatus> hung() const;

 private:
  using Clock = std::chrono::steady_clock;

  void look_later();
  void look();
  void look_at_store(const NodeStatus& node);
  void judge(const JobStatus& status);
  void forget();
  int world_size() const;  // the number of ranks in the round that runs; 0: none does
  rdzv::HangRules rules(const JobStatus& status) const;
  std::chrono::nanoseconds patience() const;

  const rdzv::HangTimeout timeout_;
  const Others others_;
  const OnFinding on_finding_;
  Timer timer_;
  Clock::time_point due_;
  WaitCore asker_;
  rdzv::WaitPatience steps_;
  // This agent did not run for so long while the current waits lasted, and others may not have either.
  std::chrono::nanoseconds gap_{};
  std::vector<rdzv::WaitingFor> told_;
  rdzv::WaitLines lines_;
  rdzv::WaitLines store_lines_;
  struct Told {
    rdzv::Hung hung;
    Clock::time_point at;
  };
  std::vector<Told> told_hung_;
  rdzv::LongestWait longest_;
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
