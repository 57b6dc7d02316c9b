#include "tests/support/job.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace ddprun::test {
namespace fs = std::filesystem;

namespace {

constexpr milliseconds kPollInterval{2};

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::vector<pid_t> all_pids() {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos) pids.push_back(std::stoi(name));
  }
  return pids;
}

// The next functions run between fork and exec, where only async-signal-safe calls are allowed.
void become_the_command(const std::vector<char*>& argv, const std::vector<char*>& envp,
                        const JobSetup& setup, const std::array<int, 3>& stdio, pid_t parent) {
  // If the test dies (a timeout of ctest), the launcher dies too; its keeper kills the workers.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(98);
  for (const int fd : setup.namespaces) {
    if (setns(fd, 0) != 0) _exit(98);
  }
  for (int number = 1; number < NSIG; ++number) std::signal(number, SIG_DFL);
  for (const int number : setup.ignored) std::signal(number, SIG_IGN);
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int number : setup.blocked) sigaddset(&blocked, number);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
  for (int fd = 0; fd < 3; ++fd) dup2(stdio[static_cast<std::size_t>(fd)], fd);
  if (!setup.directory.empty() && chdir(setup.directory.c_str()) != 0) _exit(98);
  execvpe(argv[0], argv.data(), envp.data());
  _exit(98);
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

int open_or_throw(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) throw_errno(path);
  return fd;
}

}  // namespace

bool eventually(const std::function<bool()>& holds, milliseconds deadline) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= until) return holds();
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

