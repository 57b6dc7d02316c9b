// Who runs before whom: workers, and processes that get ready beside them or die, behind them and as the
// kernel's first victims when memory runs out. No error here stops anything. Any thread.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace ddprun::agent {

// Loading should not disturb the workers, but has to come to its end where these keep all processors
// busy: it takes a few seconds of one, whether at once or over minutes. A lower nice value could not be
// taken back by everyone.
void make_background(pid_t pid);
// With all its threads.
void make_worker(pid_t pid);
// A worker that is dying: the kernel frees its memory, 0.1 s per GB, while the others need the processors to go on
// without it. Until let_end() it gets what they leave over of one processor, which the kernel's scheduler takes for an
// idle one; then, and from the beginning where that could not be taken back, a tenth of what they get.
void put_behind(pid_t pid);
void let_end(pid_t pid);

// Of another process's files in /proc.
void write_of_process(pid_t pid, const char* name, std::string_view text);

}  // namespace ddprun::agent
