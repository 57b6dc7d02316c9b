// What the threads of a process are doing, from /proc (tests use a fake `proc`), for workers that
// did not end in time. Call it on a thread that may block. Do not read cmdline, environ or maps
// here: these wait for a lock that a hanging process may hold.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::agent {

// /proc/<pid>/stat from the state on; empty: there is no such process. Does not block.
std::string stat_after_name(pid_t pid, const std::string& proc = "/proc");

// Does not block if `parent` is this process.
std::vector<pid_t> children_of(pid_t parent, const std::string& proc = "/proc");

// `leader`, followed by its descendants; at most 64 processes.
std::vector<pid_t> process_tree(pid_t leader, const std::string& proc = "/proc");

// The state and the signals of a thread, as /proc has them (the masks in hexadecimal digits); all empty: it
// is gone.
struct ThreadSignals {
  std::string state;
  std::string caught;
  std::string blocked;
  std::string ignored;
  std::string pending;
};
ThreadSignals signals_of(pid_t pid, pid_t thread, const std::string& proc = "/proc");

std::size_t thread_count(pid_t pid, const std::string& proc = "/proc");

// If a worker is a wrapper script, its program is the process of its tree that has most threads. `tree` is not empty.
pid_t program_in(const std::vector<pid_t>& tree);

// State, signal masks, and for each of at most 1024 threads the kernel function in which it waits
// and its kernel stack (which only root may read). Threads with equal values are listed together.
std::string stacks_of(pid_t pid, const std::string& proc = "/proc");

}  // namespace ddprun::agent
