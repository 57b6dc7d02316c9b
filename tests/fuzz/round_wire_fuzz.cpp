// Bytes of a connection between an agent and the leader: however they are cut they are the same
// frames, and what can be read of them is written as the same bytes again.
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/limits.h"
#include "rendezvous/round/round_wire.h"

using namespace ddprun::rdzv;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

struct Frames {
  std::vector<std::string> payloads;
  bool is_refused = false;
  std::size_t left = 0;  // of a frame that has not arrived whole
  friend bool operator==(const Frames&, const Frames&) = default;
};

Frames cut_into_frames(std::string_view bytes, unsigned cut) {
  wire::FrameReader reader(limits::kMaxConnectBytes);
  Frames frames;
  while (!bytes.empty() && !frames.is_refused) {
    const std::string_view part = bytes.substr(0, cut);
    reader.append(part);
    bytes.remove_prefix(part.size());
    cut = cut * 5 % 31 + 1;
    auto next = reader.next();
    for (; next && *next; next = reader.next()) frames.payloads.emplace_back(**next);
    frames.is_refused = !next;
  }
  // What follows a length that is refused is of no interest, however much of it was there.
  if (!frames.is_refused) frames.left = reader.buffered();
  return frames;
}

void read_and_write(std::string_view payload) {
  constexpr std::size_t kLengthBytes = 4;
  if (const auto frame = wire::decode_agent_frame(payload))
    require(wire::encode(*frame).substr(kLengthBytes) == payload);
  if (const auto frame = wire::decode_leader_frame(payload))
    require(wire::encode(*frame).substr(kLengthBytes) == payload);
}

}  // namespace

// The first byte says how to cut the rest, which is taken for a connection's bytes, and for the
// payload of one frame, since lengths are hard to guess.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  read_and_write(bytes);
  const Frames frames = cut_into_frames(bytes, 1u << 30);
  require(cut_into_frames(bytes, 1 + data[0] % 31) == frames);
  for (const auto& payload : frames.payloads) read_and_write(payload);
  if (const auto opening = wire::decode_opening(bytes.substr(0, wire::kOpeningBytes)))
    require(wire::decode_opening(wire::encode(*opening)) == *opening);
  return 0;
}
