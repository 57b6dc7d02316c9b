// Requests between nodes (status, logs), relayed by the leader over the existing connections, so
// that no node needs an open port for them. The leader passes texts on and stores nothing; it adds
// only its own view of the members (LeaderView). Values.
//
// Unlike messages (resend_queue.h), requests and replies are not numbered, confirmed or resent:
// what a broken or slow connection loses is lost, and the asker shows that node as late. So no
// flood of requests can delay a round. Do not base decisions on replies, because they may never
// come.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/ids.h"

namespace ddprun::rdzv {

// The leader's view of the job. Enumerators are numbers on the wire: add new ones at the end.
struct LeaderView {
  enum class State { kGathering, kPausing, kOpening, kRunning, kStopping, kEnded };
  enum class Place {
    kInRound,       // in the group that runs, starts or stops
    kWaiting,       // for the next round
    kSpare,         // there is no room for it
    kDisconnected,  // its connection is broken and may still be resumed
    kLeftOut,       // it waits, and takes part in no round while enough others are there
  };
  struct Member {
    NodeId id{};
    std::string host;
    std::string address;
    int workers = 1;
    std::optional<int> node_rank;  // in the round; without a round: the one it asks for
    Place place = Place::kWaiting;
    bool leads = false;  // the leader is in its agent
    bool operator==(const Member&) const = default;
  };

  State state = State::kGathering;
  Round round{};  // that runs or comes next
  int min_nodes = 1;
  int max_nodes = 1;
  int ready = 0;                                 // nodes that form the group or could form one
  std::optional<std::chrono::nanoseconds> left;  // while it waits for nodes: until it decides
  int restarts = 0;
  int max_restarts = 0;
  bool has_exact_ranks = false;
  bool is_finishing =
      false;  // a worker of the round has ended with 0: its nodes do not change any more
  struct LeftOut {
    std::string host;
    std::string address;
    std::string why;
    bool operator==(const LeftOut&) const = default;
  };
  std::vector<LeftOut>
      left_out;  // hosts that are to be left out; some may be in the round, some not here
  std::vector<Member> members;
  int members_left_out = 0;  // too many for one frame

  bool operator==(const LeaderView&) const = default;
};

// In a request to the leader: the node of the round that has rank 0, whichever that is.
inline constexpr NodeId kFirstNode{UINT32_MAX};

// `peer` in a request to the leader: the node to ask, nullopt for all others; in one from the
// leader: the asker.
struct PeerRequest {
  std::uint64_t id = 0;  // chosen by the asker, to match replies
  std::optional<NodeId> peer;
  std::string text;  // limits::kMaxQuestionBytes at most
  bool operator==(const PeerRequest&) const = default;
};

// `peer` in a reply to the leader: the asker; in one from the leader: the node that replies.
struct PeerReply {
  std::uint64_t id = 0;
  NodeId peer{};
  std::string text;  // limits::kMaxAnswerBytes at most; empty: there is no such node
  bool operator==(const PeerReply&) const = default;
};

// The leader's own reply to a request to all nodes, sent before the others: which nodes should
// reply.
struct PeerAck {
  std::uint64_t id = 0;
  NodeId you{};  // the asker, which is one of the members
  LeaderView view;
  bool operator==(const PeerAck&) const = default;
};

}  // namespace ddprun::rdzv
