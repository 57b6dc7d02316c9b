// Which processes have connections to a port, from /proc (tests use a fake one). Call it on a thread that may block: a
// machine may have very many connections.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ddprun::agent {

// By the port of this end. Of these processes only.
std::map<std::uint16_t, pid_t> connections_to(std::uint16_t port, const std::vector<pid_t>& pids,
                                              const std::string& proc = "/proc");

}  // namespace ddprun::agent
