// How many messages a job sends while its ranks wait, and when some of them hang: the shipped WaitCore, JobQuery and
// hang_response::Core of each node over the shipped RoundClient and RoundServer, in virtual time. For the Supervisor's parts
// between them stands what each decision asks of the other nodes.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "agent/core/hang_response_core.h"
#include "agent/core/wait_core.h"
#include "agent/query/hang_query.h"
#include "agent/query/job_query.h"
#include "agent/query/stack_query.h"
#include "rendezvous/leader/round_client.h"
#include "rendezvous/leader/round_server.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/random.h"
#include "tests/sim/virtual_network.h"

namespace ddprun::sim {
namespace {

using namespace std::chrono_literals;
namespace response = agent::hang_response;
using agent::WaitCore;

const std::string kLeaderHost = "10.0.0.1";
constexpr std::uint16_t kLeaderPort = 29'400;

// Counts what the node says to other nodes.
class CountedLeader final : public rdzv::Leader {
 public:
  CountedLeader(std::unique_ptr<rdzv::Leader> leader, std::size_t& count)
      : leader_(std::move(leader)), count_(count) {}

  void join(rdzv::NodeHello hello) override { leader_->join(std::move(hello)); }
  void tell(const rdzv::ToLeader& message) override { leader_->tell(message); }
  void ask(rdzv::PeerRequest question) override {
    ++count_;
    leader_->ask(std::move(question));
  }
  void answer(rdzv::PeerReply answer) override {
    ++count_;
    leader_->answer(std::move(answer));
  }
  bool may_exit() override { return leader_->may_exit(); }
  bool is_here() const override { return leader_->is_here(); }
  std::string local_address() const override { return leader_->local_address(); }

 private:
  const std::unique_ptr<rdzv::Leader> leader_;
  std::size_t& count_;
};

class WaitingNode {
 public:
  using MakeLeader = std::function<std::unique_ptr<rdzv::Leader>(rdzv::LeaderEvents)>;

  // `count`: of messages that it sends or gets.
  WaitingNode(EventQueue& queue, boost::asio::io_context& io, std::size_t& count,
              const MakeLeader& make_leader)
      : queue_(queue),
        count_(count),
        query_(io, {"job", "train", "1.0", "host"},
               {.node_status = [this](std::size_t) { return status(); },
                .on_event = [](auto) { return nullptr; },
                .leader = [this] { return leader_.get(); }}),
        hangs_(/*ends=*/true) {
    query_.answer_with("waits", [this](auto, const auto&) { wait_.told(now()); });
    query_.answer_with("stacks", [](auto, const auto& reply) { reply("[]"); });
    query_.answer_with("end_hung",
                       [](auto, const auto& reply) { reply(to_json(agent::EndHungAnswer{})); });
    rdzv::LeaderEvents events;
    events.on_event = [this](rdzv::LeaderEvent event) {
      std::visit([this](auto& each) { hear(each); }, event);
    };
    leader_ = std::make_unique<CountedLeader>(make_leader(std::move(events)), count_);
  }

  void join(int nodes) {
    rdzv::NodeHello hello;
    hello.host = hello.address = "node";
    hello.min_nodes = hello.max_nodes = nodes;
    leader_->join(hello);
  }
  bool runs() const { return start_.has_value(); }
  int rank() const { return start_->node_rank; }
  int judged() const { return judged_; }
  std::size_t nodes_seen() const { return nodes_seen_; }

  // As every node does once a second (hang_watch.h).
  void look() {
    // Rank 0 evaluates, and all others wait for it.
    switch (wait_.look(now(), {.node_rank = rank(), .has_waited = rank() > 0})) {
      case WaitCore::Action::kTellFirst:
        query_.tell_first(R"({"ask":"waits"})");
        break;
      case WaitCore::Action::kAskAll:
        query_.job_status([this](const agent::JobStatus& status) {
          judged_ += 1;
          nodes_seen_ = status.nodes.size();
        });
        break;
      default:
        break;
    }
    queue_.after(1s, [this] { look(); });
  }

