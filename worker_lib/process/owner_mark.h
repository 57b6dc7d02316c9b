// Tells a process from the children that it forks: they have copies of its objects, which must not write
// into memory that is shared with others.
#pragma once

#include <sys/mman.h>

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

}  // namespace ddprun
