// time_commands REPETITIONS -- COMMAND… -- COMMAND… : how long each command takes, and how much
// memory. Prints one JSON line per run: {"command": 0, "seconds": 0.0012, "peak_kib": 3800, "code":
// 0}.
//
// The commands take turns (A B C, B C A, C A B, …), so that a machine that grows slower while this
// runs slows all of them alike. Time is from just before posix_spawn to the end of wait, on this
// small static program: a measuring Python would add the copying of its own page tables to every
// start.
//
// With --memory in front, the runs are not timed: each is stopped by ptrace at its last moment,
// where the kernel still has its peak resident size. (wait4's ru_maxrss will not do: it starts from
// the parent's, and counts the children.)
#include <fcntl.h>
#include <spawn.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

extern char** environ;

namespace {

using Command = std::vector<char*>;  // as execve wants it, with a null at the end

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void report(std::size_t command, double seconds, long peak_kib, int status) {
  const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  std::printf("{\"command\": %zu, \"seconds\": %.6f, \"peak_kib\": %ld, \"code\": %d}\n", command,
              seconds, peak_kib, code);
  std::fflush(stdout);
}

void time_one(std::size_t index, const Command& command) {
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  int status = 0;
  const double begin = now();
  if (posix_spawnp(&child, command[0], &quiet, nullptr, command.data(), environ) != 0) {
    die(command[0]);
  }
  if (waitpid(child, &status, 0) != child) die("waitpid");
  const double end = now();
  posix_spawn_file_actions_destroy(&quiet);
  report(index, end - begin, -1, status);
}

long peak_of(pid_t pid) {
  std::FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/status").c_str(), "re");
  if (file == nullptr) die("/proc/PID/status");
  char line[256];
  long peak = -1;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "VmHWM: %ld", &peak) == 1) break;
  }
  std::fclose(file);
  return peak;
}

void measure_one(std::size_t index, const Command& command) {
  const pid_t child = fork();
  if (child < 0) die("fork");
  if (child == 0) {
    const int quiet = open("/dev/null", O_WRONLY);
    dup2(quiet, STDOUT_FILENO);
    dup2(quiet, STDERR_FILENO);
    raise(SIGSTOP);  // until the parent has attached
    execvp(command[0], command.data());
    _exit(127);
  }
  int status = 0;
  if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) die("waitpid");
  if (ptrace(PTRACE_SEIZE, child, nullptr, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL) != 0) {
    die("ptrace (is it forbidden in this container?)");
  }
  kill(child, SIGCONT);
  long peak = -1;
  while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    const int event = status >> 16;
    if (event == PTRACE_EVENT_EXIT) peak = peak_of(child);
    // A signal that is on its way to the command must reach it; a group stop must last.
    const bool is_signal = event == 0 && WSTOPSIG(status) != SIGTRAP;
    if (event == PTRACE_EVENT_STOP && WSTOPSIG(status) != SIGTRAP) {
      ptrace(PTRACE_LISTEN, child, nullptr, nullptr);
    } else {
      ptrace(PTRACE_CONT, child, nullptr,
             reinterpret_cast<void*>(static_cast<std::intptr_t>(is_signal ? WSTOPSIG(status) : 0)));
    }
  }
  report(index, -1, peak, status);
}

}  // namespace

int main(int argc, char** argv) {
  int at = 1;
  const bool memory = at < argc && std::strcmp(argv[at], "--memory") == 0;
  if (memory) ++at;
  const int repetitions = at < argc ? std::atoi(argv[at++]) : 0;
  std::vector<Command> commands;
  for (; at < argc; ++at) {
    if (std::strcmp(argv[at], "--") == 0) {
      commands.emplace_back();
    } else if (!commands.empty()) {
      commands.back().push_back(argv[at]);
    }
  }
  if (repetitions < 1 || commands.empty()) {
    std::fputs("usage: time_commands [--memory] REPETITIONS -- COMMAND... [-- COMMAND...]\n",
               stderr);
    return 2;
  }
  for (Command& command : commands) command.push_back(nullptr);
  for (std::size_t turn = 0; turn < static_cast<std::size_t>(repetitions); ++turn) {
    for (std::size_t i = 0; i < commands.size(); ++i) {
      const std::size_t index = (turn + i) % commands.size();
      memory ? measure_one(index, commands[index]) : time_one(index, commands[index]);
    }
  }
}
