// ddprun_test_worker: a worker that performs the actions on its command line, in order.
//
//   ddprun_test_worker stamp DIR on-rank 1 on-round 0 exit 3 wait
//
// `on-rank R` and `on-round N` restrict the next action to that rank or round; `unless FILE`: only
// if FILE does not exist. `become` execs this program again for the remaining actions. FILE may
// contain {rank} and {round}. Linked statically and without iostreams, so that it starts fast:
// benchmarks use it too.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <set>
#include <string>

#include "rendezvous/common/worker_abi/collective_record.h"
#include "worker_lib/process/agent_link.h"

extern char** environ;

namespace {

std::int64_t started_at_ns = 0;

std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

[[noreturn]] void die(const std::string& message) {
  dprintf(STDERR_FILENO, "ddprun_test_worker: %s\n", message.c_str());
  _exit(99);
}

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

std::string expanded(std::string text) {
  for (const auto& [from, to] : {std::pair{"{rank}", variable("RANK")},
                                 std::pair{"{round}", variable("TORCHELASTIC_RESTART_COUNT")}}) {
    for (auto at = text.find(from); at != std::string::npos; at = text.find(from)) {
      text.replace(at, std::strlen(from), to);
    }
  }
  return text;
}

void write_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd, data, size);
    if (written < 0) die(std::string("write: ") + std::strerror(errno));
    data += written;
    size -= static_cast<std::size_t>(written);
  }
}

// A polling reader sees either the complete file or none.
void write_file(const std::string& path, const std::string& content) {
  const std::string aside = path + "." + std::to_string(getpid());
  const int fd = open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) die(aside + ": " + std::strerror(errno));
  write_all(fd, content.data(), content.size());
  close(fd);
  if (rename(aside.c_str(), path.c_str()) != 0) die(path + ": " + std::strerror(errno));
}

void wait_forever() {
  for (;;) pause();
}

// ---- the actions -------------------------------------------------------------------------------

void do_exit(const char* argument) { _exit(std::atoi(argument)); }

void do_signal(const char* argument) {
  const int number = std::atoi(argument);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  std::signal(number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  kill(getpid(), number);
}

void do_wait(const char*) { wait_forever(); }

void do_ignore(const char* argument) { std::signal(std::atoi(argument), SIG_IGN); }

void do_end_well_on(const char* argument) {
  std::signal(std::atoi(argument), [](int) { _exit(0); });
}

volatile std::sig_atomic_t was_caught = 0;

void do_catch(const char* argument) {
  std::signal(std::atoi(argument), [](int) { was_caught = 1; });
}

void do_until_caught(const char*) {
  const timespec pause_time{0, 1'000'000};
  while (was_caught == 0) nanosleep(&pause_time, nullptr);
}

void do_work(const char* milliseconds) {
  const std::int64_t until = monotonic_ns() + std::atol(milliseconds) * 1'000'000;
  const timespec pause_time{0, 1'000'000};
  while (monotonic_ns() < until) nanosleep(&pause_time, nullptr);
}

// Writes the time of this process's start, and its pid, to DIR/<round>.<rank>.
void do_stamp(const char* directory) {
  write_file(expanded(std::string(directory) + "/{round}.{rank}"),
             std::to_string(started_at_ns) + " " + std::to_string(getpid()) + "\n");
}

void do_until(const char* path) {
  const std::string file = expanded(path);
  const timespec pause_time{0, 1'000'000};
  while (access(file.c_str(), F_OK) != 0) nanosleep(&pause_time, nullptr);
}

// The same as `until`, but ends with 70 if a child has died before.
void do_until_unless_child_dies(const char* path) {
  const timespec pause_time{0, 1'000'000};
  for (;;) {
    if (waitpid(-1, nullptr, WNOHANG) > 0) _exit(70);
    if (access(path, F_OK) == 0) return;
    nanosleep(&pause_time, nullptr);
  }
}

void do_touch(const char* path) { write_file(expanded(path), ""); }

void do_environment(const char* path) {
  std::string all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.append(*entry).push_back('\0');
  write_file(expanded(path), all);
}

// Writes what a program inherits besides its environment, as "name=value" lines.
void do_state(const char* path) {
  std::string fds;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] == '.' || fd == dirfd(directory)) continue;
    fds += (fds.empty() ? "" : ",") + std::to_string(fd);
  }
  closedir(directory);

  std::string blocked;
  sigset_t mask;
  sigprocmask(SIG_BLOCK, nullptr, &mask);
  std::string ignored;
  for (int number = 1; number < NSIG; ++number) {
    if (sigismember(&mask, number) == 1)
      blocked += (blocked.empty() ? "" : ",") + std::to_string(number);
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) {
      ignored += (ignored.empty() ? "" : ",") + std::to_string(number);
    }
  }
  const mode_t mask_of_files = umask(0);
  char folder[4096] = "";
  if (getcwd(folder, sizeof folder) == nullptr) die("getcwd");
  std::set<int> of_link;
  for (const char* name :
       {ddprun::link::kSocketVariable, ddprun::link::kPageVariable, ddprun::record::kVariable}) {
    of_link.insert(std::atoi(variable(name).c_str()));
  }
  // Only where a restart can follow.
  if (const char* const snapshot = std::getenv(ddprun::link::kSnapshotVariable)) {
    of_link.insert(std::atoi(snapshot));
  }
  std::string link;
  for (const int fd : of_link) link += (link.empty() ? "" : ",") + std::to_string(fd);
  const auto line = [](const char* name, const std::string& value) {
    return std::string(name) + "=" + value + "\n";
  };
  write_file(
      expanded(path),
      line("fds", fds) + line("blocked", blocked) + line("ignored", ignored) +
          line("pid", std::to_string(getpid())) + line("parent", std::to_string(getppid())) +
          line("group", std::to_string(getpgid(0))) + line("session", std::to_string(getsid(0))) +
          line("umask", std::to_string(mask_of_files)) + line("cwd", folder) + line("link", link));
}

