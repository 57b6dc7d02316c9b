// A preloaded library that makes close_range fail as before Linux 5.9, or as under a filter that
// does not know it.
#include <cerrno>

extern "C" int close_range(unsigned, unsigned, int) noexcept {
  errno = ENOSYS;
  return -1;
}