std::size_t count_of(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

bool full_tests() {
  const char* value = std::getenv("DDPRUN_TEST_FULL");
  return value != nullptr && std::string_view(value) == "1";
}

std::ostream& operator<<(std::ostream& out, const Ended& ended) {
  if (ended.code) return out << "exit code " << *ended.code;
  if (ended.signal) return out << "killed by signal " << *ended.signal;
  return out << "still running at the deadline";
}

std::string read_file(const std::string& path) {
  // A file in /proc may fail while it is read, because its process ends: here that sets the
  // stream's error state, while an istreambuf_iterator would throw.
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(content).str();
}

void write_file(const std::string& path, const std::string& content, int mode) {
  std::ofstream(path, std::ios::binary) << content;
  fs::permissions(path, static_cast<fs::perms>(mode));
}

Command ddprun(const std::vector<std::string>& options, const Command& program) {
  Command command{DDPRUN_PROGRAM};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

Command without_control_groups(Command command) {
  const std::string hide_groups =
      "for at in $(awk '$0 ~ / - cgroup2 / {print $5}' /proc/self/mountinfo); do "
      "mount -o remount,bind,ro $at || exit 99; done; exec \"$@\"";
  command.insert(command.begin(), {"unshare", "--mount", "/bin/sh", "-c", hide_groups, "sh"});
  return command;
}

bool has_fake_gpu() { return std::filesystem::exists(DDPRUN_FAKE_GPU "/libnccl.so.2"); }

Command on_fake_gpu(Command command) {
  command.insert(command.begin(), {DDPRUN_ON_FAKE_GPU, DDPRUN_FAKE_GPU});
  return command;
}

Command worker(std::initializer_list<std::string> actions) {
  Command command{DDPRUN_TEST_WORKER};
  command.insert(command.end(), actions.begin(), actions.end());
  return command;
}

Command meeting_worker(std::initializer_list<std::string> actions) {
  Command command{DDPRUN_MEETING_WORKER};
  const Command rest = worker(actions);
  command.insert(command.end(), rest.begin(), rest.end());
  return command;
}

Command with_calls_denied(const std::vector<std::string>& rules, const Command& command) {
  Command all;
#if defined(__SANITIZE_ADDRESS__)
  // Its search for leaks makes calls of its own, and waits for threads that hang in one.
  const char* const options = std::getenv("ASAN_OPTIONS");
  all = {"/usr/bin/env",
         "ASAN_OPTIONS=" + std::string(options == nullptr ? "" : options) + ":detect_leaks=0"};
#endif
  all.push_back(DDPRUN_DENY_CALLS);
  all.insert(all.end(), rules.begin(), rules.end());
  all.push_back("--");
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

Command ddpctl(const std::vector<std::string>& arguments) {
  Command command{DDPRUN_DDPCTL};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::map<int, Stamp> stamps(const std::string& directory, int round) {
  std::map<int, Stamp> found;
  const std::string prefix = std::to_string(round) + ".";
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix)) continue;
    const std::string rank = name.substr(prefix.size());
    if (rank.find_first_not_of("0123456789") != std::string::npos) continue;  // not renamed yet
    std::ifstream file(entry.path());
    Stamp stamp;
    if (file >> stamp.at_ns >> stamp.pid) found[std::stoi(rank)] = stamp;
  }
  return found;
}

namespace {

std::map<std::string, std::string> pairs_in(const std::string& file, char separator) {
  std::map<std::string, std::string> pairs;
  std::istringstream content(read_file(file));
  for (std::string entry; std::getline(content, entry, separator);) {
    const auto equals = entry.find('=');
    if (equals != std::string::npos) pairs[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return pairs;
}

}  // namespace

std::map<std::string, std::string> environment_in(const std::string& file) {
  return pairs_in(file, '\0');
}

std::map<std::string, std::string> state_in(const std::string& file) {
  return pairs_in(file, '\n');
}

std::optional<ProcessInfo> process(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const auto name_begin = stat.find('(');
  const auto name_end = stat.rfind(')');  // the name may contain this character too
  if (name_begin == std::string::npos || name_end == std::string::npos) return std::nullopt;
  ProcessInfo info;
  info.pid = pid;
  info.name = stat.substr(name_begin + 1, name_end - name_begin - 1);
  std::istringstream rest(stat.substr(name_end + 1));
  rest >> info.state >> info.parent;
  return info;
}

std::vector<ProcessInfo> all_processes() {
  std::vector<ProcessInfo> found;
  for (const pid_t pid : all_pids()) {
    if (auto info = process(pid)) found.push_back(*std::move(info));
  }
  return found;
}

std::vector<ProcessInfo> children_of(pid_t parent) {
  auto found = all_processes();
  std::erase_if(found, [&](const ProcessInfo& info) { return info.parent != parent; });
  return found;
}

bool handles(pid_t pid, int signal) {
  constexpr std::string_view kCaught = "SigCgt:\t";
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  const auto at = status.find(kCaught);
  if (at == std::string::npos) return false;
  return (std::stoull(status.substr(at + kCaught.size(), 16), nullptr, 16) >> (signal - 1) & 1) !=
         0;
}

std::vector<std::string> open_files_of(pid_t pid) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& entry :
       fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", ignored)) {
    files.push_back(fs::read_symlink(entry, ignored));
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool is_listening(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool accepted = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  // The kernel may give this socket that very port, and then it is connected with itself.
  sockaddr_in own{};
  socklen_t size = sizeof own;
  const bool itself = getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                      own.sin_port == address.sin_port;
  close(fd);
  return accepted && !itself;
}

Job::Job(const Command& command, JobSetup setup) {
  static std::atomic<int> jobs = 0;
  marker_ = "DDPRUN_TEST_JOB=" + std::to_string(getpid()) + "." + std::to_string(++jobs);

  const std::string own_name = marker_.substr(0, marker_.find('='));
  setup.removed_variables.push_back(own_name);
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string line = *entry;
    const std::string name = line.substr(0, line.find('='));
    const auto& removed = setup.removed_variables;
    if (setup.environment.contains(name)) continue;
    if (std::find(removed.begin(), removed.end(), name) != removed.end()) continue;
    environment.push_back(line);
  }
  for (const auto& [name, value] : setup.environment) environment.push_back(name + "=" + value);
  environment.push_back(marker_);
  // Without it every job of several workers says that it is not set. One that is not wanted is removed.
  const bool has_threads = std::getenv("OMP_NUM_THREADS") != nullptr ||
                           setup.environment.contains("OMP_NUM_THREADS") ||
                           std::ranges::count(setup.removed_variables, "OMP_NUM_THREADS") > 0;
  if (!has_threads) environment.emplace_back("OMP_NUM_THREADS=1");
  std::vector<std::string> arguments = command;

  write_file(folder_ / "in", setup.stdin_text);
  const std::array<int, 3> stdio{
      open_or_throw(folder_ / "in", O_RDONLY),
      setup.stdout_fd ? fcntl(*setup.stdout_fd, F_DUPFD_CLOEXEC, 3)
                      : open_or_throw(folder_ / "out", O_WRONLY | O_CREAT | O_APPEND),
      setup.stderr_fd ? fcntl(*setup.stderr_fd, F_DUPFD_CLOEXEC, 3)
                      : open_or_throw(folder_ / "err", O_WRONLY | O_CREAT | O_APPEND)};
  const auto argv = pointers_to(arguments);
  const auto envp = pointers_to(environment);
  const pid_t self = getpid();
  // Not fork(): the thread sanitizer starts a thread of its own in that child, and setns() refuses a
  // process of several threads.
  pid_ = _Fork();
  if (pid_ < 0) throw_errno("fork");
  if (pid_ == 0) become_the_command(argv, envp, setup, stdio, self);
  for (const int fd : stdio) close(fd);
}

Job::~Job() {
  if (!ended_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  // The keeper ends by itself after it has removed what the agent left behind.
  const auto is_keeper = [](pid_t pid) {
    const auto info = process(pid);
    return info && info->name == "ddprun-keeper";
  };
  const auto end_all_but_keepers = [&] {
    const auto left = processes();
    for (const pid_t pid : left) {
      if (!is_keeper(pid)) kill(pid, SIGKILL);
    }
    return left.empty();
  };
  if (eventually(end_all_but_keepers, seconds(3))) return;
  for (const pid_t pid : processes()) kill(pid, SIGKILL);
}

void Job::signal(int number) const {
  if (!ended_ && kill(pid_, number) != 0) throw_errno("kill");
}

bool Job::has_ended() {
  int status = 0;
  if (!ended_ && waitpid(pid_, &status, WNOHANG) == pid_) {
    ended_ = WIFSIGNALED(status) ? killed_by(WTERMSIG(status)) : exited(WEXITSTATUS(status));
  }
  return ended_.has_value();
}

bool Job::reaches(const std::function<bool()>& holds, milliseconds deadline) {
  bool has_reached = false;
  eventually([&] { return (has_reached = holds()) || has_ended(); }, deadline);
  return has_reached || holds();
}

Ended Job::wait(milliseconds deadline) {
  eventually([this] { return has_ended(); }, deadline);
  return ended_.value_or(Ended{});
}

std::vector<pid_t> Job::processes() const {
  const std::string wanted = marker_ + '\0';
  std::vector<pid_t> found;
  for (const pid_t pid : all_pids()) {
    if (pid == pid_) continue;
    const std::string environment = '\0' + read_file("/proc/" + std::to_string(pid) + "/environ");
    if (environment.find('\0' + wanted) != std::string::npos) found.push_back(pid);
  }
  return found;
}

std::map<int, pid_t> Job::workers() const {
  std::map<int, pid_t> found;
  for (const auto& child : children_of(pid_)) {
    auto environment = environment_in("/proc/" + std::to_string(child.pid) + "/environ");
    if (environment.contains("RANK")) found[std::stoi(environment["RANK"])] = child.pid;
  }
  return found;
}

std::optional<pid_t> Job::keeper() const {
  for (const auto& child : children_of(pid_)) {
    if (child.name == "ddprun-keeper" && child.state != 'Z') return child.pid;
  }
  return std::nullopt;
}

std::vector<std::string> Job::left_over(milliseconds deadline) const {
  std::vector<std::string> words;
  if (eventually([&] { return processes().empty(); }, deadline)) return words;
  for (const pid_t pid : processes()) {
    if (const auto info = process(pid)) {
      words.push_back(info->name + " (pid " + std::to_string(pid) + ", state " + info->state + ")");
    }
  }
  return words;
}

Told run_to_its_end(const Command& command, JobSetup setup) {
  Job job(command, std::move(setup));
  const Ended ended = job.wait();
  return {ended.code.value_or(-1), job.out(), job.err()};
}

}  // namespace ddprun::test
