#include "agent/core/gpu_room.h"

#include <algorithm>

#include "rendezvous/common/text/bytes.h"

namespace ddprun::agent {
namespace {

using link::GpuUse;
using link::Preparation;

std::uint64_t bytes_of(Preparation preparation, const GpuUse& use) {
  switch (preparation) {
    case Preparation::kWhole:
      return std::min(use.used_bytes, UINT64_MAX - kContextBytes) + kContextBytes;
    case Preparation::kContext:
      return kContextBytes;
    case Preparation::kNothing:
      break;
  }
  return 0;
}

}  // namespace

Preparation preparation_of(std::size_t local_rank, const std::vector<GpuUse>& uses,
                           const std::vector<std::optional<Preparation>>& standbys) {
  const GpuUse& its = uses.at(local_rank);
  if (!its.is_on_gpu()) return Preparation::kWhole;
  // The least that a worker has seen, since some have measured before others had all that they take.
  std::uint64_t left = its.free_bytes;
  std::uint64_t kept = 0;
  for (std::size_t other = 0; other < uses.size(); ++other) {
    if (uses[other].id != its.id) continue;
    if (uses[other].is_known()) left = std::min(left, uses[other].free_bytes);
    if (other == local_rank || !standbys.at(other)) continue;
    const std::uint64_t bytes = bytes_of(*standbys[other], uses[other]);
    kept = kept > UINT64_MAX - bytes ? UINT64_MAX : kept + bytes;
  }
  left = left > kept ? left - kept : 0;
  for (const Preparation each : {Preparation::kWhole, Preparation::kContext}) {
    if (left >= bytes_of(each, its)) return each;
  }
  return Preparation::kNothing;
}

std::string why_not_whole(const GpuUse& use) {
  return "GPU " + std::to_string(use.index) + " has " + gibibytes(use.free_bytes) +
         " GiB free, and a second process of its rank would need " +
         gibibytes(bytes_of(Preparation::kWhole, use));
}

}  // namespace ddprun::agent