  // As many stacks as a verdict may have, of ranks that no node knows: the most that follows one.
  void find_hang() {
    rdzv::Hung hung;
    hung.basis = rdzv::Hung::Basis::kSeconds;
    hung.ranks = {1};
    step(response::Found{response::CaseId{1}, hung});
  }

 private:
  WaitCore::Clock::time_point now() const {
    return WaitCore::Clock::time_point(queue_.now().time_since_epoch());
  }
  agent::NodeStatus status() const {
    agent::NodeStatus status;
    status.host = "node";
    if (start_) status.node_rank = start_->node_rank;
    status.workers.resize(1);
    return status;
  }

  void hear(const rdzv::ToAgent& message) {
    if (const auto* open = std::get_if<rdzv::OpenStore>(&message)) {
      leader_->tell(rdzv::StoreOpened{open->round, 4000});
    } else if (const auto* start = std::get_if<rdzv::RoundStart>(&message)) {
      start_ = *start;
      wait_.round_began();
    }
  }
  template <typename Between>
  requires std::is_same_v<Between, rdzv::PeerRequest> || std::is_same_v<Between, rdzv::PeerReply> ||
      std::is_same_v<Between, rdzv::PeerAck>
  void hear(Between& message) {
    ++count_;
    query_.take(std::move(message));
  }
  void hear(const auto&) {}

  void step(const response::Event& event) {
    for (const response::Action& action : hangs_.step(event)) {
      std::visit([this](const auto& each) { perform(each); }, action);
    }
  }
  void answer(response::Event event) {
    queue_.after(0us, [this, event = std::move(event)] { step(event); });
  }
  void perform(const response::TakeStacks& take) {
    const agent::StackQuery question{take.ranks, take.without, /*is_brief=*/true};
    query_.ask(std::nullopt, to_json(question),
               [this, id = take.id](const auto&) { answer(response::StacksTaken{id}); });
  }
  void perform(const response::Report& report) {
    response::Reported reported{report.id, {}};
    for (std::size_t stack = 0; stack < response::kStacksMax; ++stack) {
      reported.culprits.push_back({static_cast<int>(stack)});
    }
    answer(reported);
  }
  void perform(const response::Confirm& confirm) {
    query_.job_status([this, id = confirm.id](const auto&) {
      answer(response::Confirmed{id, true});
    });
  }
  void perform(const response::End& end) {
    const auto awaited = std::make_shared<std::size_t>(end.ranks.size());
    for (const auto& ranks : end.ranks) {
      query_.ask(std::nullopt, to_json(agent::EndHung{start_->round, ranks, "why", "stack"}),
                 [this, id = end.id, awaited](const auto&) {
                   if (--*awaited == 0) answer(response::EndAnswered{id, {}, {}});
                 });
    }
  }
  void perform(const response::ArmTimer& arm) {
    queue_.after(arm.after, [this, id = arm.id] { step(response::TimerExpired{id}); });
  }
  void perform(const auto&) {}

  EventQueue& queue_;
  std::size_t& count_;
  std::unique_ptr<rdzv::Leader> leader_;
  agent::JobQuery query_;
  WaitCore wait_;
  response::Core hangs_;
  std::optional<rdzv::RoundStart> start_;
  int judged_ = 0;
  std::size_t nodes_seen_ = 0;
};

class WaitingJob {
 public:
  explicit WaitingJob(int nodes) : network_(queue_, random_, 1, 2ms) {
    for (int number = 0; number < nodes; ++number) {
      const auto process = std::make_shared<Process>();
      nodes_.push_back(std::make_unique<WaitingNode>(
          queue_, io_, messages_, [&](rdzv::LeaderEvents events) -> std::unique_ptr<rdzv::Leader> {
            const std::string host = number == 0 ? kLeaderHost : "10.1.0.1";
            auto transport = network_.transport(host, 0, process);
            if (number == 0) return make_server(std::move(transport), nodes, std::move(events));
            return rdzv::make_round_client(std::move(transport), client_options(),
                                           std::move(events));
          }));
    }
    for (const auto& node : nodes_) node->join(nodes);
    run_until([this] { return std::ranges::all_of(nodes_, [](auto& n) { return n->runs(); }); });
    for (const auto& node : nodes_) {
      queue_.after(random_.time(0ms, 1s), [&node] { node->look(); });
    }
    first_ = std::ranges::find(nodes_, 0, &WaitingNode::rank)->get();
  }

