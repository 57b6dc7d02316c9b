// The TCP sockets of this process, also those of libraries that do not tell which they have opened. Without LibTorch; any
// thread.
#pragma once

#include <sys/types.h>

#include <set>

namespace ddprun {

// By their inodes.
std::set<ino_t> tcp_sockets();
// Shuts all others down: calls that wait there end.
void shut_down_tcp_sockets_except(const std::set<ino_t>& kept);

}  // namespace ddprun
