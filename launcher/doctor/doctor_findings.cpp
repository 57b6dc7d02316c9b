#include "launcher/doctor/doctor_findings.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>

#include "rendezvous/common/foreign_text.h"

namespace ddprun::cli::doctor {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = kMiB << 10;

// Outside of these limits things become slow, or fail.
constexpr int kEphemeralPortsMin = 1000;
constexpr auto kLookupMax = 100ms;
constexpr double kClockReadingMaxNs = 500;
constexpr auto kClockStepMax = 20ms;
constexpr auto kClockErrorMax = 1000ms;
constexpr std::uint64_t kSharedMemoryMin = kGiB;
constexpr std::uint64_t kOpenFilesMin = 1024;
constexpr std::uint64_t kProcessesMin = 4096;
constexpr std::uint64_t kTasksLeftMin = 1000;
constexpr std::uint64_t kMemoryLeftMin = kGiB;
constexpr double kStoreRoundTripMaxUs = 5000;

constexpr std::size_t kTextBytesMax = 4096;  // of a program's output in JSON

Finding ok(std::string name, std::string what) {
  return {std::move(name), Verdict::kOk, std::move(what), {}};
}
Finding look(std::string name, std::string what, std::string advice) {
  return {std::move(name), Verdict::kLook, std::move(what), std::move(advice)};
}
Finding skipped(std::string name, std::string why) {
  return {std::move(name), Verdict::kSkipped, std::move(why), {}};
}

std::string number(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string in_words(std::uint64_t bytes) {
  if (bytes >= kGiB) return number(static_cast<double>(bytes) / kGiB, "%.1f GiB");
  return std::to_string(bytes / kMiB) + " MiB";
}

std::string in_words(Milliseconds time) {
  if (time < 1s) return std::to_string(time.count()) + " ms";
  return number(static_cast<double>(time.count()) / 1000, "%.1f s");
}

std::string in_words(Limit limit) { return limit ? std::to_string(*limit) : "unlimited"; }

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int each : numbers) text += (text.empty() ? "" : ", ") + std::to_string(each);
  return text;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

// {6, 1} of "6.1.0-13-amd64".
std::optional<std::pair<int, int>> version_in(const std::string& text) {
  int major = 0;
  int minor = 0;
  if (std::sscanf(text.c_str(), "%d.%d", &major, &minor) != 2) return std::nullopt;
  return std::pair(major, minor);
}

}  // namespace

// ---- programs

Finding judge_ddprun(const ProgramFacts& facts) {
  if (facts.path.empty()) {
    return look("ddprun", "no ddprun on PATH",
                "put the folder of ddprun on PATH; ddpctl is a part of it");
  }
  if (facts.version != facts.own_version) {
    return look("ddprun", facts.path + " is another one: " + facts.version,
                "all nodes of a job need the same round protocol; put one version on PATH");
  }
  return ok("ddprun", facts.path);
}

Finding judge_kernel(const std::string& release) {
  const auto version = version_in(release);
  if (!version) return ok("kernel", release);
  if (*version < std::pair(5, 3)) {
    return look(
        "kernel", release,
        "ddprun needs Linux 5.3 or newer, which tells of the end of a process (pidfd_open)");
  }
  return ok("kernel", release);
}

Finding judge_glibc(const std::string& version) { return ok("C library", "glibc " + version); }

Finding judge_python(const PythonFacts& facts) {
  if (facts.path.empty()) return ok("python", "none, which only Python programs need");
  if (facts.version.empty()) {
    return look("python", facts.path + " does not answer",
                "run it by hand; PYTHON_EXEC names the one that ddprun is to use");
  }
  return ok("python", facts.version + " with " +
                          (facts.torch.empty() ? "no torch" : "torch " + facts.torch) + " (" +
                          facts.path + ")");
}

// ---- network

Finding judge_ports(const PortFacts& facts) {
  if (!facts.listen_error.empty()) {
    return look("ports", "nothing can listen here: " + facts.listen_error,
                "workers meet at a port; look at the container's or the host's network");
  }
  const std::string range =
      std::to_string(facts.first_ephemeral) + " to " + std::to_string(facts.last_ephemeral);
  const int count = facts.last_ephemeral - facts.first_ephemeral + 1;
  if (facts.first_ephemeral > 0 && count < kEphemeralPortsMin) {
    return look("ports", "only " + std::to_string(count) + " for connections (" + range + ")",
                "widen net.ipv4.ip_local_port_range");
  }
  if (!facts.taken.empty()) {
    return look("ports", "in use at the moment: " + joined(facts.taken),
                "that is where nodes meet by default; give another --master-port, or port in "
                "--rdzv-endpoint");
  }
  std::vector<int> inside;
  for (const int port : {29400, 29500}) {
    if (facts.first_ephemeral > 0 && port >= facts.first_ephemeral &&
        port <= facts.last_ephemeral && std::ranges::count(facts.reserved, port) == 0) {
      inside.push_back(port);
    }
  }
  if (!inside.empty()) {
    return look("ports", joined(inside) + " may go to any connection (" + range + ")",
                "a job that meets there fails now and then; add them to "
                "net.ipv4.ip_local_reserved_ports, or give another port");
  }
  return ok("ports", "can listen" + (facts.first_ephemeral > 0 ? "; connections take " + range
                                                               : std::string()));
}

