// The agents of one job on several nodes: of a Network, or all on this machine, where they need no
// right of any kind. Says to each agent how the nodes meet, and watches which rounds its workers
// run. Owned by one test, used from its thread; every wait has a deadline.
//
//   Cluster cluster({.meeting = Meeting::kC10d, .nnodes = "2:3"});
//   cluster.start(0);
//   cluster.start(1);
//   ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();    // two workers have met
//   cluster[1].signal(SIGKILL);
//
// Agents log what they await. Unless a test says what they do, workers meet in the round's store, note that they run, and wait
// for let_finish(). The mistake to avoid: asking for a round that has been asked for already.
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

// Exit codes as README promises them.
inline constexpr int kRendezvousTimeout = 110;
inline constexpr int kLeaderLost = 111;
inline constexpr int kBelowMinimum = 112;

enum class Meeting {
  kOneNode,  // nothing is said of nodes
  kStatic,   // --node-rank, --master-addr: node 0 leads
  kC10d,     // an endpoint on node 0
  kLeader,   // the same, served by `ddpctl leader` beside node 0's agent
  kEtcd,     // the agents elect the leader
};
std::ostream& operator<<(std::ostream& out, Meeting meeting);  // as part of a test's name

struct ClusterSetup {
  Meeting meeting = Meeting::kC10d;
  std::string nnodes = "2";
  int nproc = 1;                       // workers of each node
  std::vector<std::string> options{};  // of every agent; of `ddpctl leader` too, where it has them
  std::string conf{};                  // of --rdzv-conf, further pairs
  std::string etcd{};                  // Meeting::kEtcd: its endpoints
  bool is_ipv6 = false;
  bool says_who_leads = true;  // on one machine; else the c10d endpoint is everybody's
  std::map<std::string, std::string> environment{};
  // What the workers do after they have met and said so. Empty: wait for let_finish(). The text
  // {folder} stands for folder().
  std::vector<std::string> actions{};
  Command program{};  // instead of all that
};

class Cluster {
 public:
  explicit Cluster(ClusterSetup setup, Network* network = nullptr);

  // The agent of this node: more options of its own come last. Meeting::kLeader starts the leader
  // before the first agent. One that was started before is kept: told() and left_over() have it.
  Job& start(int node, const std::vector<std::string>& more = {});
  Job& start_leader();
  void start_all(int nodes);  // the first ranks are node 0's, and so on
  Job& operator[](int node) { return *agents_.at(node); }
  Job& leader() { return leader_ ? *leader_ : *agents_.at(0); }
  void forget(int node) { agents_.erase(node); }  // and whatever is left of it

  // The command of an agent, for what start() cannot say.
  Command command(int node, const std::vector<std::string>& more = {}) const;
  JobSetup on(int node, JobSetup setup = {}) const;

  // Waits for a round later than those that were returned before in which exactly `world` workers
  // run, with the ranks 0 to `world` - 1; -1 if there is none in time.
  int next_round(int world, milliseconds deadline = kDeadline);
  // The last round that any worker was started in.
  int last_round() const;
  std::map<std::string, std::string> environment(int round, int rank) const;
  std::map<int, Stamp> workers(int round) const { return stamps(folder_.path(), round); }
  // The rank of each node's first worker in this round, by node.
  std::map<int, int> first_ranks(int round);

  // Meeting::kEtcd: the node whose agent listens at this port, where the leader is said to be; -1:
  // none does.
  int node_at(std::uint16_t port) const;

  // Lets the workers end with 0; then how every agent ended.
  void let_finish() { write_file(folder_ / "finish", ""); }
  std::map<int, Ended> wait(milliseconds deadline = kDeadline);

  std::vector<std::string> left_over() const;  // of all agents and leaders
  std::string told() const;                    // all that they wrote, for the message of a failure

  const TemporaryTree& folder() const { return folder_; }
  std::string address() const;  // where the leader is, and
  std::uint16_t port() const { return port_; }
  std::string endpoint() const;

 private:
  ClusterSetup setup_;
  Network* network_;
  TemporaryTree folder_;
  UniqueFd held_port_;  // so that no other program gets it before the leader has it
  std::uint16_t port_ = 29400;
  int seen_round_ = -1;
  std::vector<std::pair<std::string, std::unique_ptr<Job>>> replaced_;
  std::unique_ptr<Job> leader_;
  std::map<int, std::unique_ptr<Job>> agents_;
};

}  // namespace ddprun::test
