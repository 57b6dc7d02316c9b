// torchrun's event records (--event-log-handler=console): one JSON line each, with torchrun's
// fields, including the timestamp, which is always zero. Pure. As torchrun does, a worker's end is
// written only when the job has ended, and AGENT SUCCEEDED whenever the agent itself worked.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "agent/job.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

// The fields that all records of one moment have in common.
struct TorchrunScene {
  const Job& job;
  std::string host;
  std::chrono::seconds run_time{};  // since the job's start
  rdzv::RoundStart round;           // the latest; world_size 0: there was none yet
};

// RENDEZVOUS, ASSIGN_WORKER_RANKS, SUCCEEDED, FAILED. raw_error: empty for none.
std::string torchrun_agent_line(const TorchrunScene& scene, std::string_view state,
                                std::optional<std::chrono::microseconds> duration,
                                std::string_view raw_error = {});

std::string torchrun_start_line(const TorchrunScene& scene, int local_rank, int pid);

// SUCCEEDED, FAILED (with the failure), or TERMINATED: exit code 0 in a job that failed.
std::string torchrun_end_line(const TorchrunScene& scene, int local_rank, int pid,
                              bool has_job_succeeded,
                              const std::optional<rdzv::WorkerFailure>& failure);

}  // namespace ddprun::agent
