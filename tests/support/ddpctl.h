// Runs ddpctl to its end, as a user would. Needs DDPRUN_DDPCTL, the program's path.
#pragma once

#include <stdio.h>
#include <sys/wait.h>

#include <string>

namespace ddprun::test {

struct CommandOutcome {
  std::string output;  // stdout and stderr
  int code = -1;
};

inline CommandOutcome ddpctl(const std::string& arguments) {
  FILE* pipe = ::popen((DDPRUN_DDPCTL " " + arguments + " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  for (std::size_t got; (got = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    output.append(buffer, got);
  const int status = ::pclose(pipe);
  return {output, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

}  // namespace ddprun::test