// Starts a child in this process group, like a data loader's worker.
void do_child(const char*) {
  const pid_t child = fork();
  if (child < 0) die("fork");
  if (child == 0) wait_forever();
}

// The same, but it ignores SIGTERM.
void do_deaf_child(const char*) {
  const pid_t child = fork();
  if (child < 0) die("fork");
  if (child == 0) {
    std::signal(SIGTERM, SIG_IGN);
    wait_forever();
  }
}

// Processes that leave their worker's session get a name by which tests recognise them.
void become_stranger() {
  prctl(PR_SET_NAME, "stranger");
  setsid();
}

// Starts a child in a session of its own.
void do_stranger(const char*) {
  const pid_t child = fork();
  if (child < 0) die("fork");
  if (child == 0) {
    become_stranger();
    wait_forever();
  }
}

// Starts a process in a session of its own whose parent has exited, like a daemon.
void do_daemon(const char*) {
  const pid_t child = fork();
  if (child < 0) die("fork");
  if (child == 0) {
    become_stranger();
    if (fork() != 0) _exit(0);
    wait_forever();
  }
  waitpid(child, nullptr, 0);
}

// Starts processes whose parent exits first and that end at once: another process must reap them.
void do_orphans(const char* argument) {
  for (int count = std::atoi(argument); count > 0; --count) {
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
      const pid_t middle = getpid();
      if (fork() != 0) _exit(0);
      const timespec pause_time{0, 1'000'000};
      while (getppid() == middle) nanosleep(&pause_time, nullptr);
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  }
}

// Prints whole, numbered lines, so that a reader can detect a missing or torn one.
void do_flood(const char* argument) {
  const long lines = std::atol(argument);
  std::string block;
  for (long line = 0; line < lines; ++line) {
    char text[80];
    block.append(text,
                 static_cast<std::size_t>(std::snprintf(
                     text, sizeof text, "%s %010ld ........................................\n",
                     variable("RANK").c_str(), line)));
    if (block.size() > 60'000 || line + 1 == lines) {
      write_all(STDOUT_FILENO, block.data(), block.size());
      block.clear();
    }
  }
}

