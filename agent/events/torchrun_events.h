// torchrun's own event records (--event-log-handler=console), for programs that read those: one
// JSON line each, with torchrun's names, field by field, its always-zero timestamp included. Pure.
//
// torchrun writes a worker's end only when the job has ended, and AGENT SUCCEEDED whenever the
// agent did its work, also after a worker failed; so does this.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

// What is the same in all records of one moment.
struct TorchrunScene {
  std::string run_id;
  std::string role;
  std::string host;
  std::string rdzv_backend;
  std::string entry_point;          // file name of the program that is executed
  std::chrono::seconds run_time{};  // since the job's start
  rdzv::RoundStart round;           // latest one; world_size 0: there was none yet
};

// RENDEZVOUS, ASSIGN_WORKER_RANKS, SUCCEEDED, FAILED. raw_error: empty for none.
std::string torchrun_agent_line(const TorchrunScene& scene, std::string_view state,
                                std::optional<std::chrono::microseconds> duration,
                                std::string_view raw_error = {});

std::string torchrun_start_line(const TorchrunScene& scene, int local_rank, int pid);

// SUCCEEDED, FAILED (with the failure), or TERMINATED: ended well in a job that failed.
std::string torchrun_end_line(const TorchrunScene& scene, int local_rank, int pid,
                              bool has_job_succeeded,
                              const std::optional<rdzv::WorkerFailure>& failure);

}  // namespace ddprun::agent
