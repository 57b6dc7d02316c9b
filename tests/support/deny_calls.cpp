// Denies or delays system calls of a command and of all its descendants, by seccomp's user
// notification: static programs and containers included, where a preloaded library or strace does
// not help.
//
//   ddprun_deny_calls RULE… [--record=FILE] -- COMMAND…
//
//   wait4:deny=EPERM                              every wait4 fails with EPERM
//   execve:delay=3000,path=*/train.py             the execution of train.py takes 3 s longer
//   openat:delay=8000,path=/slow/*,process=ddprun the same for a file, in ddprun only
//   poll:deny=ENOSYS,process=ddprun-keeper,nth=2  the second one only, in the keeper only
//
// A rule is CALL:ACTION[,CONDITION…]. The call is a name of <sys/syscall.h>; the libraries choose
// between calls (open and openat, stat and newfstatat), so a rule for each may be needed. `deny` needs
// the name of an errno, `delay` milliseconds, after which the call is made. A call that waits can be
// interrupted by SIGKILL only (before Linux 5.19: by any signal), as one that waits for a file server.
// `path` and `process` are patterns as in a shell: of the call's path argument as the program passes
// it, and of the process name (the main thread's name for all threads of a process). `nth` counts the
// calls that fulfil the other conditions. The first rule that applies to a call decides.
//
// --record=FILE: the file gets a line "PROCESS CALL" for each call that each process name has made.
//
// The command replaces this program and keeps its pid. A process without environment remains that
// answers the kernel, no child of the command; it ends after the command's last descendant. A rule
// with a path needs the right to read the memory of the command's processes: root, or
// kernel.yama.ptrace_scope=0.
#include <fcntl.h>
#include <fnmatch.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kCannot = 125;  // as env(1): this program itself has failed
constexpr int kErrnoMax = 133;

const std::map<std::string, int>& call_numbers() {
  static const std::map<std::string, int> numbers{
#include "call_names.inc"
  };
  return numbers;
}

std::string name_of_call(int number) {
  for (const auto& [name, its] : call_numbers()) {
    if (its == number) return name;
  }
  return std::to_string(number);
}

// Which argument is a path.
const std::map<std::string, unsigned>& path_arguments() {
  static const std::map<std::string, unsigned> arguments{
      {"access", 0},     {"chdir", 0},      {"creat", 0},      {"execve", 0},    {"lstat", 0},
      {"mkdir", 0},      {"open", 0},       {"readlink", 0},   {"rename", 0},    {"rmdir", 0},
      {"stat", 0},       {"statfs", 0},     {"truncate", 0},   {"unlink", 0},    {"execveat", 1},
      {"faccessat", 1},  {"mkdirat", 1},    {"newfstatat", 1}, {"openat", 1},    {"openat2", 1},
      {"faccessat2", 1}, {"readlinkat", 1}, {"renameat", 1},   {"renameat2", 1}, {"statx", 1},
      {"unlinkat", 1}};
  return arguments;
}

[[noreturn]] void give_up(const std::string& sentence) {
  std::fprintf(stderr, "ddprun_deny_calls: %s\n", sentence.c_str());
  std::exit(kCannot);
}

[[noreturn]] void give_up_by_errno(const std::string& what) {
  give_up(what + ": " + std::strerror(errno));
}

struct Rule {
  std::string call;
  int number = -1;
  int error = 0;  // 0: none, but a delay
  milliseconds delay{0};
  std::string path;  // empty: any
  std::string process = "*";
  int nth = 0;  // 0: all
  int seen = 0;
};

int errno_by_name(const std::string& name) {
  for (int number = 1; number <= kErrnoMax; ++number) {
    const char* const its = ::strerrorname_np(number);
    if (its != nullptr && name == its) return number;
  }
  give_up("no errno is called '" + name + "'");
}

int number_in(const std::string& text) {
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || number < 1 || number > INT_MAX) {
    give_up("'" + text + "' is no number above 0");
  }
  return static_cast<int>(number);
}

Rule rule_from(const std::string& text) {
  Rule rule;
  const auto colon = text.find(':');
  rule.call = text.substr(0, colon);
  const auto number = call_numbers().find(rule.call);
  if (number == call_numbers().end()) give_up("no system call is called '" + rule.call + "'");
  rule.number = number->second;
  std::istringstream parts(colon == std::string::npos ? "" : text.substr(colon + 1));
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (key == "deny") {
      rule.error = errno_by_name(value);
    } else if (key == "delay") {
      rule.delay = milliseconds(number_in(value));
    } else if (key == "path") {
      rule.path = value;
    } else if (key == "process") {
      rule.process = value;
    } else if (key == "nth") {
      rule.nth = number_in(value);
    } else {
      give_up("'" + part + "' in '" + text + "' is unknown");
    }
  }
  if ((rule.error != 0) == (rule.delay > milliseconds(0))) {
    give_up("'" + text + "' needs one of deny=ERRNO and delay=MILLISECONDS");
  }
  if (!rule.path.empty() && !path_arguments().contains(rule.call)) {
    give_up("it is not known which argument of " + rule.call + " is a path");
  }
  return rule;
}

