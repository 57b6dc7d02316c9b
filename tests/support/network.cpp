#include "tests/support/network.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

namespace ddprun::test {
namespace fs = std::filesystem;

namespace {

constexpr char kDevice[] = "eth0";
constexpr char kLocalNames[] = "127.0.0.1 localhost\n::1 localhost\n";

void check(int result, const std::string& what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
}

// Calls `f` on a new thread, which may change its namespaces, and rethrows its exception.
void on_another_thread(const std::function<void()>& f) {
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      f();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
}

UniqueFd open_file(const std::string& path, int flags) {
  UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC));
  check(fd.get(), path);
  return fd;
}

UniqueFd own_namespace(const std::string& kind) {
  return open_file("/proc/thread-self/ns/" + kind, O_RDONLY);
}

// Opens a TAP device in the network namespace of the calling thread.
UniqueFd open_tap() {
  UniqueFd tap = open_file("/dev/net/tun", O_RDWR | O_NONBLOCK);
  ifreq request{};
  std::memcpy(request.ifr_name, kDevice, sizeof kDevice);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  check(ioctl(tap.get(), TUNSETIFF, &request), "TUNSETIFF");
  return tap;
}

// Moves the calling thread into new namespaces.
void leave_for_new_namespaces() {
  check(unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS), "unshare");
  check(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), "mount /");
}

std::string link_of_network(const std::string& process) {
  std::error_code gone;
  return fs::read_symlink("/proc/" + process + "/ns/net", gone);
}

std::string in_words(const std::vector<pid_t>& pids) {
  std::string words;
  for (const pid_t pid : pids) {
    if (const auto info = process(pid)) words += info->name + " (" + std::to_string(pid) + ") ";
  }
  return words;
}

}  // namespace

const std::optional<std::string>& Network::obstacle() {
  static const std::optional<std::string> found = []() -> std::optional<std::string> {
    try {
      on_another_thread([] {
        leave_for_new_namespaces();
        open_tap();
      });
    } catch (const std::exception& error) {
      return std::string("no network namespaces here (they need root): ") + error.what();
    }
    Job ip({"ip", "-V"});
    if (ip.wait() != exited(0)) return "no program 'ip' here: scripts/setup installs iproute2";
    return std::nullopt;
  }();
  return found;
}

Network::Network(int nodes, bool with_names) {
  forget_names();
  switch_.emplace(make_nodes(nodes));
  for (int node = 0; with_names && node < nodes; ++node) add_name(node);
}

std::vector<UniqueFd> Network::make_nodes(int nodes) {
  std::vector<UniqueFd> taps;
  for (int node = 0; node < nodes; ++node) {
    on_another_thread([&] {
      leave_for_new_namespaces();
      check(mount((folder_ / "hosts").c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr), "hosts");
      const std::string name = host(node);
      check(sethostname(name.data(), name.size()), "sethostname");
      taps.push_back(open_tap());
      nodes_.push_back({own_namespace("net"), own_namespace("mnt"), own_namespace("uts"),
                        link_of_network("thread-self")});
    });
    // nodad: an IPv6 address is usable at once. A long queue: a burst of connections must not lose
    // frames, because TCP then waits before it retransmits.
    const std::string port = FrameSwitch::hardware_address(static_cast<std::size_t>(node));
    Job ip({"ip", "-batch", "-"},
           on(node, {.stdin_text = "link set lo up\n"
                                   "link set eth0 address " +
                                   port +
                                   " txqueuelen 20000\n"
                                   "link set eth0 addrgenmode none\n"
                                   "link set eth0 up\n"
                                   "addr add " +
                                   address(node) +
                                   "/24 dev eth0\n"
                                   "addr add " +
                                   address6(node) + "/64 dev eth0 nodad\n"}));
    if (ip.wait() != exited(0)) throw std::runtime_error("ip -batch: " + ip.err());
  }
  return taps;
}

Network::~Network() {
  eventually([this] {
    const auto left = processes();
    for (const pid_t pid : left) kill(pid, SIGKILL);
    return left.empty();
  });
}

std::string Network::host(int node) { return "node" + std::to_string(node); }
std::string Network::address(int node) { return "10.77.0." + std::to_string(node + 1); }

std::string Network::address6(int node) {
  char text[16];
  std::snprintf(text, sizeof text, "fd77::%x", static_cast<unsigned>(node + 1));
  return text;
}

JobSetup Network::on(int node, JobSetup setup) const {
  const Node& there = at(node);
  setup.namespaces = {there.network.get(), there.name.get(), there.files.get()};
  // A process that enters a mount namespace starts in its root directory.
  if (setup.directory.empty()) setup.directory = fs::current_path();
  return setup;
}

void Network::within(int node, const std::function<void()>& f) const {
  on_another_thread([&] {
    check(setns(at(node).network.get(), CLONE_NEWNET), "setns");
    f();
  });
}

// The nodes have mounted this file, so it must be changed in place and never replaced.
void Network::add_name(int node, const std::string& name) {
  std::ofstream(folder_ / "hosts", std::ios::app) << address(node) << " " << name << "\n"
                                                  << address6(node) << " " << name << "\n";
}

void Network::forget_names() { write_file(folder_ / "hosts", kLocalNames); }

void Network::rename(int node, const std::string& host) const {
  on_another_thread([&] {
    check(setns(at(node).name.get(), CLONE_NEWUTS), "setns");
    check(sethostname(host.data(), host.size()), "sethostname");
  });
}

void Network::set_cable(int node, const Cable& cable) {
  switch_->set_cable(static_cast<std::size_t>(node), cable);
}

bool Network::break_connection(int node, std::uint16_t tcp_port, milliseconds deadline) {
  return switch_->break_connection(static_cast<std::size_t>(node), tcp_port, deadline);
}

std::vector<pid_t> Network::processes() const {
  std::vector<pid_t> found;
  for (const ProcessInfo& info : all_processes()) {
    if (info.state == 'Z') continue;
    const std::string link = link_of_network(std::to_string(info.pid));
    if (std::ranges::any_of(nodes_, [&](const Node& node) { return node.network_link == link; })) {
      found.push_back(info.pid);
    }
  }
  return found;
}

std::vector<std::string> Network::left_over(milliseconds deadline) const {
  if (eventually([this] { return processes().empty(); }, deadline)) return {};
  return {in_words(processes())};
}

}  // namespace ddprun::test
