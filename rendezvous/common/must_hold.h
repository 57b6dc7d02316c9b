// A promise that our code makes to itself, checked in every build: if it is broken, this process ends, because nothing
// that it would do next is known to be right. Never for flags, files, or bytes from others. Any thread.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace ddprun {

// `what`: the promise, as a sentence.
inline void must_hold(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "ddprun: a bug: this does not hold: %s\n", what);
  std::abort();
}

}  // namespace ddprun