Finding judge_own_name(const NameFacts& facts) {
  const std::string row = "own name";
  if (!facts.was_in_time) {
    return look(
        row, facts.name + " was not found within " + in_words(facts.took),
        "PyTorch looks it up too: add it to /etc/hosts, or correct the name server's entry in "
        "/etc/resolv.conf");
  }
  if (!facts.error.empty()) {
    return look(row, facts.name + ": " + facts.error,
                "Gloo looks it up to choose an interface: add it to /etc/hosts, or set "
                "GLOO_SOCKET_IFNAME");
  }
  const std::string found = facts.name + " is " + joined(facts.addresses);
  if (std::ranges::all_of(facts.addresses, is_loopback)) {
    return look(row, found + ", which no other node can reach",
                "for jobs of several nodes: give this node's address in /etc/hosts, or use the "
                "address and not the name in --master-addr, --rdzv-endpoint and --local-addr");
  }
  if (facts.took > kLookupMax) {
    return look(row, found + ", after " + in_words(facts.took),
                "every start of a group waits for that: add it to /etc/hosts");
  }
  return ok(row, found);
}

Finding judge_other_name(const NameFacts& facts) {
  const std::string row = "name " + facts.name;
  if (!facts.was_in_time) {
    return look(row, "not found within " + in_words(facts.took),
                "correct the name server's entry in /etc/resolv.conf, or add it to /etc/hosts");
  }
  if (!facts.error.empty()) {
    return look(row, facts.error, "add it to /etc/hosts or to the name server; is it spelt right?");
  }
  if (facts.took > kLookupMax) {
    return look(row, joined(facts.addresses) + ", after " + in_words(facts.took),
                "add it to /etc/hosts");
  }
  return ok(row, joined(facts.addresses));
}

Finding judge_reverse(const std::vector<ReverseFacts>& facts) {
  const std::string row = "reverse look-up";
  std::vector<std::string> slow;
  Milliseconds longest{};
  for (const ReverseFacts& each : facts) {
    longest = std::max(longest, each.took);
    if (!each.was_in_time) {
      slow.push_back(each.address + " (given up after " + in_words(each.took) + ")");
    } else if (each.took > kLookupMax) {
      slow.push_back(each.address + " (" + in_words(each.took) + ")");
    }
  }
  if (!slow.empty()) {
    return look(row, "slow: " + joined(slow),
                "PyTorch's store client asks for the name of every address that it connects to: "
                "add them to /etc/hosts");
  }
  return ok(row, std::to_string(facts.size()) + (facts.size() == 1 ? " address" : " addresses") +
                     " of this node, " + in_words(longest) + " at most");
}

// ---- machine

Finding judge_clock(const ClockFacts& facts) {
  const std::string source = facts.source.empty() ? "" : facts.source + ", ";
  const std::string what = source + number(facts.reading_ns, "%.0f ns to read");
  if (facts.went_backwards) {
    return look("clock", source + "the steady clock goes backwards",
                "every time limit relies on it: choose another clock source in "
                "/sys/devices/system/clocksource");
  }
  if (facts.reading_ns > kClockReadingMaxNs) {
    return look("clock", what,
                "that is a system call: a clock source such as tsc or kvm-clock is a hundred times "
                "quicker");
  }
  if (facts.stepped_by > kClockStepMax || facts.stepped_by < -kClockStepMax) {
    return look("clock",
                "the time of day was set while we looked, by " +
                    std::to_string(facts.stepped_by.count()) + " ms",
                "is there more than one that sets it? Times in logs and reports cannot be trusted");
  }
  if (facts.is_synchronised == false) {
    return look("clock", what + ", and nothing keeps it right",
                "times in the logs of several nodes will not fit together: run chrony or "
                "systemd-timesyncd on the host");
  }
  if (facts.is_synchronised == true && facts.error_max > kClockErrorMax) {
    return look("clock", what + ", right to " + in_words(facts.error_max) + " only",
                "look at chronyc tracking, or timedatectl timesync-status");
  }
  return ok("clock",
            what + (facts.is_synchronised == true ? ", kept right to " + in_words(facts.error_max)
                                                  : std::string()));
}

