// Finds a program on PATH as execvp does, but never in a relative folder, because the working
// directory is the job's. For helpers such as debuggers. Any thread.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <string>

namespace ddprun::agent {

// The absolute path of `program`; empty: not found. `path`: the value of PATH.
inline std::string find_in_path(const std::string& path, const std::string& program) {
  for (std::size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find(':', begin), path.size());
    const std::string candidate = path.substr(begin, end - begin) + "/" + program;
    if (candidate.front() == '/' && candidate.size() > program.size() + 1 &&
        ::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
    begin = end + 1;
  }
  return {};
}

}  // namespace ddprun::agent
