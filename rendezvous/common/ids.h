// Strong types for numbers that must not be mixed up.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun {

// One run of the group; counts from 0. A message of an older round than the current one is stale.
enum class Round : std::uint32_t {};

constexpr std::uint32_t number(Round round) { return static_cast<std::uint32_t>(round); }
constexpr Round next(Round round) { return Round{number(round) + 1}; }
inline std::string to_string(Round round) { return std::to_string(number(round)); }

// One agent; its leader assigns these in the order of arrival.
enum class NodeId : std::uint32_t {};

constexpr std::uint32_t number(NodeId node) { return static_cast<std::uint32_t>(node); }

}  // namespace ddprun