Finding judge_gpus(const GpuFacts& facts) {
  if (facts.driver.empty() && facts.devices == 0) {
    if (facts.on_the_bus == 0) return ok("GPUs", "none of NVIDIA's");
    return look("GPUs", std::to_string(facts.on_the_bus) + " on the bus, but no driver is loaded",
                "install NVIDIA's driver, or load it (modprobe nvidia)");
  }
  const std::string what =
      std::to_string(facts.devices) + ", driver " + (facts.driver.empty() ? "?" : facts.driver);
  if (facts.devices == 0) {
    return look("GPUs", "the driver has " + std::to_string(facts.driven) + ", none is in /dev",
                "start a container with --gpus all (Docker) or resources.limits of "
                "nvidia.com/gpu (Kubernetes); on the host run nvidia-smi once, as root");
  }
  if (!facts.has_control || !facts.has_uvm) {
    return look("GPUs",
                what + ", but no " + (facts.has_control ? "/dev/nvidia-uvm" : "/dev/nvidiactl"),
                "CUDA cannot start: on the host run nvidia-modprobe -u -c=0; a container needs "
                "that file too");
  }
  if (!facts.may_open) {
    return look("GPUs", what + ", which this user may not open",
                "look at the rights of /dev/nvidia*; under Slurm, ask for them with --gpus");
  }
  if (!facts.visible || facts.visible_count == facts.devices) return ok("GPUs", what);
  const std::string shown = what + ", of which CUDA_VISIBLE_DEVICES='" + *facts.visible +
                            "' shows " + std::to_string(facts.visible_count);
  if (facts.visible_count > 0) return ok("GPUs", shown);
  return look("GPUs", shown, "unset it, unless programs are to use the CPU");
}

Finding judge_shared_memory(const SharedMemoryFacts& facts) {
  const std::string more =
      "data loaders of Python and NCCL need it: docker run --shm-size=8g or --ipc=host; on "
      "Kubernetes an emptyDir with medium: Memory at /dev/shm";
  if (!facts.is_there) return look("/dev/shm", "not there", more);
  if (!facts.is_writable) return look("/dev/shm", "nothing can be written there", more);
  const std::string what = in_words(facts.size) + ", " + in_words(facts.free) + " free";
  if (facts.size < kSharedMemoryMin) return look("/dev/shm", what, more);
  if (facts.free < kSharedMemoryMin) {
    return look("/dev/shm", what,
                "what killed jobs left there stays: look at it with ls -l /dev/shm");
  }
  return ok("/dev/shm", what);
}

Finding judge_open_files(Limit soft, Limit hard) {
  const std::string what = in_words(soft) + " (hard " + in_words(hard) + ")";
  if (soft && *soft < kOpenFilesMin) {
    return look("open files", what,
                "data loaders and connections between ranks take hundreds: ulimit -n 65536, "
                "LimitNOFILE= in a unit, --ulimit nofile= for Docker");
  }
  return ok("open files", what);
}

Finding judge_processes(Limit limit, int cpus) {
  // A PyTorch worker has a few threads for each CPU, and there may be one worker for each CPU.
  const auto wanted = std::max(kProcessesMin, static_cast<std::uint64_t>(cpus) * 64);
  if (limit && *limit < wanted) {
    return look("processes", in_words(limit) + " for this user, threads included",
                "PyTorch starts threads for every CPU in every worker: raise ulimit -u to " +
                    std::to_string(wanted) + " at least");
  }
  return ok("processes", in_words(limit));
}

Finding judge_locked_memory(Limit limit, bool has_rdma) {
  const std::string what = limit ? in_words(*limit) : "unlimited";
  if (!has_rdma) return ok("locked memory", what + ", and no InfiniBand here");
  if (limit) {
    return look("locked memory", what,
                "InfiniBand and RoCE pin memory: ulimit -l unlimited, LimitMEMLOCK=infinity in a "
                "unit");
  }
  return ok("locked memory", what);
}

Finding judge_cpus(const CpuFacts& facts) {
  std::string what = std::to_string(facts.usable) + " of " + std::to_string(facts.online);
  if (facts.quota) what += number(*facts.quota, ", %.4g CPUs' time");
  if (facts.usable < facts.online) {
    return look("CPUs", what,
                "affinity or a cgroup leaves only these: PyTorch and --nproc-per-node=cpu count "
                "all; set OMP_NUM_THREADS, and say --nproc-per-node=usable-cpus");
  }
  return ok("CPUs", what);
}

