// How a file of a worker is named until it is whole, and so what is left of it if the worker is killed while it writes.
#pragma once

namespace ddprun {

inline constexpr char kUnfinishedErrorFile[] = ".unfinished";  // behind the name of the file

}  // namespace ddprun