// ---- the process that answers the kernel

class Answerer {
 public:
  Answerer(int listener, pid_t command, std::vector<Rule> rules, const std::string& record)
      : listener_(listener),
        command_(command),
        own_program_(program_of("self")),
        rules_(std::move(rules)) {
    if (!record.empty()) record_.open(record, std::ios::app);
    seccomp_notif_sizes sizes{};
    ::syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes);
    call_.resize(std::max<std::size_t>(sizes.seccomp_notif, sizeof(seccomp_notif)));
    answer_.resize(std::max<std::size_t>(sizes.seccomp_notif_resp, sizeof(seccomp_notif_resp)));
  }

  void run() {
    for (;;) {
      int timeout = -1;
      if (!delayed_.empty()) {
        const auto left =
            std::chrono::ceil<milliseconds>(delayed_.begin()->first - Clock::now()).count();
        timeout = static_cast<int>(std::max<std::int64_t>(left, 0));
      }
      pollfd ready{listener_, POLLIN, 0};
      if (::poll(&ready, 1, timeout) < 0 && errno != EINTR) return;
      while (!delayed_.empty() && delayed_.begin()->first <= Clock::now()) {
        answer(delayed_.begin()->second, 0);
        delayed_.erase(delayed_.begin());
      }
      if ((ready.revents & POLLIN) != 0) {
        receive();
      } else if (ready.revents != 0) {
        return;  // no process is left
      }
    }
  }

 private:
  void receive() {
    std::ranges::fill(call_, 0);
    if (::ioctl(listener_, SECCOMP_IOCTL_NOTIF_RECV, call_.data()) != 0) return;  // it was killed
    const auto& call = *reinterpret_cast<const seccomp_notif*>(call_.data());
    has_begun_ = has_begun_ || program_of(std::to_string(command_)) != own_program_;
    if (!has_begun_) return answer(call.id, 0);  // this program executes the command
    const std::string process = process_name(call.pid);
    if (record_.is_open() && recorded_.insert({process, call.data.nr}).second) {
      record_ << process << ' ' << name_of_call(call.data.nr) << std::endl;
    }
    const Rule* const rule = rule_for(call, process);
    if (rule == nullptr) return answer(call.id, 0);
    if (rule->error != 0) return answer(call.id, rule->error);
    delayed_.emplace(Clock::now() + rule->delay, call.id);
  }

  const Rule* rule_for(const seccomp_notif& call, const std::string& process) {
    for (Rule& rule : rules_) {
      if (rule.number != call.data.nr) continue;
      if (::fnmatch(rule.process.c_str(), process.c_str(), 0) != 0) continue;
      if (!rule.path.empty()) {
        const auto path = path_of(call, path_arguments().at(rule.call));
        if (!path || ::fnmatch(rule.path.c_str(), path->c_str(), 0) != 0) continue;
      }
      rule.seen += 1;
      if (rule.nth == 0 || rule.nth == rule.seen) return &rule;
    }
    return nullptr;
  }

  static std::string program_of(const std::string& process) {
    char path[PATH_MAX];
    const ssize_t size = ::readlink(("/proc/" + process + "/exe").c_str(), path, sizeof path);
    return {path, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
  }

  // The name of the whole process: a thread may have a name of its own.
  static std::string process_name(pid_t thread) {
    std::ifstream status("/proc/" + std::to_string(thread) + "/status");
    std::string leader = std::to_string(thread);
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("Tgid:\t")) leader = line.substr(std::strlen("Tgid:\t"));
    }
    std::ifstream name("/proc/" + leader + "/comm");
    std::string text;
    std::getline(name, text);
    return text;
  }

  // Page by page: the page behind the text may not exist.
  static std::optional<std::string> path_of(const seccomp_notif& call, unsigned argument) {
    constexpr std::size_t kPage = 4096;
    std::uintptr_t at = call.data.args[argument];
    std::string path;
    while (path.size() < PATH_MAX) {
      char bytes[kPage];
      iovec here{bytes, kPage - at % kPage};
      iovec there{reinterpret_cast<void*>(at), here.iov_len};
      const ssize_t got = ::process_vm_readv(static_cast<pid_t>(call.pid), &here, 1, &there, 1, 0);
      if (got <= 0) return std::nullopt;
      const auto* const end =
          static_cast<const char*>(std::memchr(bytes, '\0', static_cast<std::size_t>(got)));
      path.append(bytes, end != nullptr ? static_cast<std::size_t>(end - bytes)
                                        : static_cast<std::size_t>(got));
      if (end != nullptr) return path;
      at += static_cast<std::size_t>(got);
    }
    return path;
  }

  // 0: the call is made. The process may have been killed meanwhile.
  void answer(std::uint64_t id, int error) {
    std::ranges::fill(answer_, 0);
    auto& given = *reinterpret_cast<seccomp_notif_resp*>(answer_.data());
    given.id = id;
    given.error = -error;
    given.flags = error == 0 ? SECCOMP_USER_NOTIF_FLAG_CONTINUE : 0;
    ::ioctl(listener_, SECCOMP_IOCTL_NOTIF_SEND, answer_.data());
  }

  const int listener_;
  const pid_t command_;
  const std::string own_program_;
  std::vector<Rule> rules_;
  std::vector<char> call_;
  std::vector<char> answer_;
  bool has_begun_ = false;
  std::ofstream record_;
  std::set<std::pair<std::string, int>> recorded_;
  std::multimap<Clock::time_point, std::uint64_t> delayed_;
};

