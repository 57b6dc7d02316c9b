// The agents of one job on several nodes: nodes of a Network, or all on this machine, which needs
// no privileges. Passes the rendezvous options to each agent, and watches which rounds its workers
// run. Owned by one test, used from its thread; every wait has a deadline.
//
//   Cluster cluster({.meeting = Meeting::kC10d, .nnodes = "2:3"});
//   cluster.start(0);
//   cluster.start(1);
//   ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();    // two workers have met
//   cluster[1].signal(SIGKILL);
//
// Agents log what they wait for. Unless a test gives other actions, workers meet in the round's
// store, record that they run, and wait for let_finish(). next_round() returns every round only
// once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "tests/support/job.h"
#include "tests/support/network.h"

namespace ddprun::test {

// Exit codes as documented in the README.
inline constexpr int kRendezvousTimeout = 110;
inline constexpr int kLeaderLost = 111;
inline constexpr int kBelowMinimum = 112;

enum class Meeting {
  kOneNode,  // no options about nodes
  kStatic,   // --node-rank, --master-addr: node 0 leads
  kC10d,     // an endpoint on node 0
  kLeader,   // the same, served by `ddpctl leader` on node 0
  kEtcd,     // the agents elect the leader
};
std::ostream& operator<<(std::ostream& out, Meeting meeting);  // for a test's name

struct ClusterSetup {
  Meeting meeting = Meeting::kC10d;
  std::string nnodes = "2";
  int nproc = 1;                       // workers of each node
  std::vector<std::string> options{};  // of every agent, and of `ddpctl leader` if it knows them
  std::string conf{};                  // further pairs for --rdzv-conf
  std::string etcd{};                  // Meeting::kEtcd: its endpoints
  bool is_ipv6 = false;
  bool says_who_leads = true;  // on one machine; false: every node may become the c10d leader
  std::map<std::string, std::string> environment{};
  // What the workers do after they have met and recorded it. Empty: wait for let_finish(). {folder}
  // is replaced by folder().
  std::vector<std::string> actions{};
  Command program{};            // instead of all these actions
  bool is_on_fake_gpu = false;  // every agent
};

class Cluster {
 public:
  explicit Cluster(ClusterSetup setup, Network* network = nullptr);

  // Starts the agent of this node; its own options `more` come last. Meeting::kLeader starts the
  // leader before the first agent. An earlier agent of this node is kept for told() and
  // left_over().
  Job& start(int node, const std::vector<std::string>& more = {});
  Job& start_leader();
  void start_all(int nodes);  // node 0 gets the first ranks, and so on
  Job& operator[](int node) { return *agents_.at(node); }
  Job& leader() { return leader_ ? *leader_ : *agents_.at(0); }
  void forget(int node) { agents_.erase(node); }  // and kills what is left of it

  // The command of an agent, for cases that start() does not cover.
  Command command(int node, const std::vector<std::string>& more = {}) const;
  JobSetup on(int node, JobSetup setup = {}) const;

  // Waits for a round later than those returned before, in which exactly `world` workers run, with
  // the ranks 0 to `world` - 1; -1 if there is none in time.
  int next_round(int world, milliseconds deadline = kDeadline);
  // The last round in which a worker was started.
  int last_round() const;
  std::map<std::string, std::string> environment(int round, int rank) const;
  std::map<int, Stamp> workers(int round) const { return stamps(folder_.path(), round); }
  // The rank of each node's first worker in this round, by node.
  std::map<int, int> first_ranks(int round);

  // Meeting::kEtcd: the node whose agent listens at this port, the leader's; -1: none does.
  int node_at(std::uint16_t port) const;

  // let_finish(): the workers end with 0. wait(): returns how every agent ended.
  void let_finish() { write_file(folder_ / "finish", ""); }
  std::map<int, Ended> wait(milliseconds deadline = kDeadline);

  std::vector<std::string> left_over() const;  // processes of all agents and leaders
  std::string told() const;                    // all their output, for a failure message

  const TemporaryTree& folder() const { return folder_; }
  std::string address() const;  // of the leader
  std::uint16_t port() const { return port_; }
  std::string endpoint() const;

 private:
  ClusterSetup setup_;
  Network* network_;
  TemporaryTree folder_;
  UniqueFd held_port_;  // reserved for the leader
  std::uint16_t port_ = 29400;
  int seen_round_ = -1;
  std::vector<std::pair<std::string, std::unique_ptr<Job>>> replaced_;
  std::unique_ptr<Job> leader_;
  std::map<int, std::unique_ptr<Job>> agents_;
};

}  // namespace ddprun::test
