// The round protocol as bytes: the messages between agents and the leader over a connection
// (rendezvous/README.md has the layout, byte by byte). Each side opens with an Opening of fixed
// size, which every version of the protocol keeps; then come frames: a u32 length, a u8 kind and a
// body. Integers are little-endian, a string is a u32 length and its bytes. Pure; any thread.
//
// encode() keeps every frame within the limits: long texts of failures are cut, and consequences
// beyond a number are left out, as are members. Names are not cut, and decode() refuses names that
// are too long, so the launcher must check the names of a NodeHello.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "rendezvous/common/result.h"
#include "rendezvous/round/peer_requests.h"
#include "rendezvous/round/resend_queue.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv::wire {

inline constexpr std::uint16_t kRoundProtocolVersion = 10;

// The first bytes of a connection in either direction. The first one is not a query of c10d's store
// protocol, so that one port can serve both.
inline constexpr std::string_view kRoundMagic = "DDPR";
inline constexpr std::size_t kOpeningBytes = 40;
using Nonce = std::array<char, 32>;

// What the leader wants of an agent (leader/node_proof.h).
enum class Wants { kNothing, kToken, kMunge };

struct Opening {
  std::uint16_t version = kRoundProtocolVersion;
  Wants wants = Wants::kNothing;  // set by the leader
  Nonce nonce{};                  // random, per connection: input of the other side's proof
  bool operator==(const Opening&) const = default;
};

std::string encode(const Opening& opening);
// `bytes` has exactly kOpeningBytes. kProtocol if the magic is wrong; the version is not checked
// here.
Result<Opening> decode_opening(std::string_view bytes);

// ---- frames of an agent

struct Connect {  // the first one of a connection
  std::uint64_t session = 0;
  std::uint64_t received = 0;      // the last message number received in the session
  std::string proof;               // as the leader wants it; empty: the agent has none
  std::optional<NodeHello> hello;  // opens the session, as its message 1; nullopt: resumes it
  bool operator==(const Connect&) const = default;
};

// ---- frames of the leader, each an answer to Connect

struct Welcome {
  std::uint64_t received = 0;
  // Chosen at random when a leader starts. A different id at the same endpoint means a new leader
  // process, which does not know the sessions of this one.
  std::uint64_t leader_id = 0;
  std::string proof;  // the leader's own; empty if it wanted none
  bool operator==(const Welcome&) const = default;
};
struct Rejected : WithSentence {};  // sent before there is a session; then the connection is closed
struct Gone {  // the leader does not know the session to be resumed, or no longer
  std::uint64_t leader_id = 0;
  bool operator==(const Gone&) const = default;
};

// ---- frames of both

struct Heartbeat {
  std::uint64_t received = 0;
  bool operator==(const Heartbeat&) const = default;
};
template <typename Body>
struct Message {
  std::uint64_t number = 0;
  std::uint64_t received = 0;
  Body body;
  bool operator==(const Message&) const = default;
};

using AgentFrame = std::variant<Connect, Heartbeat, Message<ToLeader>, PeerRequest, PeerReply>;
using LeaderFrame = std::variant<Welcome, Rejected, Gone, Heartbeat, Message<ToAgent>, PeerRequest,
                                 PeerReply, PeerAck>;

// Including the length.
std::string encode(const AgentFrame& frame);
std::string encode(const LeaderFrame& frame);

// `payload`: kind and body, without the length. kProtocol: an agent (the leader) must not send
// this.
Result<AgentFrame> decode_agent_frame(std::string_view payload);
Result<LeaderFrame> decode_leader_frame(std::string_view payload);

// Splits the bytes of one connection, in whatever pieces they arrive, into the payloads of frames.
// A length is checked before memory is used for it.
class FrameReader {
 public:
  explicit FrameReader(std::size_t max_payload) : max_payload_(max_payload) {}

  void set_max_payload(std::size_t max_payload) { max_payload_ = max_payload; }

  void append(std::string_view bytes);
  // The next payload, valid until the next call of any member; nullopt: it is not complete yet.
  Result<std::optional<std::string_view>> next();
  // Removes `count` bytes that are not a frame from the front; nullopt: they have not all arrived.
  std::optional<std::string> take(std::size_t count);
  // The first byte that was not returned yet; buffered() must not be 0.
  char front() const { return buffer_[begin_]; }
  std::size_t buffered() const { return buffer_.size() - begin_; }

 private:
  std::size_t max_payload_;
  std::string buffer_;
  std::size_t begin_ = 0;  // of the bytes that were not returned yet
};

}  // namespace ddprun::rdzv::wire
