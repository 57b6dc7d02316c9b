// Where one stream of one worker goes, as a pure function of the output options; a test has a table
// of all combinations.
#pragma once

#include <string>

#include "agent/job.h"
#include "agent/output/stream.h"

namespace ddprun::agent {

// The properties of a worker that its output depends on.
struct WorkerIdentity {
  int local_rank = 0;
  int rank = 0;
  std::string role;
  std::string host{};  // of its node
};

struct StreamPlan {
  enum class Route {
    kInherit,     // the worker writes to the agent's own descriptor
    kDevNull,     // the output is discarded
    kAgent,       // through a pipe to the agent, which handles it as the fields below say
    kAgentAsTty,  // as kAgent, but through a pseudo-terminal: isatty(2) is true for the worker
  };
  Route route = Route::kInherit;
  bool to_file = false;
  bool to_console = false;
  bool is_prefixed = false;  // whole lines with a prefix, instead of unchanged bytes
  bool is_filtered = false;  // lines that match the duplicate filters also go to the filtered file
  bool keeps_tail = false;

  bool operator==(const StreamPlan&) const = default;
};

// False with --log-dir /dev/null: options that need files or choose ranks are ignored.
bool has_files(const OutputSpec& spec);
// Whether a stream of any rank goes to a file, or --log-dir names a folder.
bool needs_files(const OutputSpec& spec);

StreamPlan plan_stream(const OutputSpec& spec, Stream stream, int local_rank,
                       bool console_is_terminal);

// "[<role><local rank>]:", or the template with $role_name, $rank, $local_rank and $hostname
// (substitute.h).
std::string line_prefix(const OutputSpec& spec, const WorkerIdentity& worker);

}  // namespace ddprun::agent
