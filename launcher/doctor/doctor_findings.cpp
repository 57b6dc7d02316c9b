#include "launcher/doctor/doctor_findings.h"

#include <boost/json.hpp>
#include <cstdio>
#include <initializer_list>

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/lists.h"

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

struct Check {
  bool is_hit;
  std::string what;
  std::string advice;
  bool is_for_several_nodes = false;
};

// The first check that is hit is to be looked at; without one it is ok, and `what` says how it is.
Finding judged(const std::string& name, const std::string& what,
               std::initializer_list<Check> checks = {}) {
  const auto* const hit = std::ranges::find(checks, true, &Check::is_hit);
  if (hit == checks.end()) return {name, Verdict::kOk, what, {}};
  return {name, Verdict::kLook, hit->what, hit->advice, hit->is_for_several_nodes};
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

std::string in_words(Limit limit) { return limit ? std::to_string(*limit) : "unlimited"; }

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace

// ---- programs

Finding judge_ddprun(const ProgramFacts& facts) {
  if (facts.path.empty()) {
    return {"ddprun", Verdict::kNote, "no ddprun on PATH",
            "put the folder of ddpctl on PATH: ddprun is beside it"};
  }
  return judged(
      "ddprun", facts.path,
      {{facts.version != facts.own_version, facts.path + " is another one: " + facts.version,
        "all nodes of a job need the same round protocol; put one version on PATH"}});
}

Finding judge_kernel(const std::string& release) { return judged("kernel", release); }

Finding judge_glibc(const std::string& version) { return judged("C library", "glibc " + version); }

Finding judge_python(const PythonFacts& facts) {
  if (facts.path.empty()) return judged("python", "none, which only Python programs need");
  return judged("python",
                facts.version + " with " +
                    (facts.torch.empty() ? "no torch" : "torch " + facts.torch) + " (" +
                    facts.path + ")",
                {{facts.version.empty(), facts.path + " does not answer",
                  "run it by hand; PYTHON_EXEC names the one that ddprun is to use"}});
}

// ---- network

Finding judge_ports(const PortFacts& facts) {
  const bool has_range = facts.first_ephemeral > 0;
  const std::string range =
      std::to_string(facts.first_ephemeral) + " to " + std::to_string(facts.last_ephemeral);
  const int count = facts.last_ephemeral - facts.first_ephemeral + 1;
  std::vector<int> inside;
  for (const int port : {29400, 29500}) {
    if (has_range && port >= facts.first_ephemeral && port <= facts.last_ephemeral &&
        std::ranges::count(facts.reserved, port) == 0) {
      inside.push_back(port);
    }
  }
  return judged("ports", "can listen" + (has_range ? "; connections take " + range : std::string()),
                {{!facts.listen_error.empty(), "nothing can listen here: " + facts.listen_error,
                  "workers meet at a port; look at the container's or the host's network"},
                 {has_range && count < kEphemeralPortsMin,
                  "only " + std::to_string(count) + " for connections (" + range + ")",
                  "widen net.ipv4.ip_local_port_range"},
                 {!facts.taken.empty(), "in use at the moment: " + joined(facts.taken),
                  "that is where nodes meet by default; give another --master-port, or port in "
                  "--rdzv-endpoint"},
                 {!inside.empty(), joined(inside) + " may go to any connection (" + range + ")",
                  "a job that meets there fails now and then; add them to "
                  "net.ipv4.ip_local_reserved_ports, or give another port"}});
}

Finding judge_own_name(const NameFacts& facts) {
  const std::string found = facts.name + " is " + joined(facts.addresses);
  return judged(
      "own name", found,
      {{!facts.was_in_time, facts.name + " was not found within " + time_in_words(facts.took),
        "PyTorch looks it up too: add it to /etc/hosts, or correct the name server's entry in "
        "/etc/resolv.conf"},
       {!facts.error.empty(), facts.name + ": " + facts.error,
        "Gloo looks it up to choose an interface: add it to /etc/hosts, or set "
        "GLOO_SOCKET_IFNAME"},
       {std::ranges::all_of(facts.addresses, is_loopback),
        found + ", which no other node can reach",
        "for jobs of several nodes: give this node's address in /etc/hosts, or use the address "
        "and not the name in --master-addr, --rdzv-endpoint and --local-addr",
        /*is_for_several_nodes=*/true},
       {facts.took > kLookupMax, found + ", after " + time_in_words(facts.took),
        "every start of a group waits for that: add it to /etc/hosts"}});
}

Finding judge_other_name(const NameFacts& facts) {
  const std::string found = joined(facts.addresses);
  return judged("name " + facts.name, found,
                {{!facts.was_in_time, "not found within " + time_in_words(facts.took),
                  "correct the name server's entry in /etc/resolv.conf, or add it to /etc/hosts"},
                 {!facts.error.empty(), facts.error,
                  "add it to /etc/hosts or to the name server; is it spelt right?"},
                 {facts.took > kLookupMax, found + ", after " + time_in_words(facts.took),
                  "add it to /etc/hosts"}});
}

Finding judge_reverse(const std::vector<NameFacts>& facts) {
  std::vector<std::string> slow;
  Milliseconds longest{};
  for (const NameFacts& each : facts) {
    longest = std::max(longest, each.took);
    if (each.was_in_time && each.took <= kLookupMax) continue;
    slow.push_back(each.name + (each.was_in_time ? " (" : " (given up after ") +
                   time_in_words(each.took) + ")");
  }
  return judged(
      "reverse look-up",
      std::to_string(facts.size()) + (facts.size() == 1 ? " address" : " addresses") +
          " of this node, " + time_in_words(longest) + " at most",
      {{!slow.empty(), "slow: " + joined(slow),
        "PyTorch's store client asks for the name of every address that it connects to: add them "
        "to /etc/hosts"}});
}

// ---- machine

Finding judge_clock(const ClockFacts& facts) {
  const std::string source = facts.source.empty() ? "" : facts.source + ", ";
  const std::string what = source + number(facts.reading_ns, "%.0f ns to read");
  const bool is_kept = facts.is_synchronised == true;
  return judged(
      "clock",
      what + (is_kept ? ", kept right to " + time_in_words(facts.error_max) : std::string()),
      {{facts.went_backwards, source + "the steady clock goes backwards",
        "every time limit relies on it: choose another clock source in "
        "/sys/devices/system/clocksource"},
       {facts.reading_ns > kClockReadingMaxNs, what,
        "that is a system call: a clock source such as tsc or kvm-clock is a hundred times "
        "quicker"},
       {facts.stepped_by > kClockStepMax || facts.stepped_by < -kClockStepMax,
        "the time of day was set while we looked, by " + std::to_string(facts.stepped_by.count()) +
            " ms",
        "is there more than one that sets it? Times in logs and reports cannot be trusted"},
       {facts.is_synchronised == false, what + ", and nothing keeps it right",
        "times in the logs of several nodes will not fit together: run chrony or "
        "systemd-timesyncd on the host",
        /*is_for_several_nodes=*/true},
       {is_kept && facts.error_max > kClockErrorMax,
        what + ", right to " + time_in_words(facts.error_max) + " only",
        "look at chronyc tracking, or timedatectl timesync-status"}});
}

Finding judge_gpus(const GpuFacts& facts) {
  const bool has_none = facts.driver.empty() && facts.devices == 0;
  if (has_none && facts.on_the_bus == 0) return judged("GPUs", "none of NVIDIA's");
  const std::string what =
      std::to_string(facts.devices) + ", driver " + (facts.driver.empty() ? "?" : facts.driver);
  const bool hides_some = facts.visible && facts.visible_count != facts.devices;
  const std::string shown = hides_some
                                ? what + ", of which CUDA_VISIBLE_DEVICES='" + *facts.visible +
                                      "' shows " + std::to_string(facts.visible_count)
                                : what;
  return judged(
      "GPUs", shown,
      {{has_none, std::to_string(facts.on_the_bus) + " on the bus, but no driver is loaded",
        "install NVIDIA's driver, or load it (modprobe nvidia)"},
       {facts.devices == 0, "the driver has " + std::to_string(facts.driven) + ", none is in /dev",
        "start a container with --gpus all (Docker) or resources.limits of nvidia.com/gpu "
        "(Kubernetes); on the host run nvidia-smi once, as root"},
       {!facts.has_control || !facts.has_uvm,
        what + ", but no " + (facts.has_control ? "/dev/nvidia-uvm" : "/dev/nvidiactl"),
        "CUDA cannot start: on the host run nvidia-modprobe -u -c=0; a container needs that file "
        "too"},
       {!facts.may_open, what + ", which this user may not open",
        "look at the rights of /dev/nvidia*; under Slurm, ask for them with --gpus"},
       {hides_some && facts.visible_count == 0, shown,
        "unset it, unless programs are to use the CPU"}});
}

Finding judge_shared_memory(const SharedMemoryFacts& facts) {
  const std::string more =
      "data loaders of Python and NCCL need it: docker run --shm-size=8g or --ipc=host; on "
      "Kubernetes an emptyDir with medium: Memory at /dev/shm";
  const std::string what = in_words(facts.size) + ", " + in_words(facts.free) + " free";
  return judged("/dev/shm", what,
                {{!facts.is_there, "not there", more},
                 {!facts.is_writable, "nothing can be written there", more},
                 {facts.size < kSharedMemoryMin, what, more},
                 {facts.free < kSharedMemoryMin, what,
                  "what killed jobs left there stays: look at it with ls -l /dev/shm"}});
}

Finding judge_open_files(Limit soft, Limit hard) {
  const std::string what = in_words(soft) + " (hard " + in_words(hard) + ")";
  return judged("open files", what,
                {{soft && *soft < kOpenFilesMin, what,
                  "data loaders and connections between ranks take hundreds: ulimit -n 65536, "
                  "LimitNOFILE= in a unit, --ulimit nofile= for Docker"}});
}

Finding judge_processes(Limit limit, int cpus) {
  // A PyTorch worker has a few threads for each CPU, and there may be one worker for each CPU.
  const auto wanted = std::max(kProcessesMin, static_cast<std::uint64_t>(cpus) * 64);
  return judged("processes", in_words(limit),
                {{limit && *limit < wanted, in_words(limit) + " for this user, threads included",
                  "PyTorch starts threads for every CPU in every worker: raise ulimit -u to " +
                      std::to_string(wanted) + " at least"}});
}

Finding judge_locked_memory(Limit limit, bool has_rdma) {
  const std::string what = limit ? in_words(*limit) : "unlimited";
  return judged("locked memory", what + (has_rdma ? "" : ", and no InfiniBand here"),
                {{has_rdma && limit, what,
                  "InfiniBand and RoCE pin memory: ulimit -l unlimited, LimitMEMLOCK=infinity in a "
                  "unit"}});
}

Finding judge_cpus(const CpuFacts& facts) {
  std::string what = std::to_string(facts.usable) + " of " + std::to_string(facts.online);
  if (facts.quota) what += number(*facts.quota, ", %.4g CPUs' time");
  return judged(
      "CPUs", what,
      {{facts.usable < facts.online, what,
        "affinity or a cgroup leaves only these: PyTorch and --nproc-per-node=cpu count all; set "
        "OMP_NUM_THREADS, and say --nproc-per-node=usable-cpus"}});
}

Finding judge_memory(const UseFacts& cgroup, std::uint64_t available_in_machine) {
  std::uint64_t left = available_in_machine;
  std::string what = in_words(left) + " free";
  if (cgroup.limit) {
    left = std::min(left, cgroup.left());
    what = in_words(left) + " free, the cgroup's limit is " + in_words(*cgroup.limit);
  }
  return judged(
      "memory", what,
      {{left < kMemoryLeftMin, what,
        "each worker of PyTorch's takes 0.3 GiB before it has done anything (more with CUDA): "
        "raise the limit, or end what uses it"}});
}

Finding judge_tasks(const UseFacts& cgroup) {
  if (!cgroup.limit) return judged("tasks", "no limit of a cgroup");
  const std::uint64_t left = cgroup.left();
  const std::string what =
      std::to_string(left) + " left of the cgroup's " + std::to_string(*cgroup.limit);
  return judged("tasks", what,
                {{left < kTasksLeftMin, what,
                  "every thread is one: TasksMax= of a unit, --pids-limit of Docker, podPidsLimit "
                  "of a kubelet"}});
}

Finding judge_kept_memory(const std::vector<KeptMemoryFacts>& kept) {
  std::vector<std::string> all;
  for (const KeptMemoryFacts& each : kept) {
    all.push_back(each.is_silent ? "some whose process (ddprun-memory) does not answer"
                                 : in_words(each.bytes) + " of job '" + printable(each.job) +
                                       "' for another " + std::to_string(each.left.count()) + " s");
  }
  return judged("kept memory", "none",
                {{!kept.empty(), joined(all, ", "),
                  "the next ddprun of that job takes it; ddpctl forget JOB frees it"}});
}

// ---- trials

Finding judge_store(const StoreFacts& facts) {
  const std::string what = number(facts.median_us, "%.0f us for a set and a get");
  return judged(
      "store", what,
      {{!facts.error.empty(), facts.error,
        "workers meet in such a store: look at the loopback interface, and at a firewall"},
       {facts.median_us > kStoreRoundTripMaxUs, what,
        "a machine at rest takes 50 us: what else runs here?"}});
}

Finding judge_all_reduce(const AllReduceFacts& facts) {
  if (facts.by.empty()) return {"all-reduce", Verdict::kSkipped, facts.missing, {}};
  const std::string took = "two workers (" + facts.by + "), " + time_in_words(facts.took);
  return judged(
      "all-reduce", took,
      {{!facts.was_in_time, took + ", not done by then",
        "give it more with --timeout; if it hangs for good, look at GLOO_SOCKET_IFNAME, at the "
        "own name above, and at a firewall"},
       {!facts.ended.empty(), took + ": " + facts.ended,
        facts.last_lines.empty() ? "it said nothing" : "its last words: " + facts.last_lines}});
}

// ---- what is printed

Finding on_one_node(Finding finding) {
  if (finding.verdict == Verdict::kLook && finding.is_for_several_nodes) {
    finding.verdict = Verdict::kNote;
  }
  return finding;
}

int count_to_look_at(const std::vector<Finding>& findings) {
  return static_cast<int>(std::ranges::count(findings, Verdict::kLook, &Finding::verdict));
}

std::string to_row(const Finding& finding, std::size_t name_width) {
  constexpr std::size_t kVerdictWidth = 12;
  constexpr std::size_t kGap = 3;
  constexpr const char* kVerdicts[] = {"ok", "look here", "skipped", "note"};
  std::string row = kVerdicts[static_cast<std::size_t>(finding.verdict)];
  row.resize(kVerdictWidth, ' ');
  row += finding.name;
  const std::size_t indent = kVerdictWidth + std::max(name_width, finding.name.size()) + kGap;
  row.resize(indent, ' ');
  row += finding.what + "\n";
  if (!finding.advice.empty()) row += std::string(indent, ' ') + "-> " + finding.advice + "\n";
  return row;
}

std::string last_line(const std::vector<Finding>& findings) {
  const int count = count_to_look_at(findings);
  return (count == 0 ? "Nothing" : counted(count, "thing")) + " to look at.\n";
}

std::string to_json(const std::string& version, const std::vector<Finding>& findings) {
  constexpr const char* kVerdicts[] = {"ok", "look", "skipped", "note"};
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
