// The round protocol as bytes: what agents and the leader say to each other over a connection (the
// README beside has the layout, byte by byte). Each side opens with an Opening of fixed size, which
// every version of the protocol keeps; then come frames: a u32 length, a u8 kind and a body.
// Integers are little-endian, a string is a u32 length and its bytes. Pure; any thread.
//
// encode() keeps every frame within the limits: long texts of failures are cut, and consequences
// beyond a number are left out, as are members. The mistake to avoid: sending a NodeHello whose names the launcher
// has not checked; decode() refuses names that are too long instead of cutting them.
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

inline constexpr std::uint16_t kRoundProtocolVersion = 3;

// The first bytes of a connection in either direction. The first of them is no query of c10d's
// store protocol, so that one port can speak both.
inline constexpr std::string_view kRoundMagic = "DDPR";
inline constexpr std::size_t kOpeningBytes = 40;
using Nonce = std::array<char, 32>;

struct Opening {
  std::uint16_t version = kRoundProtocolVersion;
  bool wants_proof = false;  // the leader's: whoever connects has to know the token
  Nonce nonce{};             // random, of this connection: what the other side's proof is about
  bool operator==(const Opening&) const = default;
};

std::string encode(const Opening& opening);
// Of exactly kOpeningBytes. kProtocol where the magic is not ours; a version is not judged here.
Result<Opening> decode_opening(std::string_view bytes);

// ---- frames of an agent

struct Connect {  // the first one of a connection
  std::uint64_t session = 0;
  std::uint64_t received = 0;      // what this side has of the session so far
  std::string proof;               // that it knows the token (token.h); empty: it has none
  std::optional<NodeHello> hello;  // opens the session, as its message 1; none: it is resumed
  bool operator==(const Connect&) const = default;
};

// ---- frames of the leader, each an answer to Connect

struct Welcome {
  std::uint64_t received = 0;
  // Chosen at random by who leads, when it begins to. Another one at the same endpoint is another
  // process, which knows nothing of what this one led.
  std::uint64_t leader_id = 0;
  std::string proof;  // that the leader knows the token too
  bool operator==(const Welcome&) const = default;
};
struct Rejected {  // before there is a session; then the connection is closed
  std::string sentence;
  bool operator==(const Rejected&) const = default;
};
struct Gone {  // a session was to be resumed that the leader does not know, or not any more
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

// With the length before it.
std::string encode(const AgentFrame& frame);
std::string encode(const LeaderFrame& frame);

// `payload`: kind and body, without the length. kProtocol: not what an agent (the leader) may say.
Result<AgentFrame> decode_agent_frame(std::string_view payload);
Result<LeaderFrame> decode_leader_frame(std::string_view payload);

// Cuts the bytes of one connection, however they arrive, into the payloads of frames. A length is
// judged before anything is kept for it.
class FrameReader {
 public:
  explicit FrameReader(std::size_t max_payload) : max_payload_(max_payload) {}

  void set_max_payload(std::size_t max_payload) { max_payload_ = max_payload; }

  void append(std::string_view bytes);
  // The next payload, valid until the next call of any member; nothing: it has not arrived whole.
  Result<std::optional<std::string_view>> next();
  // Takes `count` bytes that are no frame off the front; nothing: they have not all arrived.
  std::optional<std::string> take(std::size_t count);
  // The first byte that was not handed out yet; buffered() is not 0.
  char front() const { return buffer_[begin_]; }
  std::size_t buffered() const { return buffer_.size() - begin_; }

 private:
  std::size_t max_payload_;
  std::string buffer_;
  std::size_t begin_ = 0;  // of what was not handed out yet
};

}  // namespace ddprun::rdzv::wire
