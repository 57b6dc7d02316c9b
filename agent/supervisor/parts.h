// What the parts of the Supervisor share. All of it outlives them.
#pragma once

#include <boost/asio/io_context.hpp>
#include <string>

#include "agent/job.h"
#include "agent/output/log.h"
#include "agent/output/output.h"

namespace ddprun::agent {

struct AgentParts {
  boost::asio::io_context& io;
  Console& console;
  Log log;
  Output& output;
  const Job& job;
  std::string host;      // this node's name
  std::string agent_id;  // value of kAgentVariable in the environment of this agent's workers
};

}  // namespace ddprun::agent
