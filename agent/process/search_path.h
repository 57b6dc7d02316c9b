// A program by its name, as an exec with PATH finds it, but never in a relative folder: for helpers
// such as debuggers, whose folder of the moment is the job's. Any thread.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <string>

namespace ddprun::agent {

// Its whole path; empty where it is not there.
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
