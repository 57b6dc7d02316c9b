// Environment: who this process is in its job, as the launcher (ddprun, torchrun, or a person) said
// it in environment variables. parse_environment() is pure: what it looks at is given to it, so
// that every wrong combination can be tested. Values: any thread.
//
// Started alone (none of the variables set) a process is a world of one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "rendezvous/base/result.h"

namespace ddprun {

struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the workers of this node
  int local_world_size = 1;
  std::string master_addr;  // empty in a world of one that was started alone
  std::uint16_t master_port = 0;
  bool agent_hosts_store = false;  // else rank 0 opens the store at master_addr:master_port
  int restart_count = 0;           // the round: how often the group was started again
  std::string error_file;          // where a failure is to be described; empty: nowhere
  int link_fd = -1;       // the link to an agent (ddprun's); whether it is this process' own
  int link_page_fd = -1;  // is found out by who opens it; -1: none
};

using VariableLookup = std::function<std::optional<std::string>(const char* name)>;

// Errors: kInvalidArgument, a sentence that names the variables, their values and what to do.
Result<Environment> parse_environment(const VariableLookup& lookup);

// The same of this process' own variables.
Result<Environment> environment_of_this_process();

}  // namespace ddprun