// LINES@RATE: this many lines to stdout and as many to stderr, in turns, of 120 bytes each,
// numbered, at RATE MB/s together (0: as fast as possible). A reader can compute what each line
// must be.
void do_pour(const char* argument) {
  constexpr long kLineBytes = 120;
  constexpr long kBlockLines = 250;
  char* end = nullptr;
  const long lines = std::strtol(argument, &end, 10);
  const double bytes_per_ns = *end == '@' ? std::atof(end + 1) / 1000 : 0;
  const std::int64_t began_at = monotonic_ns();
  for (long begin = 0; begin < lines; begin += kBlockLines) {
    for (const auto& [fd, name] : {std::pair{STDOUT_FILENO, "out"}, {STDERR_FILENO, "err"}}) {
      std::string block;
      for (long line = begin; line < std::min(begin + kBlockLines, lines); ++line) {
        char text[64];
        std::snprintf(text, sizeof text, "%s %s %010ld ", variable("RANK").c_str(), name, line);
        std::string whole = text;
        whole.resize(kLineBytes - 1, '.');
        block += whole + "\n";
      }
      write_all(fd, block.data(), block.size());
    }
    if (bytes_per_ns <= 0) continue;
    const auto due =
        began_at + static_cast<std::int64_t>(
                       static_cast<double>((begin + kBlockLines) * 2 * kLineBytes) / bytes_per_ns);
    const timespec until{due / 1'000'000'000, due % 1'000'000'000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  }
}

void do_close(const char* argument) { close(std::atoi(argument)); }

void do_print(const char* text) {
  const std::string line = expanded(text) + "\n";
  write_all(STDOUT_FILENO, line.data(), line.size());
}

void do_take_memory(const char* mib) {
  const std::size_t bytes = std::strtoul(mib, nullptr, 10) << 20;
  auto* memory = static_cast<volatile char*>(std::malloc(bytes));
  if (memory == nullptr) die("no memory");
  for (std::size_t i = 0; i < bytes; i += 4096) memory[i] = 1;
}

void do_complain(const char* text) {
  const std::string line = expanded(text) + "\n";
  write_all(STDERR_FILENO, line.data(), line.size());
}

// Writes the error file as torch's @record does: in place, without a temporary file.
void do_error_file(const char* text) {
  const std::string content = std::string(R"({"message":{"message":")") + text +
                              R"(","extraInfo":{"py_callstack":"","timestamp":"1760000000"}}})";
  const std::string path = variable("TORCHELASTIC_ERROR_FILE");
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) die(path + ": " + std::strerror(errno));
  write_all(fd, content.data(), content.size());
  close(fd);
}

void do_copy_stdin(const char* path) {
  std::string all;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(STDIN_FILENO, buffer, sizeof buffer)) > 0) {
    all.append(buffer, static_cast<std::size_t>(count));
  }
  write_file(expanded(path), all);
}

// ---- the link to the agent

std::unique_ptr<ddprun::AgentLink> agent_link;

int descriptor(const char* name) {
  const std::string number = variable(name);
  return number.empty() ? -1 : std::atoi(number.c_str());
}

std::unique_ptr<ddprun::AgentLink> open_link() {
  return ddprun::AgentLink::open(descriptor(ddprun::link::kSocketVariable),
                                 descriptor(ddprun::link::kPageVariable));
}

void do_link(const char*) {
  agent_link = open_link();
  if (!agent_link) die("there is no link");
}

void do_no_link(const char*) {
  if (open_link()) die("there is a link that is not mine");
}

ddprun::AgentLink& opened_link() {
  if (!agent_link) die("the action 'link' must come before");
  return *agent_link;
}

void do_progress(const char* argument) {
  char* end = nullptr;
  const long step = std::strtol(argument, &end, 10);
  const long total = *end == '/' ? std::strtol(end + 1, &end, 10) : 0;
  std::vector<ddprun::link::Value> values;
  if (const char* const equals = std::strchr(end, '='); *end == ',' && equals != nullptr) {
    values.push_back(ddprun::link::Value::of({end + 1, static_cast<std::size_t>(equals - end - 1)},
                                             std::atof(equals + 1)));
  }
  opened_link().step_done(step, total, values);
}

void do_saving(const char*) { opened_link().enter(ddprun::WorkerPhase::kSaving); }

void do_progress_forever(const char*) {
  for (std::int64_t step = 1;; ++step) opened_link().step_done(step, -step);
}

void do_take_leave(const char*) { opened_link().take_leave_requests(); }

void do_until_told(const char*) {
  const timespec pause_time{0, 1'000'000};
  while (!opened_link().is_told_to_leave()) nanosleep(&pause_time, nullptr);
  agent_link->note_leaving();
}

