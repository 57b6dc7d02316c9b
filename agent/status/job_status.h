// A whole job as one agent can tell of it: what the leader says of who is there, and the status of
// every node that answered in time. What `ddpctl status --json` prints, and what the live page and
// the metrics are made of. Values: copy freely, any thread. JSON as in node_status.h.
//
// The mistake to avoid: counting only `nodes`. Who does not answer in time is in `late`, and may be
// well; who is missing is in `leader`, as a number and, where ranks are exact, by its rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/status/node_status.h"

namespace ddprun::agent {

// One node as its leader sees it.
struct MemberStatus {
  enum class State {
    kInRound,       // of the group that runs, or ran last
    kWaiting,       // will be in the next round
    kSpare,         // there is no room for it
    kDisconnected,  // its connection is broken; it has a moment to come back
  };
  std::uint32_t id = 0;  // the leader's number for it
  std::string host;
  std::string address;  // that its workers are reached at
  int workers = 1;
  std::optional<int> node_rank;  // in the round; outside of one: that it asks for
  State state = State::kWaiting;

  bool operator==(const MemberStatus&) const = default;
};
std::string_view name_of(MemberStatus::State state);  // "in_round", …

struct LeaderStatus {
  std::string state;  // "gathering", "pausing", "opening", "running", "stopping", "ended"
  Round round{};      // that runs or is to come
  int min_nodes = 1;
  int max_nodes = 1;
  int missing = 0;  // while a round runs: nodes that there is room for; else what the minimum lacks
  std::vector<int> missing_ranks;                 // where ranks are exact
  std::optional<std::chrono::microseconds> left;  // while it waits for nodes: until it decides
  int restarts = 0;
  int max_restarts = 0;
  std::vector<MemberStatus> members;
  int members_left_out = 0;  // of very many

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
  std::string version;                         // of the ddprun that answers
  std::chrono::system_clock::time_point when;  // it was asked
  std::string asked_host;                      // whose agent answers
  std::optional<LeaderStatus> leader;          // none: not found yet, or it does not answer
  std::vector<NodeStatus>
      nodes;  // by node rank; those of no round last. The asked one is always there
  std::vector<LateNode> late;
  int nodes_left_out = 0;  // of very many: the last of `nodes`

  bool operator==(const JobStatus&) const = default;
};

std::string to_json(const JobStatus& status);
// In so many bytes: the events, older restarts, then workers, members and nodes are left out.
std::string to_json_within(JobStatus status, std::size_t bytes_max);
Result<JobStatus> job_status_from(std::string_view json);

}  // namespace ddprun::agent
