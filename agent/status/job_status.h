// The status of a whole job, as one agent knows it: the leader's list of nodes, and the status of
// every node that answered in time; one that did not is in `late`, and may be well. `ddpctl status
// --json` prints it; the live page is made of it. Values: copy freely, any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/status/node_status.h"
#include "rendezvous/round/hang_core.h"

namespace ddprun::agent {

// One node, as the leader knows it.
struct MemberStatus {
  enum class State {
    kInRound,       // takes part in the current round, or in the last one
    kWaiting,       // will be in the next round
    kSpare,         // there is no room for it
    kDisconnected,  // its connection is broken; it may come back within reconnect_grace
    kLeftOut,       // it waits, and takes part in no round while enough others are there
  };
  std::uint32_t id = 0;  // the leader's number for it
  std::string host;
  std::string address;  // by which its workers are reached
  int workers = 1;
  std::optional<int> node_rank;  // in the round; outside of a round: the rank that it asked for
  State state = State::kWaiting;
  bool leads = false;  // its agent has the leader: where it ends, the job ends
  std::string left_out =
      {};  // why it is to be left out, also while it is in a round; empty: it is not

  bool operator==(const MemberStatus&) const = default;
};
std::string_view name_of(MemberStatus::State state);  // "in_round", …

struct LeaderStatus {
  std::string state;  // "gathering", "pausing", "opening", "running", "stopping", "ended"
  Round round{};      // the current or the next one
  int min_nodes = 1;
  int max_nodes = 1;
  int missing = 0;  // while a round runs: free places; else nodes missing to the minimum
  bool has_exact_ranks = false;
  std::vector<int> missing_ranks;                 // if ranks are exact
  std::optional<std::chrono::microseconds> left;  // while it waits for nodes: time until it decides
  int restarts = 0;
  int max_restarts = 0;
  bool is_finishing = false;  // a worker has ended with 0: the nodes do not change any more
  struct LeftOut {
    std::string host;
    std::string address;
    std::string why;
    bool operator==(const LeftOut&) const = default;
  };
  std::vector<LeftOut> left_out;  // hosts that are to be left out, also those that are not here
  std::vector<MemberStatus> members;
  int members_left_out = 0;  // members that are not in the list, if there are very many

  bool operator==(const LeaderStatus&) const = default;
};

// A node that has not answered.
struct LateNode {
  std::uint32_t id = 0;
  std::string host;
  std::string why;  // for people

  bool operator==(const LateNode&) const = default;
};

struct JobStatus {
  std::string run_id;
  std::string program;
  std::string version;                         // of the ddprun that made this
  std::chrono::system_clock::time_point when;  // when the status was requested
  std::string asked_host;                      // the host of the agent that made this
  std::optional<LeaderStatus> leader;          // none: not found yet, or it does not answer
  std::vector<NodeStatus>
      nodes;  // by node rank; nodes without a round last. The node that made this is always there
  std::vector<LateNode> late;
  int nodes_left_out = 0;  // nodes that are not in the list, if there are very many

  bool operator==(const JobStatus&) const = default;
};

// What find_hangs() takes: the workers that run in the same round as the first node's.
std::vector<rdzv::RankCalls> calls_of(const JobStatus& status);

std::string to_json(const JobStatus& status);
// At most `bytes_max` long: events, older restarts, then workers, members and nodes are left out.
std::string to_json_within(JobStatus status, std::size_t bytes_max);
Result<JobStatus> job_status_from(std::string_view json);

}  // namespace ddprun::agent
