// How ddpctl finds the jobs of its user on this node, and speaks to one of them
// (agent/query/control_folder.h; agent/README.md has the protocol). Blocks, always with a time
// limit. For one thread.
#pragma once

#include <sys/types.h>

#include <boost/json/object.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/query/kept_memory.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::cli {

inline constexpr std::chrono::seconds kPatience{5};  // how long an agent may take to answer

// The exit codes of every command that speaks to a job.
enum JobExitCode : int {
  kJobDone = 0,
  kJobFailed = 1,
  kNoJob = 3,
  kSeveralJobs = 4,
  kJobSilent = 5,
  kNotYours = 6,
};
int exit_code_of(const Error& error);

// A connection to the agent of a job.
class ControlClient {
 public:
  ControlClient(rdzv::UniqueFd socket, pid_t agent) : socket_(std::move(socket)), agent_(agent) {}

  pid_t agent() const { return agent_; }
  // What describes a job that find_job() has found: "'fashion', train.py, running, pid 4711, in /srv/run1, started
  // 2026-11-21 12:11:46".
  const std::string& about() const { return about_; }
  void set_about(std::string text) { about_ = std::move(text); }
  Result<void> say(std::string_view request);
  // The next line, without its end. Nothing: the agent has closed the connection. `patience` 0: no
  // time limit.
  Result<std::optional<std::string>> line(std::chrono::milliseconds patience);
  // The same for a request with exactly one answer: a closed connection or a refusal is an error.
  Result<std::string> answer();
  // Nobody waits any more for the answer to a request, of one line: when it comes, it is left out.
  void give_up_answer() { given_up_ += 1; }

 private:
  rdzv::UniqueFd socket_;
  pid_t agent_;
  std::string about_;
  std::string received_;
  int given_up_ = 0;
};

// Finds a job by its id, by the process id of its agent, by its program (with or without the folder)
// if no job has that id, or, if `job` is empty, the only one.
// kNotFound: there is none. kInvalidArgument: there are several; the message lists them.
Result<ControlClient> find_job(const std::string& job);

// For completion: a line "NAME<tab>DESCRIPTION" for each job that find_job("NAME") finds, or for each that has left memory.
// The name is the id, if no shell takes a character of it for another meaning and no other job has it, else the
// process id of the agent.
std::string lines_about_jobs(bool have_ended);

// Memory that keepers hold for the next agent of that job, or of all; also what is in use, and those that do not
// answer.
std::vector<agent::KeptMemory> memories_of(const std::string& job,
                                           std::chrono::milliseconds patience);
// "job 'fashion': its ddprun has ended; 24 MiB are kept for another 512 s (…)"
std::string sentence_about(const agent::KeptMemory& memory);

// A line of an answer; empty if it is no object.
boost::json::object object_in(std::string_view line);
// Empty if there is no such text.
std::string field(const boost::json::object& object, std::string_view name);

// Asks a job, and calls `print` with each line of its answer, until that ends or `print` returns
// another code than kJobDone. `first`: how long to wait for the first line, `next`: for the others.
int print_answer(const std::string& job, const std::string& request,
                 std::chrono::milliseconds first, std::chrono::milliseconds next,
                 const std::function<int(const std::string& line)>& print);

}  // namespace ddprun::cli
