// What Kubeflow Trainer is told of a job's progress, as values: where its status endpoint is, what
// proves who tells, and the body of a report (the trainerStatus of KEP-2779). Pure; who sends it
// is kubeflow_reporter.h.
//
// The mistake to avoid: reporting what no worker has said. A report replaces the whole status of
// the TrainJob, also what a program of its own accord has reported there (Transformers does).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/environment.h"
#include "rendezvous/common/ids.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/worker_abi/worker_progress.h"

namespace ddprun::agent {

// As Trainer puts it into the environment of a pod: KUBEFLOW_TRAINER_SERVER_URL, _TOKEN, _CA_CERT;
// its first release called them KUBEFLOW_TRAINER_STATUS_*.
struct TrainerEndpoint {
  std::string url;
  std::string url_variable;    // by which it is known
  std::string token_variable;  // likewise
  std::string token_file;      // empty: none was named
  std::string ca_file;         // empty: what the system trusts
};
std::optional<TrainerEndpoint> trainer_endpoint(const Environment& environment);

// The text of a token's file as a header takes it, or what is wrong with it.
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

// How long the rest takes, if it goes on as since the round's first step that was seen.
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
