// One of the two output streams of a process.
#pragma once

namespace ddprun::agent {

enum class Stream { kStdout = 0, kStderr = 1 };

}  // namespace ddprun::agent
