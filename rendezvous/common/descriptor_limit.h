// The limit on open files, for programs in which every connection takes a descriptor. Workers do
// not inherit the limit that the agent has raised (agent/process/process.h). Any thread.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <string>

namespace ddprun {

inline rlimit descriptor_limit() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  return files;
}

// The limit and how to raise it, for a message.
inline std::string descriptor_limit_in_words() {
  const rlimit files = descriptor_limit();
  return "the limit on open files is " + std::to_string(files.rlim_cur) +
         (files.rlim_cur < files.rlim_max ? " (hard " + std::to_string(files.rlim_max) + ")" : "") +
         "; raise it: ulimit -n 65536, LimitNOFILE= in a unit, --ulimit nofile= for Docker";
}

// Raises the limit to the hard limit and returns it.
inline std::size_t raise_descriptor_limit() {
  rlimit files = descriptor_limit();
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  return files.rlim_cur;
}

}  // namespace ddprun
