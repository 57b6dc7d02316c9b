// What one worker sees: its environment and its arguments, as pure functions of the job, the round
// and the local rank. The variables are torchrun 2.11's, with its values, except:
//   TORCHELASTIC_RESTART_COUNT  the round number, the same on every node (torchrun counts each
//                               node's own failures, so its value differs between nodes)
//   MASTER_ADDR                 as given or found, never a reverse-resolved name
// Any thread may call these functions.
#pragma once

#include <string>
#include <vector>

#include "agent/job.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

// The job must outlive the result of this and of the next one.
ChildEnvironment worker_environment(const Job& job, const rdzv::RoundStart& start, int local_rank,
                                    const std::string& error_file);

// What a process has that will become a worker of this job: the variables that are the same for all
// workers in all rounds.
ChildEnvironment zygote_environment(const Job& job);

// The program's argv, with $local_rank replaced in the user's arguments (substitute.h).
std::vector<std::string> worker_arguments(const Program& program, int local_rank);

}  // namespace ddprun::agent
