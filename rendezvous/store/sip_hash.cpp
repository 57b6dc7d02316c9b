#include "rendezvous/store/sip_hash.h"

#include <sys/random.h>

#include <bit>
#include <cstring>

namespace ddprun::rdzv {
namespace {

struct State {
  std::uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }

  void absorb(std::uint64_t word) {
    v3 ^= word;
    round();
    v0 ^= word;
  }
};

}  // namespace

std::uint64_t sip_hash(const HashSeed& seed, std::string_view bytes) {
  State state{seed[0] ^ 0x736f6d6570736575, seed[1] ^ 0x646f72616e646f6d,
              seed[0] ^ 0x6c7967656e657261, seed[1] ^ 0x7465646279746573};
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    state.absorb(word);
  }
  std::uint64_t last = std::uint64_t{bytes.size()} << 56;
  for (std::size_t i = 0; i < left; ++i)
    last |= std::uint64_t{static_cast<unsigned char>(at[i])} << (8 * i);
  state.absorb(last);
  state.v2 ^= 0xff;
  for (int i = 0; i < 3; ++i) state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

HashSeed random_hash_seed() {
  HashSeed seed{};
  // Fails only on kernels without the call; then the table is merely predictable.
  static_cast<void>(::getrandom(seed.data(), sizeof seed, GRND_NONBLOCK));
  return seed;
}

}  // namespace ddprun::rdzv
