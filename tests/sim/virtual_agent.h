// A simulated agent as a process: a VirtualNode and its Leader (a shipped shell, over a virtual
// transport), and between them what the supervisor's LeaderPort does.
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
    int number = 0;  // of all that were ever started
    int slot = 0;
    agent::NodeConfig node;
    bool leads_for_good = false;  // the leader is here, and ends with this node
    rdzv::NodeHello hello;        // but for what it knows of the last round
    rdzv::KeepAlive keep_alive;
  };
  struct Hooks {  // for what must hold
    std::function<void(const rdzv::RoundStart&)> workers_start;
    std::function<void(GroupKey, const ExitStatus&, bool by_itself)> worker_ended;
    std::function<void(const rdzv::LeaderEvent&)> leader_says;
  };
  using MakeLeader = std::function<std::unique_ptr<rdzv::Leader>(rdzv::LeaderEvents)>;

  VirtualAgent(VirtualJob& job, Settings settings, ProcessPtr process, Hooks hooks);

  // Makes its leader, and joins it.
  void start(const MakeLeader& make_leader);

  VirtualNode& node() { return node_; }
  const VirtualNode& node() const { return node_; }
  int number() const { return settings_.number; }
  int slot() const { return settings_.slot; }
  bool is_alive() const { return node_.process()->is_alive; }
  rdzv::Leader& leader() { return *leader_; }
  bool was_told_to_leave() const { return was_told_to_leave_; }
  // Some leader has said something to it.
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
  std::function<void()> when_left_;  // it, at the end; none: the node does not leave it
  bool was_told_to_leave_ = false;
  bool was_welcome_ = false;
};

}  // namespace ddprun::sim