// Shares the descriptors until the command is executed: that is how the answerer gets the listener.
pid_t fork_with_the_same_descriptors() {
  return static_cast<pid_t>(::syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0));
}

[[noreturn]] void answer_calls(const std::atomic<int>& shared_listener, pid_t command,
                               std::vector<Rule> rules, const std::string& record) {
  while (shared_listener == 0) ::usleep(1000);  // any call may be denied to the one that would wake
  if (shared_listener < 0) ::_exit(0);
  ::unshare(CLONE_FILES);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) ::dup2(nothing, fd);
  ::setsid();
  ::prctl(PR_SET_NAME, "deny-calls");
  Answerer(shared_listener, command, std::move(rules), record).run();
  ::_exit(0);
}

// Only the calls that matter come to the answerer.
std::vector<sock_filter> filter_for(const std::vector<Rule>& rules, bool records) {
  std::vector<sock_filter> filter;
  if (!records) {
    std::set<unsigned> numbers;
    for (const Rule& rule : rules) numbers.insert(static_cast<unsigned>(rule.number));
    filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    for (const unsigned number : numbers) {
      filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
      filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
    }
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, records ? SECCOMP_RET_USER_NOTIF : SECCOMP_RET_ALLOW));
  return filter;
}

int install(const sock_fprog& program) {
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
  constexpr unsigned long kWaitKillable = 1UL << 5;
#else
  constexpr unsigned long kWaitKillable = SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
#endif
  const auto try_it = [&program](unsigned long flags) {
    return static_cast<int>(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                      SECCOMP_FILTER_FLAG_NEW_LISTENER | flags, &program));
  };
  const int listener = try_it(kWaitKillable);
  return listener < 0 && errno == EINVAL ? try_it(0) : listener;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Rule> rules;
  std::string record;
  int at = 1;
  for (; at < argc && std::strcmp(argv[at], "--") != 0; ++at) {
    const std::string word = argv[at];
    constexpr std::string_view kRecord = "--record=";
    word.starts_with(kRecord) ? void(record = word.substr(kRecord.size()))
                              : void(rules.push_back(rule_from(word)));
  }
  if (at + 1 >= argc) give_up("usage: ddprun_deny_calls RULE... [--record=FILE] -- COMMAND...");
  char** const command = argv + at + 1;

  void* const page = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) give_up_by_errno("mmap");
  auto& listener = *new (page) std::atomic<int>(0);
  const pid_t self = ::getpid();
  const pid_t between = fork_with_the_same_descriptors();
  if (between < 0) give_up_by_errno("clone");
  if (between == 0) {
    const bool is_answerer = fork_with_the_same_descriptors() == 0;
    if (!is_answerer) ::_exit(0);  // so that the command gets no child that it does not know
    // Whatever looks for processes of the command by their environment does not find this one.
    for (char** entry = environ; *entry != nullptr; ++entry) {
      std::memset(*entry, 0, std::strlen(*entry));
    }
    answer_calls(listener, self, std::move(rules), record);
  }
  ::waitpid(between, nullptr, 0);

  auto filter = filter_for(rules, !record.empty());
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  int made = install(program);
  if (made < 0 && errno == EACCES) {  // not root
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    made = install(program);
  }
  if (made < 0) {
    listener = -1;
    give_up_by_errno("seccomp does not notify here");
  }
  listener = made;
  ::execvp(command[0], command);
  std::fprintf(stderr, "ddprun_deny_calls: %s: %s\n", command[0], std::strerror(errno));
  ::_exit(127);
}
