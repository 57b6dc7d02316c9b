// A training step frees what the next one asks for again. glibc gives freed memory at the end of its
// heap back to the system at once, so that every step gets it again page by page, zeroed: for a small
// CNN a thousand page faults and a seventh of the step. Here it is told to keep some.
// The first step touches all of it for the first time: a page fault for each 4 KiB took a sixth of the time
// from a process' start to its first step. So the kernel is asked for huge pages there.
#pragma once

namespace ddprun {

// Up to 256 MiB, and allocations of less than 32 MiB from the heap and not by mmap; for the whole process, from now on.
// The next 192 MiB of the heap are addresses at once, for which the system is asked for huge pages; not so in a thread
// that allocates from a heap of its own, or where addresses are limited (ulimit -v, -d). They are memory where a
// program locks all that it will have (mlockall), and are promised where the system never promises too much. Does
// nothing where the environment tunes malloc (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, MALLOC_TOP_PAD_,
// MALLOC_MMAP_MAX_, glibc.malloc… in GLIBC_TUNABLES), or where malloc is not glibc's.
void keep_freed_memory();

}  // namespace ddprun
