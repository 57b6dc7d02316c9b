// Where one stream of one worker goes: the output options as a pure function, so that every
// combination is a row of a table in the test.
#pragma once

#include <string>

#include "agent/job.h"
#include "agent/output/stream.h"

namespace ddprun::agent {

// Of a worker, what its output needs to know.
struct WorkerIdentity {
  int local_rank = 0;
  int rank = 0;
  std::string role;
};

struct StreamPlan {
  enum class Route {
    kInherit,     // the worker writes to the agent's own descriptor
    kDevNull,     // nobody wants it
    kAgent,       // through a pipe to the agent, which passes it on as the fields below say
    kAgentAsTty,  // as kAgent, through a pseudo-terminal: isatty(2) answers as without an agent
  };
  Route route = Route::kInherit;
  bool to_file = false;
  bool to_console = false;
  bool is_prefixed = false;  // whole lines with a prefix, instead of bytes as they come
  bool is_filtered = false;  // lines that match the duplicate filters also go to the filtered file
  bool keeps_tail = false;

  bool operator==(const StreamPlan&) const = default;
};

// --log-dir /dev/null: no files at all, and the options that need one or choose ranks are ignored.
bool has_files(const OutputSpec& spec);
// Whether some stream of some rank goes to a file, or a place for files was named.
bool needs_files(const OutputSpec& spec);

StreamPlan plan_stream(const OutputSpec& spec, Stream stream, int local_rank,
                       bool console_is_terminal);

// "[<role><local rank>]:", or the template with $role_name, $rank and $local_rank filled in by the
// rules of Python's string.Template.safe_substitute (unknown names stay, $$ is $).
std::string line_prefix(const OutputSpec& spec, const WorkerIdentity& worker);

}  // namespace ddprun::agent