// Sends this many bytes that are not a message.
void do_link_garbage(const char* argument) {
  const std::string bytes(static_cast<std::size_t>(std::atol(argument)), 'x');
  if (send(descriptor(ddprun::link::kSocketVariable), bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(bytes.size())) {
    die(std::string("send: ") + std::strerror(errno));
  }
}

// ---- the record of collectives

ddprun::record::Memory* opened_record = nullptr;
ddprun::record::GroupPlace group_of_record;

void do_enter_call(const char*) {
  if (opened_record == nullptr) die("the action 'record' must come before");
  ddprun::record::enter(*opened_record, group_of_record, {}, monotonic_ns());
}

void do_record(const char*) {
  void* const memory = mmap(nullptr, ddprun::record::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            descriptor(ddprun::record::kVariable), 0);
  if (memory == MAP_FAILED) die(std::string("mmap: ") + std::strerror(errno));
  opened_record = static_cast<ddprun::record::Memory*>(memory);
  const auto rank = static_cast<std::uint32_t>(std::atoi(variable("RANK").c_str()));
  const auto size = static_cast<std::uint32_t>(std::atoi(variable("WORLD_SIZE").c_str()));
  group_of_record = ddprun::record::add_group(*opened_record, "group", rank, size, 0);
  const auto call = ddprun::record::enter(*opened_record, group_of_record, {}, monotonic_ns());
  ddprun::record::leave(*opened_record, call, monotonic_ns());
}

// ---- who does the rest

void wait_for_child_and_end(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

void do_as_fork(const char*) {
  const pid_t child = fork();
  if (child < 0) die("fork");
  if (child != 0) wait_for_child_and_end(child);
}

struct Action {
  const char* name;
  bool takes_argument;
  void (*perform)(const char* argument);
};

constexpr Action kActions[] = {
    {"exit", true, do_exit},
    {"signal", true, do_signal},            // ends by this signal
    {"wait", false, do_wait},               // until killed
    {"ignore", true, do_ignore},            // this signal
    {"end-well-on", true, do_end_well_on},  // this signal: exit 0
    {"catch", true, do_catch},              // this signal: note it
    {"until-caught", false, do_until_caught},
    {"work", true, do_work},    // this many milliseconds, also when signals come
    {"stamp", true, do_stamp},  // DIR/<round>.<rank>: "<first instruction, ns> <pid>"
    {"until", true, do_until},  // FILE exists
    {"until-unless-child-dies", true, do_until_unless_child_dies},
    {"touch", true, do_touch},              // FILE
    {"environment", true, do_environment},  // to FILE, as execve's entries, each ended by NUL
    {"state", true, do_state},              // to FILE: fds, signals, ids, folder
    {"child", false, do_child},
    {"deaf-child", false, do_deaf_child},
    {"stranger", false, do_stranger},
    {"daemon", false, do_daemon},
    {"orphans", true, do_orphans},          // this many
    {"flood", true, do_flood},              // this many lines to stdout
    {"pour", true, do_pour},                // LINES@RATE, to stdout and stderr
    {"take-memory", true, do_take_memory},  // this many MiB, and keep it
    {"close", true, do_close},              // this fd
    {"print", true, do_print},              // this text to stdout
    {"complain", true, do_complain},        // this text to stderr
    {"error-file", true, do_error_file},    // with this message (plain: no quotes)
    {"copy-stdin", true, do_copy_stdin},    // to FILE, until its end
    {"link", false, do_link},               // opens it; it must be there
    {"no-link", false, do_no_link},         // there must be none for this process
    {"progress", true, do_progress},        // STEP[/TOTAL][,NAME=VALUE], over the opened link
    {"progress-forever", false, do_progress_forever},
    {"saving", false, do_saving},             // from now on
    {"take-leave", false, do_take_leave},     // says that it acts upon such requests
    {"until-told", false, do_until_told},     // to leave
    {"link-garbage", true, do_link_garbage},  // this many bytes
    {"record", false, do_record},             // keeps one, with a call that is over
    {"enter-call", false, do_enter_call},     // in that record; the call does not end
    {"as-fork", false, do_as_fork},           // the rest, in a child; ends as that does
};

const Action& action_named(const std::string& name) {
  for (const Action& action : kActions) {
    if (name == action.name) return action;
  }
  die("no action is called '" + name + "'");
}

bool holds(const std::string& condition, const std::string& argument) {
  if (condition == "unless") return access(expanded(argument).c_str(), F_OK) != 0;
  return variable(condition == "on-rank" ? "RANK" : "TORCHELASTIC_RESTART_COUNT") == argument;
}

}  // namespace

int main(int argc, char** argv) {
  started_at_ns = monotonic_ns();
  bool applies = true;
  for (int at = 1; at < argc; ++at) {
    const std::string word = argv[at];
    const bool is_condition = word == "on-rank" || word == "on-round" || word == "unless";
    if (word == "become") {  // another process image that does the rest
      argv[at] = argv[0];
      execv("/proc/self/exe", argv + at);
      die("execv");
    }
    const Action* action = is_condition ? nullptr : &action_named(word);
    const char* argument = nullptr;
    if (is_condition || action->takes_argument) {
      if (++at == argc) die("'" + word + "' needs an argument");
      argument = argv[at];
    }
    if (is_condition) {
      applies = applies && holds(word, argument);
      continue;
    }
    if (applies) action->perform(argument);
    applies = true;
  }
  return 0;
}
