// Finds ranks that compute slowly, and tells of them (rendezvous/round/lag_core.h has the rules): twelve times a minute the
// first node of a round asks all others when their ranks came to their calls. Of a rank that is slow from then on, and of one
// that is not, the stacks are looked at for some seconds, to say where it spends its time. Nothing is done to it. A job of N
// nodes sends O(N) messages a look. Owned by the Supervisor; event loop only.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/worker_event.h"
#include "agent/events/event_log.h"
#include "agent/query/job_query.h"
#include "agent/query/lag_query.h"
#include "agent/status/node_status.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/stack_samples.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/round/lag_core.h"

namespace ddprun::agent {

class SlowRanks {
 public:
  // What it sees of this node. Functions, because tests give values.
  struct Node {
    const rdzv::RoundStart& round;  // the current one, or the last
    std::function<bool()> is_running;
    std::function<std::vector<rdzv::RankArrivals>(std::size_t most)> arrivals;  // as in WorkerView
    std::function<void(const std::vector<int>& ranks, StackSamples::Done)> sample;  // NodeStacks
  };
  struct Others {
    Node node;
    JobQuery& job;
    EventLog& events;
  };
  SlowRanks(const AgentParts& parts, const Others& others);

  void on(const WorkerEvent& event);

  // Fills in what NodeReport::status() leaves out.
  void fill(NodeStatus& status) const;

 private:
  using Clock = std::chrono::steady_clock;

  void round_began();
  void look_later();
  void look();
  void judge(const std::vector<rdzv::NodeArrivals>& nodes);
  bool runs(Round round) const {
    return others_.node.is_running() && others_.node.round.round == round;
  }
  rdzv::NodeArrivals here() const;
  bool is_here(int rank) const;
  std::size_t calls_asked() const;
  void take(const JobQuery::Outcome& outcome);
  std::string answer_arrivals(std::string_view question) const;

  // Asks where they are slow, and then tells.
  void find_places(std::vector<rdzv::SlowRank> slow);
  void sample(const SamplesQuestion& question, std::function<void(std::vector<RankSamples>)> done);
  void tell(const rdzv::SlowRank& slow, const std::string& where);
  std::string host_of(int rank) const;
  SlowStatus status_of(const rdzv::SlowRank& slow, const std::string& where) const;

  const AgentParts parts_;
  const Others others_;
  const std::chrono::milliseconds minute_;  // a test has no minutes
  Timer timer_;
  std::optional<rdzv::LagCore> core_;  // there is one on the first node of the round that runs
  std::map<NodeId, rdzv::ClockOffset> clocks_;
  std::map<NodeId, std::string> hosts_;
  std::map<int, NodeId> nodes_of_ranks_;  // which are not this node; in this round
  std::map<int, SlowStatus> slow_;        // by rank
  struct Told {
    Clock::time_point at;
    std::string where;
  };
  std::map<int, Told> told_;  // likewise, in this round
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
