#include "launcher/doctor/doctor_facts.h"

#include <gnu/libc-version.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "launcher/machine/placement_files.h"
#include "rendezvous/common/cgroup.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/store_client/store_client.h"

namespace ddprun::cli::doctor {
namespace {

using agent::names_in;
using std::chrono::steady_clock;

constexpr std::array kOurPorts{29400, 29500};

// A bind to all interfaces fails if another process listens on this port.
bool is_taken(int port) {
  const rdzv::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 &&
         errno == EADDRINUSE;
}

std::int64_t nanoseconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000L + now.tv_nsec;
}

Limit limit_of(rlim_t value) { return value == RLIM_INFINITY ? Limit{} : Limit{value}; }

void take_tighter(UseFacts& facts, const UseFacts& other) {
  if (other.limit && (!facts.limit || other.left() < facts.left())) facts = other;
}

}  // namespace

std::string kernel_release() {
  utsname name{};
  ::uname(&name);
  return name.release;
}

std::string glibc_version() { return ::gnu_get_libc_version(); }

PortFacts read_ports(const std::string& root) {
  PortFacts facts;
  if (auto server = rdzv::StoreServer::start({.address = "127.0.0.1"}); !server) {
    facts.listen_error = server.error().to_string();
  }
  const std::string folder = root + "/proc/sys/net/ipv4/";
  std::istringstream(file_text(folder + "ip_local_port_range")) >> facts.first_ephemeral >>
      facts.last_ephemeral;
  // "29400,30000-30010", as lists of CPUs are written.
  const auto reserved = agent::parse_cpu_list(file_text(folder + "ip_local_reserved_ports"))
                            .value_or(std::vector<int>());
  for (const int port : kOurPorts) {
    if (std::ranges::count(reserved, port) > 0) facts.reserved.push_back(port);
    if (is_taken(port)) facts.taken.push_back(port);
  }
  return facts;
}

std::string own_host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::vector<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(each->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) !=
        0) {
      continue;
    }
    const std::string address = text.data();
    // Link-local addresses are no use as a meeting place.
    if (address.starts_with("fe80:") || std::ranges::count(addresses, address) > 0) continue;
    addresses.push_back(address);
  }
  return addresses;
}

