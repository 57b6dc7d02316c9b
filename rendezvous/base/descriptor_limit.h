// For programs whose every connection takes a descriptor. Not for one that starts workers: they
// would inherit the limit. Any thread.
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace ddprun {

// To all that this process may have; returns how many that is.
inline std::size_t raise_descriptor_limit() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  return files.rlim_cur;
}

}  // namespace ddprun
