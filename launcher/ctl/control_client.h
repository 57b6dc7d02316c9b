// How ddpctl finds the jobs of its user on this node, and speaks to one of them
// (agent/query/control_folder.h, and agent/README.md for what is said). Blocks, with a limit on everything.
// For one thread.
//
//   auto job = find_job(environment, "train-7");
//   if (!job) return report(job.error(), exit_code_of(job.error()));
//   job->say(R"({"ask":"status"})");
//   const auto line = job->line(kPatience);
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::cli {

inline constexpr std::chrono::seconds kPatience{5};  // with an agent that does not answer

// Of every command that speaks to a job.
enum JobExitCode : int {
  kJobDone = 0,
  kJobFailed = 1,
  kJobUsage = 2,
  kNoJob = 3,
  kSeveralJobs = 4,
  kJobSilent = 5,
  kNotYours = 6,
};
extern const char* const kJobExitCodes;  // for --help
int exit_code_of(const Error& error);

// A connection to the agent of a job.
class ControlClient {
 public:
  ControlClient(rdzv::UniqueFd socket, pid_t agent) : socket_(std::move(socket)), agent_(agent) {}

  pid_t agent() const { return agent_; }
  Result<void> say(std::string_view request);
  // The next one, without its end. Nothing: the agent has closed the connection. `patience` 0: as
  // long as it takes.
  Result<std::optional<std::string>> line(std::chrono::milliseconds patience);
  // The same for the only answer there is: one that is no answer, or a refusal, is an error.
  Result<std::string> answer(std::chrono::milliseconds patience = kPatience);

 private:
  rdzv::UniqueFd socket_;
  pid_t agent_;
  std::string received_;
};

// The one that is meant: by its id, by the process id of its agent, or, empty, the only one there
// is. kNotFound: there is none. kInvalidArgument: several are meant by it; the sentence lists them.
Result<ControlClient> find_job(const Environment& environment, const std::string& job);

// The error that a line of an answer is, if it is one.
std::optional<std::string> error_in(std::string_view line);

}  // namespace ddprun::cli
