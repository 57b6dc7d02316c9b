// Which of its two streams a process writes to. A value.
#pragma once

namespace ddprun::agent {

enum class Stream { kStdout = 0, kStderr = 1 };

}  // namespace ddprun::agent
