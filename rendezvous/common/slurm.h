// Parses some texts of Slurm, for the launcher and for programs that srun starts directly: lists of
// nodes, and the numbers of jobs and steps. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun {

// More hosts than any real list has; a longer list is a typing error in a range.
inline constexpr std::size_t kMaxHostsInList = 1 << 17;

// "gpu[003-005,9]-ib,login" gives gpu003-ib, gpu004-ib, gpu005-ib, gpu9-ib and login, as `scontrol
// show hostnames` does, with the same hosts in the same order. (Slurm itself accepts no text after
// the last brackets.) An Error says what is wrong with the list and where.
Result<std::vector<std::string>> expand_host_list(std::string_view list);

// The number in SLURM_STEP_ID; nullopt if it is not a number, or a reserved one (batch script,
// interactive shell, …).
std::optional<std::uint64_t> slurm_step(std::string_view step_id);

// The port at which the ranks of a step meet: 12000 to 31999, below the usual ephemeral ports, and
// different for each job and for each step of a job on the same nodes.
std::uint16_t slurm_port(std::uint64_t job, std::uint64_t step);

}  // namespace ddprun
