// Which files stay open in a child. System calls only: for use between fork or clone and exec. If
// the kernel or a container's filter refuses close_range (Linux before 5.9, for close-on-exec
// before 5.11), the numbers are read from /proc/self/fd.
#pragma once

#include <span>

namespace ddprun {

// `kept`: sorted.
void close_all_files_but(std::span<const int> kept);

// The next exec closes all descriptors from `first` on, `first` included.
void close_files_on_exec_from(int first);

}  // namespace ddprun
