// Tells a process from the children that it forks: they have copies of its objects, which must not write
// into memory that is shared with others. And from those that have only inherited its descriptors.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker_lib/process/shared_memory.h"

namespace ddprun {

class OwnerMark {
 public:
  // One byte that is 1 here and 0 in every child that is forked from here on; empty: not possible.
  static OwnerMark make() {
    OwnerMark mark;
    mark.page_ = Mapping::of_this_process(4096);
    Mapping& page = mark.page_;
    if (!page || ::madvise(page.data(), page.size(), MADV_WIPEONFORK) != 0) return {};
    *page.data() = 1;
    return mark;
  }

  bool is_set() const { return page_ && *page_.data() != 0; }

 private:
  Mapping page_;
};

// Whether it is the file in memory that the agent has made for this very process, and begins with such a header.
// The number may long be another file's: nothing is read of what cannot be that one.
template <typename Header>
bool is_own_file(int fd, Header& header) {
  const Header expected;
  struct stat about {};
  return ::fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == expected.bytes &&
         ::pread(fd, &header, sizeof header, 0) == sizeof header &&
         header.magic == expected.magic && header.bytes == expected.bytes &&
         header.worker_pid == ::getpid();
}

// The agent hands its descriptors over without this flag, so one that has it is somebody's already:
// of another Context, or of a library for another language in this process.
inline bool take_descriptor(int fd) {
  const int flags = ::fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0 && ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

}  // namespace ddprun