  // The messages of each second.
  std::vector<std::size_t> wait(std::chrono::seconds duration) {
    std::vector<std::size_t> counts;
    for (auto second = 0s; second < duration; second += 1s) {
      const std::size_t before = messages_;
      run_until([this, end = queue_.now() + 1s] { return queue_.now() >= end; });
      counts.push_back(messages_ - before);
    }
    return counts;
  }
  WaitingNode& first() { return *first_; }

 private:
  static rdzv::RoundClientOptions client_options() {
    rdzv::RoundClientOptions options;
    options.leader = {kLeaderHost, kLeaderPort};
    return options;
  }
  std::unique_ptr<rdzv::Leader> make_server(std::shared_ptr<rdzv::Transport> transport, int nodes,
                                            rdzv::LeaderEvents events) {
    rdzv::RoundServerOptions options;
    options.round.min_nodes = options.round.max_nodes = nodes;
    return std::make_unique<rdzv::RoundServer>(std::move(transport), std::move(options),
                                               std::move(events),
                                               network_.bind(kLeaderHost, kLeaderPort));
  }
  void run_until(const std::function<bool()>& is_so) {
    while (!is_so() && queue_.run_next()) continue;
  }

  EventQueue queue_;
  Random random_{1};
  VirtualNetwork network_;
  boost::asio::io_context io_;  // does not run: every answer comes
  std::size_t messages_ = 0;
  std::vector<std::unique_ptr<WaitingNode>> nodes_;
  WaitingNode* first_ = nullptr;
};

class WaitingNodes : public ::testing::TestWithParam<int> {};

// In a second each node tells the first one that it waits, which is two messages; the first one asks all, and they answer, which
// is three for each.
TEST_P(WaitingNodes, SendMessagesInProportionToTheirNumber) {
  const auto nodes = static_cast<std::size_t>(GetParam());
  const bool is_full = std::getenv("DDPRUN_TEST_FULL") != nullptr;
  const std::chrono::seconds duration = is_full ? 10min : 30s;
  WaitingJob job(GetParam());
  const auto counts = job.wait(duration);
  EXPECT_LE(std::ranges::max(counts), 6 * nodes);
  EXPECT_GE(job.first().judged(), duration / 1s - 3);
  EXPECT_EQ(job.first().nodes_seen(), nodes);
}

// Two questions for stacks, one whether it is still so, and five times one for each of eight stacks; besides, they wait.
TEST_P(WaitingNodes, AVerdictAddsSoManyQuestionsToAll) {
  constexpr std::size_t kQuestions = 2 + 1 + 5 * response::kStacksMax;
  const auto nodes = static_cast<std::size_t>(GetParam());
  WaitingJob job(GetParam());
  job.wait(3s);
  job.first().find_hang();
  const auto counts = job.wait(10s);
  EXPECT_LE(std::ranges::max(counts), (6 + 3 * (response::kStacksMax + 3)) * nodes);
  std::size_t all = 0;
  for (const std::size_t count : counts) all += count;
  EXPECT_LE(all, (10 * 6 + 3 * kQuestions) * nodes);
  EXPECT_GE(all, 3 * kQuestions * (nodes - 1)) << "all of them were asked";
}

INSTANTIATE_TEST_SUITE_P(Of, WaitingNodes, ::testing::Values(16, 512),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace ddprun::sim
