// What the threads of a process are doing, from /proc: for workers that did not end in time. Pure
// over the root of the file system it reads, so tests give it a fake one.
//
// Read by a thread of its own: /proc may keep a reader waiting for a process that hangs. The
// mistake to avoid: reading more than these files. cmdline, environ and maps wait for the address
// space, which is what a hanging process may hold.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::agent {

// `leader` and what descends from it, it first; at most 64.
std::vector<pid_t> process_tree(pid_t leader, const std::string& proc = "/proc");

std::size_t thread_count(pid_t pid, const std::string& proc = "/proc");

// State, signal masks, and for every thread where it waits and its kernel stack (which only root
// may read); threads that do the same are told together. Of at most 1024 threads.
std::string stacks_of(pid_t pid, const std::string& proc = "/proc");

}  // namespace ddprun::agent
