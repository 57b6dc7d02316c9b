// Facts about a worker's process that decide how it is stopped, from /proc (tests use a fake `proc`). Nothing here blocks.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ddprun::agent {

// The process has a handler of its own for the signal. False also if there is no such process.
bool handles(pid_t pid, int signal, const std::string& proc = "/proc");

// Its main thread blocks the signal, and may wait for it.
bool blocks(pid_t pid, int signal, const std::string& proc = "/proc");

// The signal ends it, whatever it does: it neither handles nor ignores nor blocks it. False also if there is no such process.
bool dies_of(pid_t pid, int signal, const std::string& proc = "/proc");

// The file is a shell, or a script for one. System calls only, and no memory is allocated: for a child between fork and exec.
bool runs_a_shell(const char* path);

// It runs a shell, also one that was started by the first line of a script.
bool is_shell(pid_t pid, const std::string& proc = "/proc");

// It has a GPU open (NVIDIA, AMD).
bool has_gpu(pid_t pid, const std::string& proc = "/proc");

// The descendants of `leader` that are in its process group and have a handler of their own for the signal.
std::vector<pid_t> handlers_in_group(pid_t leader, int signal, const std::string& proc = "/proc");

}  // namespace ddprun::agent
