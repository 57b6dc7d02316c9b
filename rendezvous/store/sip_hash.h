// SipHash-1-3 of a byte string under a secret seed: the hash for tables whose keys come from
// outside, so that nobody can choose keys that collide. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ddprun::rdzv {

using HashSeed = std::array<std::uint64_t, 2>;

std::uint64_t sip_hash(const HashSeed& seed, std::string_view bytes);
HashSeed random_hash_seed();

}  // namespace ddprun::rdzv
