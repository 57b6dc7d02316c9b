// What `ddpctl doctor` thinks of what it found: each judge_ function makes of the facts about one
// thing a row of the table, and where there is something to look at, says what to do. Pure; the
// facts are read by doctor_facts and made by the trials of doctor_command.
//
// The mistake to avoid: "ok" for what was not looked at. A trial that could not be made is kSkipped.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::cli::doctor {

enum class Verdict { kOk, kLook, kSkipped };

struct Finding {
  std::string name{};
  Verdict verdict = Verdict::kOk;
  std::string what{};
  std::string advice{};  // with kLook: what to do

  bool operator==(const Finding&) const = default;
};

using Milliseconds = std::chrono::milliseconds;

// ---- programs

// What the ddprun that a user's shell finds says to --version; empty path: there is none.
struct ProgramFacts {
  std::string own_version{};  // of this ddpctl, in words
  std::string path{};
  std::string version{};
};
Finding judge_ddprun(const ProgramFacts& facts);

Finding judge_kernel(const std::string& release);
Finding judge_glibc(const std::string& version);

struct PythonFacts {
  std::string path{};     // empty: none was found
  std::string version{};  // "3.11.2"; empty: it did not answer
  std::string torch{};    // "2.11.0"; empty: it has none
};
Finding judge_python(const PythonFacts& facts);

// ---- network

struct PortFacts {
  std::string listen_error{};  // empty: a port of the kernel's choice could be listened on
  int first_ephemeral = 0;     // 0: not known
  int last_ephemeral = 0;
  std::vector<int> reserved{};  // of ours, kept out of the range by ip_local_reserved_ports
  std::vector<int> taken{};     // of ours, somebody listens there now
};
Finding judge_ports(const PortFacts& facts);

struct NameFacts {
  std::string name{};
  std::vector<std::string> addresses{};
  std::string error{};
  Milliseconds took{};
  bool was_in_time = true;
};
Finding judge_own_name(const NameFacts& facts);
Finding judge_other_name(const NameFacts& facts);

struct ReverseFacts {
  std::string address{};
  Milliseconds took{};
  bool was_in_time = true;
};
Finding judge_reverse(const std::vector<ReverseFacts>& facts);

// ---- machine

struct ClockFacts {
  std::string source{};  // empty: not known
  double reading_ns = 0;
  Milliseconds stepped_by{};  // how far the wall clock moved against the steady one meanwhile
  bool went_backwards = false;
  std::optional<bool> is_synchronised{};  // nothing: the kernel does not say
  Milliseconds error_max{};               // of a synchronised one
};
Finding judge_clock(const ClockFacts& facts);

struct GpuFacts {
  std::string driver{};                  // version; empty: it is not loaded
  int on_the_bus = 0;                    // NVIDIA's display and 3D controllers
  int driven = 0;                        // that the driver has
  int devices = 0;                       // /dev/nvidia0, …
  bool has_control = false;              // /dev/nvidiactl
  bool has_uvm = false;                  // /dev/nvidia-uvm
  bool may_open = true;                  // all of them
  std::optional<std::string> visible{};  // CUDA_VISIBLE_DEVICES
  int visible_count = 0;
};
Finding judge_gpus(const GpuFacts& facts);

struct SharedMemoryFacts {
  bool is_there = false;
  bool is_writable = false;
  std::uint64_t size = 0;
  std::uint64_t free = 0;
};
Finding judge_shared_memory(const SharedMemoryFacts& facts);

// nullopt: no limit.
using Limit = std::optional<std::uint64_t>;

Finding judge_open_files(Limit soft, Limit hard);
Finding judge_processes(Limit limit, int cpus);
Finding judge_locked_memory(Limit limit, bool has_rdma);

struct CpuFacts {
  int online = 1;
  int usable = 1;
  std::optional<double> quota{};
};
Finding judge_cpus(const CpuFacts& facts);

// Of the tightest group on the way to the root; of the machine where no group has a limit.
struct UseFacts {
  Limit limit{};
  std::uint64_t used = 0;
};
Finding judge_memory(const UseFacts& cgroup, std::uint64_t available_in_machine);
Finding judge_tasks(const UseFacts& cgroup);

// ---- trials

struct StoreFacts {
  std::string error{};
  double median_us = 0;
};
Finding judge_store(const StoreFacts& facts);

struct AllReduceFacts {
  std::string by{};       // what the workers were; empty: there was nothing to start
  std::string missing{};  // then: why
  bool was_in_time = true;
  std::string ended{};       // how, in words; empty: well
  std::string last_lines{};  // of its output
  Milliseconds took{};
};
Finding judge_all_reduce(const AllReduceFacts& facts);

// ---- what is printed

int count_to_look_at(const std::vector<Finding>& findings);
std::string to_table(const std::string& version, const std::vector<Finding>& findings);
std::string to_json(const std::string& version, const std::vector<Finding>& findings);

}  // namespace ddprun::cli::doctor
