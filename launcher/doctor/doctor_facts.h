// Reads the facts that `ddpctl doctor` judges: files of /proc, /sys and /dev below a root directory
// (tests use one of their own), limits of this process, clocks, ports of this machine. Nothing here
// waits for another process or host, except where noted. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/doctor/doctor_findings.h"
#include "launcher/machine/placement.h"
#include "rendezvous/common/environment.h"

namespace ddprun::cli::doctor {

std::string kernel_release();
std::string glibc_version();

PortFacts read_ports(const std::string& root = "");

std::string own_host_name();
// Numeric addresses of this node's interfaces that are up, also loopback.
std::vector<std::string> own_addresses();
std::string name_of_address(const std::string& address);  // may wait for a name server

// How far the wall clock is ahead of the steady clock. read_clock() compares it with that of when
// the doctor began.
std::int64_t wall_ahead_ns();
ClockFacts read_clock(std::int64_t wall_ahead_ns_before, const std::string& root = "");

GpuFacts read_gpus(const agent::Machine& machine, const Environment& environment);
SharedMemoryFacts read_shared_memory(const std::string& folder = "/dev/shm");

struct Limits {
  Limit open_files_soft;
  Limit open_files_hard;
  Limit processes;
  Limit locked_memory;
};
Limits read_limits();
bool has_rdma(const std::string& root = "");

// The lowest limits on the way from this process's cgroup to the root.
UseFacts read_memory_use(const std::string& root = "");
UseFacts read_task_use(const std::string& root = "");
std::uint64_t available_memory(const std::string& root = "");

// Starts a store on loopback, and sets and gets a key with a client.
StoreFacts try_store();

}  // namespace ddprun::cli::doctor