Finding judge_memory(const UseFacts& cgroup, std::uint64_t available_in_machine) {
  std::uint64_t left = available_in_machine;
  std::string what = in_words(left) + " free";
  if (cgroup.limit) {
    const std::uint64_t in_group = *cgroup.limit - std::min(*cgroup.limit, cgroup.used);
    left = std::min(left, in_group);
    what = in_words(left) + " free, the cgroup's limit is " + in_words(*cgroup.limit);
  }
  if (left < kMemoryLeftMin) {
    return look("memory", what,
                "each worker of PyTorch's takes 0.3 GiB before it has done anything (more with "
                "CUDA): raise the limit, or end what uses it");
  }
  return ok("memory", what);
}

Finding judge_tasks(const UseFacts& cgroup) {
  if (!cgroup.limit) return ok("tasks", "no limit of a cgroup");
  const std::uint64_t left = *cgroup.limit - std::min(*cgroup.limit, cgroup.used);
  const std::string what =
      std::to_string(left) + " left of the cgroup's " + std::to_string(*cgroup.limit);
  if (left < kTasksLeftMin) {
    return look("tasks", what,
                "every thread is one: TasksMax= of a unit, --pids-limit of Docker, podPidsLimit of "
                "a kubelet");
  }
  return ok("tasks", what);
}

// ---- trials

Finding judge_store(const StoreFacts& facts) {
  if (!facts.error.empty()) {
    return look("store", facts.error,
                "workers meet in such a store: look at the loopback interface, and at a firewall");
  }
  const std::string what = number(facts.median_us, "%.0f us for a set and a get");
  if (facts.median_us > kStoreRoundTripMaxUs) {
    return look("store", what, "a machine at rest takes 50 us: what else runs here?");
  }
  return ok("store", what);
}

Finding judge_all_reduce(const AllReduceFacts& facts) {
  if (facts.by.empty()) return skipped("all-reduce", facts.missing);
  const std::string took = "two workers (" + facts.by + "), " + in_words(facts.took);
  if (!facts.was_in_time) {
    return look("all-reduce", took + ", not done by then",
                "give it more with --timeout; if it hangs for good, look at GLOO_SOCKET_IFNAME, at "
                "the own name above, and at a firewall");
  }
  if (!facts.ended.empty()) {
    return look(
        "all-reduce", took + ": " + facts.ended,
        facts.last_lines.empty() ? "it said nothing" : "its last words: " + facts.last_lines);
  }
  return ok("all-reduce", took);
}

// ---- what is printed

int count_to_look_at(const std::vector<Finding>& findings) {
  return static_cast<int>(std::ranges::count(findings, Verdict::kLook, &Finding::verdict));
}

std::string to_table(const std::string& version, const std::vector<Finding>& findings) {
  constexpr std::size_t kVerdictWidth = 12;
  constexpr const char* kVerdicts[] = {"ok", "look here", "skipped"};
  std::size_t name_width = 0;
  for (const Finding& each : findings) name_width = std::max(name_width, each.name.size() + 3);
  std::string out = version + "\n\n";
  for (const Finding& each : findings) {
    std::string row = kVerdicts[static_cast<std::size_t>(each.verdict)];
    row.resize(kVerdictWidth, ' ');
    row += each.name;
    row.resize(kVerdictWidth + name_width, ' ');
    out += row + each.what + "\n";
    if (each.advice.empty()) continue;
    out += std::string(kVerdictWidth + name_width, ' ') + "-> " + each.advice + "\n";
  }
  const int count = count_to_look_at(findings);
  if (count == 0) return out + "\nNothing to look at.\n";
  return out + "\n" + std::to_string(count) + (count == 1 ? " thing" : " things") +
         " to look at.\n";
}

std::string to_json(const std::string& version, const std::vector<Finding>& findings) {
  constexpr const char* kVerdicts[] = {"ok", "look", "skipped"};
  boost::json::array checks;
  for (const Finding& each : findings) {
    checks.push_back(
        boost::json::object{{"name", each.name},
                            {"verdict", kVerdicts[static_cast<std::size_t>(each.verdict)]},
                            {"what", as_utf8(each.what, kTextBytesMax)},
                            {"advice", as_utf8(each.advice, kTextBytesMax)}});
  }
  return boost::json::serialize(boost::json::object{{"schema", 1},
                                                    {"version", version},
                                                    {"to_look_at", count_to_look_at(findings)},
                                                    {"checks", std::move(checks)}}) +
         "\n";
}

}  // namespace ddprun::cli::doctor
