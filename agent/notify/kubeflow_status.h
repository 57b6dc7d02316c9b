// A report of the job's progress to Kubeflow Trainer (the trainerStatus of KEP-2779), as values.
// Pure; kubeflow_reporter.h sends it. Do not report before a worker has reported a step: a report
// replaces the whole status of the TrainJob, also what the program itself has reported there.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/status/node_status.h"
#include "rendezvous/common/environment.h"

namespace ddprun::agent {

// From the variables that Trainer sets in a pod: KUBEFLOW_TRAINER_SERVER_URL, _TOKEN, _CA_CERT;
// its first release called them KUBEFLOW_TRAINER_STATUS_*.
struct TrainerEndpoint {
  std::string url;
  std::string url_variable;    // where the url came from
  std::string token_variable;  // where the token's file came from
  std::string token_file;      // empty: none given
  std::string ca_file;         // empty: the system's CAs
};
std::optional<TrainerEndpoint> trainer_endpoint(const Environment& environment);

// The content of a token file as the text for a header, or what is wrong with it.
Result<std::string> bearer_token(std::string_view file_text);

struct JobProgress {
  std::int64_t step = 0;         // done by rank 0
  std::int64_t total_steps = 0;  // 0: not known
  Round round{};
  int restarts = 0;
  int world_size = 1;
  std::vector<NamedValue> values = {};  // rank 0's

  bool operator==(const JobProgress&) const = default;
};

// The progress of rank 0 stands for the job. None on other nodes, and before rank 0 reports a step.
std::optional<JobProgress> job_progress_of(const NodeSnapshot& node);

// Estimates the remaining time from the speed since the first step that was seen in this round.
class RemainingTime {
 public:
  std::optional<std::chrono::seconds> estimate(const JobProgress& progress,
                                               std::chrono::steady_clock::time_point now);

 private:
  std::optional<Round> round_;
  std::int64_t first_step_ = 0;
  std::chrono::steady_clock::time_point first_at_;
};

// The JSON of a report.
std::string kubeflow_status(const JobProgress& progress,
                            std::optional<std::chrono::seconds> remaining,
                            std::chrono::system_clock::time_point now);

}  // namespace ddprun::agent
