// What nodes ask each other about themselves (status, logs), relayed by the leader over the
// connections that are there anyway: no node has an open port for it. The leader passes texts on and
// keeps nothing; it knows only who is there, which it says itself (LeaderView). Values.
//
// Nothing here is numbered, confirmed or said again, as messages are (resend_queue.h): what a broken or
// slow connection loses is lost, and who asked shows that node as late. So no question, and no flood
// of them, can delay a round. The mistake to avoid: deciding something by an answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/ids.h"

namespace ddprun::rdzv {

// The leader's account of the job.
struct LeaderView {
  enum class State { kGathering, kPausing, kOpening, kRunning, kStopping, kEnded };
  enum class Place {
    kInRound,       // of the group that runs, or is being started or stopped
    kWaiting,       // for the next one
    kSpare,         // there is no room for it
    kDisconnected,  // its connection is broken; it has a moment to come back
  };
  struct Member {
    NodeId id{};
    std::string host;
    std::string address;
    int workers = 1;
    std::optional<int> node_rank;  // in the round; outside of one: that it asks for
    Place place = Place::kWaiting;
    bool operator==(const Member&) const = default;
  };

  State state = State::kGathering;
  Round round{};  // that runs or is to come
  int min_nodes = 1;
  int max_nodes = 1;
  int ready = 0;                                 // nodes that form the group, or could
  std::optional<std::chrono::nanoseconds> left;  // while it waits: until it decides
  int restarts = 0;
  int max_restarts = 0;
  bool has_exact_ranks = false;
  std::vector<Member> members;
  int members_left_out = 0;  // of very many

  bool operator==(const LeaderView&) const = default;
};

// `peer`, on the way to the leader: whom to ask, none: all others. From the leader: who asks.
struct PeerRequest {
  std::uint64_t id = 0;  // the asker's, who finds the answers by it
  std::optional<NodeId> peer;
  std::string text;  // limits::kMaxQuestionBytes at most
  bool operator==(const PeerRequest&) const = default;
};

// `peer`, on the way to the leader: who had asked. From the leader: who answers.
struct PeerReply {
  std::uint64_t id = 0;
  NodeId peer{};
  std::string text;  // limits::kMaxAnswerBytes at most; empty: that node is not there
  bool operator==(const PeerReply&) const = default;
};

// The leader's own answer to a question to all, and the first one: whose answers are to come.
struct PeerAck {
  std::uint64_t id = 0;
  NodeId you{};  // the asker, who is among the members too
  LeaderView view;
  bool operator==(const PeerAck&) const = default;
};

}  // namespace ddprun::rdzv
