// The judgements of `ddpctl doctor`: each judge_ function turns the facts about one thing into a
// row of the table, with advice if there is something to look at. Pure; doctor_facts reads the
// facts, doctor_command makes the trials. Never "ok" for what was not looked at: a trial that could
// not be made is kSkipped.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::cli::doctor {

enum class Verdict {
  kOk,
  kLook,
  kSkipped,
  kNote,  // worth knowing; counts as ok
};

struct Finding {
  std::string name{};
  Verdict verdict = Verdict::kOk;
  std::string what{};
  std::string advice{};               // with kLook and kNote: what to do
  bool is_for_several_nodes = false;  // a job on this node alone is not affected
};

// On a node where no others are named, what affects only jobs of several nodes is a note.
Finding on_one_node(Finding finding);

using Milliseconds = std::chrono::milliseconds;

// ---- programs

// The ddprun that the user's shell finds, and its --version; empty path: there is none.
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
  std::string listen_error{};  // empty: listening on a port that the kernel chose worked
  int first_ephemeral = 0;     // 0: not known
  int last_ephemeral = 0;
  std::vector<int> reserved{};  // of ours, kept out of the range by ip_local_reserved_ports
  std::vector<int> taken{};     // of ours, somebody listens there now
};
Finding judge_ports(const PortFacts& facts);

struct NameFacts {
  std::string name{};
  Milliseconds took{};
  bool was_in_time = true;
  std::vector<std::string> addresses{};
  std::string error{};
};
Finding judge_own_name(const NameFacts& facts);
Finding judge_other_name(const NameFacts& facts);

// The names are addresses.
Finding judge_reverse(const std::vector<NameFacts>& facts);

// ---- machine

struct ClockFacts {
  std::string source{};  // empty: not known
  double reading_ns = 0;
  Milliseconds stepped_by{};  // of the wall clock against the steady clock in between
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

// Of the cgroup with the lowest limit on the way to the root; of the machine if none has a limit.
struct UseFacts {
  Limit limit{};
  std::uint64_t used = 0;
  std::uint64_t left() const { return *limit - std::min(*limit, used); }  // if there is a limit
};
Finding judge_memory(const UseFacts& cgroup, std::uint64_t available_in_machine);
Finding judge_tasks(const UseFacts& cgroup);

// What ended jobs of this user have left for their next ddprun (--keep-memory).
struct KeptMemoryFacts {
  std::string job{};
  std::uint64_t bytes = 0;
  std::chrono::seconds left{};
  bool is_silent = false;  // the process that holds it does not answer; nothing else is known
};
Finding judge_kept_memory(const std::vector<KeptMemoryFacts>& kept);

// ---- trials

struct StoreFacts {
  std::string error{};
  double median_us = 0;
};
Finding judge_store(const StoreFacts& facts);

struct AllReduceFacts {
  std::string by{};       // what was started as workers; empty: nothing could be
  std::string missing{};  // then: why
  bool was_in_time = true;
  std::string ended{};       // how, in words; empty: with success
  std::string last_lines{};  // of its output
  Milliseconds took{};
};
Finding judge_all_reduce(const AllReduceFacts& facts);

// ---- what is printed

int count_to_look_at(const std::vector<Finding>& findings);
// A row of the table as soon as it is known: `name_width` is that of the longest name.
std::string to_row(const Finding& finding, std::size_t name_width);
std::string last_line(const std::vector<Finding>& findings);
std::string to_json(const std::string& version, const std::vector<Finding>& findings);

}  // namespace ddprun::cli::doctor
