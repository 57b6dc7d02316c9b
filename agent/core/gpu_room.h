// How far a standby for a rank is prepared whose worker's model is on a GPU. A pure decision: a prepared standby has its model
// there beside that of its worker, and one that takes more than there is ends the worker.
//
//   free there, beside what is kept for the other standbys      the standby
//   a context, and what the worker takes at most                 makes its set-up, and waits
//   a context                                                    makes a context, and waits; its set-up follows the death
//   less                                                         waits; all follows the death
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/worker_abi/worker_link.h"

namespace ddprun::agent {

// A context of CUDA with its libraries, and the buffers of a communicator, with some room: H200 and NCCL 2.28 take 0.6 GB.
inline constexpr std::uint64_t kContextBytes = std::uint64_t{1} << 30;

// `uses`, `standbys`: of all ranks, the latter of those for which one waits or is made.
link::Preparation preparation_of(std::size_t local_rank, const std::vector<link::GpuUse>& uses,
                                 const std::vector<std::optional<link::Preparation>>& standbys);

// Why it is not whole: a sentence without its full stop.
std::string why_not_whole(const link::GpuUse& use);

}  // namespace ddprun::agent
