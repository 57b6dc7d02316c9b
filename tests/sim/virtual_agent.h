// A simulated agent as a process: a VirtualNode and its Leader (a production shell over a virtual
// transport), connected as the supervisor's LeaderPort does it.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "rendezvous/leader/leader.h"
#include "rendezvous/round/liveness.h"
#include "tests/sim/virtual_node.h"

namespace ddprun::sim {

class VirtualAgent {
 public:
  struct Settings {
    int number = 0;  // counts all agents ever started
    int slot = 0;
    agent::NodeConfig node;
    bool leads_for_good = false;  // the leader is in this process and ends with this node
    rdzv::NodeHello hello;        // without last_round
    rdzv::KeepAlive keep_alive;
  };
  struct Hooks {  // for the invariants
    std::function<void(const rdzv::RoundStart&)> workers_start;
    std::function<void(GroupKey, const ExitStatus&, bool by_itself)> worker_ended;
    std::function<void(const rdzv::LeaderEvent&)> leader_says;
  };
  using MakeLeader = std::function<std::unique_ptr<rdzv::Leader>(rdzv::LeaderEvents)>;

  VirtualAgent(VirtualJob& job, Settings settings, ProcessPtr process, Hooks hooks);

  // Creates its leader and joins it.
  void start(const MakeLeader& make_leader);

  VirtualNode& node() { return node_; }
  const VirtualNode& node() const { return node_; }
  int number() const { return settings_.number; }
  int slot() const { return settings_.slot; }
  bool is_alive() const { return node_.process()->is_alive; }
  rdzv::Leader& leader() { return *leader_; }
  bool was_told_to_leave() const { return was_told_to_leave_; }
  // Whether a leader has sent it a message.
  bool was_welcome() const { return was_welcome_; }

  void signal(bool is_preemption);                                     // SIGTERM or SIGUSR1
  void say(const rdzv::ToLeader& message) { leader_->tell(message); }  // ddpctl

 private:
  void join(std::optional<rdzv::LastRound> last_round);
  void hear(rdzv::LeaderEvent event);
  void leave_leader(std::function<void()> done);
  void left_leader();
  void exit();

  VirtualJob& job_;
  const Settings settings_;
  const Hooks hooks_;
  VirtualNode node_;
  std::unique_ptr<rdzv::Leader> leader_;
  std::function<void()> when_left_;  // set while the node leaves its leader at the end
  bool was_told_to_leave_ = false;
  bool was_welcome_ = false;
};

}  // namespace ddprun::sim