std::string name_of_address(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (::getaddrinfo(address.c_str(), nullptr, &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  std::array<char, NI_MAXHOST> name{};
  const int failed = ::getnameinfo(list->ai_addr, list->ai_addrlen, name.data(), name.size(),
                                   nullptr, 0, NI_NAMEREQD);
  return failed == 0 ? name.data() : "";
}

std::int64_t wall_ahead_ns() { return nanoseconds(CLOCK_REALTIME) - nanoseconds(CLOCK_MONOTONIC); }

ClockFacts read_clock(std::int64_t wall_ahead_ns_before, const std::string& root) {
  constexpr int kReadings = 2000;
  ClockFacts facts;
  facts.source =
      trimmed(file_text(root + "/sys/devices/system/clocksource/clocksource0/current_clocksource"));
  const std::int64_t first = nanoseconds(CLOCK_MONOTONIC);
  std::int64_t last = first;
  for (int i = 0; i < kReadings; ++i) {
    const std::int64_t now = nanoseconds(CLOCK_MONOTONIC);
    if (now < last) facts.went_backwards = true;
    last = now;
  }
  facts.reading_ns = static_cast<double>(last - first) / kReadings;
  facts.stepped_by = std::chrono::duration_cast<Milliseconds>(
      std::chrono::nanoseconds(wall_ahead_ns() - wall_ahead_ns_before));
  timex state{};
  if (::adjtimex(&state) >= 0) {
    facts.is_synchronised = (state.status & STA_UNSYNC) == 0;
    facts.error_max = Milliseconds(state.maxerror / 1000);
  }
  return facts;
}

GpuFacts read_gpus(const agent::Machine& machine, const Environment& environment) {
  const std::string& root = machine.root;
  GpuFacts facts;
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …"
  std::istringstream version(file_text(root + "/proc/driver/nvidia/version"));
  for (std::string word; version >> word;) {
    const bool is_number = word.find_first_not_of("0123456789.") == std::string::npos;
    if (!is_number || word.find('.') == std::string::npos) continue;
    facts.driver = word;
    break;
  }
  facts.driven = static_cast<int>(names_in(root + "/proc/driver/nvidia/gpus").size());
  const std::string bus = root + "/sys/bus/pci/devices/";
  for (const std::string& device : names_in(bus)) {
    const bool is_nvidias = file_text(bus + device + "/vendor").starts_with("0x10de");
    const bool is_display = file_text(bus + device + "/class").starts_with("0x03");
    if (is_nvidias && is_display) ++facts.on_the_bus;
  }
  for (const std::string& name : names_in(root + "/dev")) {
    constexpr std::string_view kPrefix = "nvidia";
    const std::string path = root + "/dev/" + name;
    if (name == "nvidiactl") facts.has_control = true;
    if (name == "nvidia-uvm") facts.has_uvm = true;
    const bool is_gpu = name.starts_with(kPrefix) &&
                        agent::number(std::string_view(name).substr(kPrefix.size())).has_value();
    if (is_gpu) ++facts.devices;
    if ((is_gpu || name == "nvidiactl" || name == "nvidia-uvm") &&
        ::access(path.c_str(), R_OK | W_OK) != 0) {
      facts.may_open = false;
    }
  }
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  if (visible != environment.end()) {
    facts.visible = visible->second;
    facts.visible_count =
        static_cast<int>(agent::visible_gpus(&visible->second, agent::find_gpus(machine)).size());
  }
  return facts;
}

SharedMemoryFacts read_shared_memory(const std::string& folder) {
  SharedMemoryFacts facts;
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return facts;
  facts.is_there = true;
  facts.is_writable = ::access(folder.c_str(), W_OK | X_OK) == 0;
  facts.size = std::uint64_t{disk.f_blocks} * disk.f_frsize;
  facts.free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  return facts;
}

Limits read_limits() {
  const auto read = [](__rlimit_resource which) {
    rlimit limit{};
    ::getrlimit(which, &limit);
    return limit;
  };
  const rlimit files = read(RLIMIT_NOFILE);
  return {limit_of(files.rlim_cur), limit_of(files.rlim_max), limit_of(read(RLIMIT_NPROC).rlim_cur),
          limit_of(read(RLIMIT_MEMLOCK).rlim_cur)};
}

bool has_rdma(const std::string& root) { return !names_in(root + "/sys/class/infiniband").empty(); }

// Cached files that were used more than once count as used memory: giving them up costs the job time.
UseFacts read_memory_use(const std::string& root) {
  UseFacts facts;
  for (const cgroup::Memory& group : cgroup::memory(root)) {
    take_tighter(facts, {group.limit, group.used - std::min(group.used, group.inactive_files)});
  }
  return facts;
}

UseFacts read_task_use(const std::string& root) {
  UseFacts facts;
  for (const std::string& group : cgroup::folders("pids", root)) {
    take_tighter(facts, {cgroup::number_in(group + "/pids.max"),
                         cgroup::number_in(group + "/pids.current").value_or(0)});
  }
  return facts;
}

std::uint64_t available_memory(const std::string& root) {
  constexpr std::string_view kKey = "MemAvailable:";
  const std::string text = file_text(root + "/proc/meminfo");
  const auto at = text.find(kKey);
  if (at == std::string::npos) return 0;
  return std::strtoull(text.c_str() + at + kKey.size(), nullptr, 10) * 1024;
}

StoreFacts try_store() {
  constexpr int kRoundTrips = 101;
  constexpr std::chrono::seconds kPatience{5};
  const auto server = rdzv::StoreServer::start({.address = "127.0.0.1"});
  if (!server) return {server.error().to_string(), 0};
  auto client = rdzv::StoreClient::connect({.server = {"127.0.0.1", (*server)->port()},
                                            .connect_timeout = kPatience,
                                            .timeout = kPatience});
  if (!client) return {client.error().to_string(), 0};
  std::vector<double> times;
  for (int i = 0; i < kRoundTrips; ++i) {
    const auto began = steady_clock::now();
    const std::string value = std::to_string(i);
    auto done = (*client)->set("doctor", value);
    if (!done) return {done.error().to_string(), 0};
    const auto got = (*client)->get("doctor");
    if (!got) return {got.error().to_string(), 0};
    if (*got != value) return {"it gave back another value than was set", 0};
    times.push_back(std::chrono::duration<double, std::micro>(steady_clock::now() - began).count());
  }
  std::ranges::nth_element(times, times.begin() + kRoundTrips / 2);
  return {"", times[kRoundTrips / 2]};
}

}  // namespace ddprun::cli::doctor
