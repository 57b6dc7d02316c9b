#include "launcher/machine/timed_process.h"
#include "rendezvous/common/exec_arguments.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace ddprun::cli {
namespace {

constexpr std::chrono::milliseconds kLookAgain{10};

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

bool is_zombie(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
         info.si_pid == child;
}

}  // namespace

TimedProcess::TimedProcess(pid_t pid, rdzv::UniqueFd output)
    : pid_(pid),
      output_(std::move(output)),
      watched_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

TimedProcess::TimedProcess(TimedProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::move(other.output_)),
      watched_(std::move(other.watched_)),
      began_(other.began_) {}

TimedProcess::~TimedProcess() {
  if (pid_ < 0) return;
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<TimedProcess> TimedProcess::start(const std::function<void(int fd)>& body) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return fail(error_from_errno(errno, "pipe"));
  rdzv::UniqueFd output(pipe[0]);
  const rdzv::UniqueFd input(pipe[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail(error_from_errno(errno, "fork"));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::setpgid(0, 0);
    body(input.get());
    ::_exit(0);
  }
  ::setpgid(pid, pid);  // also here: parent or child may be first
  return TimedProcess(pid, std::move(output));
}

Result<TimedProcess> TimedProcess::call(const std::function<std::string()>& function) {
  return start([&](int fd) { write_all(fd, function()); });
}

Result<TimedProcess> TimedProcess::command(const std::vector<std::string>& argv,
                                           const Environment& environment) {
  const std::vector<std::string> lines = to_lines(environment);
  const std::vector<char*> arguments = pointers_to(argv);
  const std::vector<char*> variables = pointers_to(lines);
  return start([&](int fd) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(fd, STDOUT_FILENO);
    ::dup2(fd, STDERR_FILENO);
    ::execve(arguments[0], arguments.data(), variables.data());
    ::_exit(127);
  });
}

// Until it has ended and all its output is read, or the deadline. Without a pidfd poll() cannot wait for
// the end.
void TimedProcess::read_until(Clock::time_point deadline, End& end) {
  bool has_ended = false;
  while (output_ || !has_ended) {
    const bool must_look = !watched_ && !has_ended;
    const auto until = must_look ? std::min(deadline, Clock::now() + kLookAgain) : deadline;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    std::array<pollfd, 2> events{
        {{output_.get(), POLLIN, 0}, {has_ended ? -1 : watched_.get(), POLLIN, 0}}};
    const int ready = ::poll(events.data(), events.size(), static_cast<int>(std::max(left, 0L)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0 || (ready == 0 && Clock::now() >= deadline)) return;
    if (events[1].revents != 0 || (must_look && is_zombie(pid_))) has_ended = true;
    if (events[0].revents == 0) continue;
    std::array<char, 4096> bytes{};
    const ssize_t got = ::read(output_.get(), bytes.data(), bytes.size());
    if (got <= 0) {
      output_.reset();
      continue;
    }
    end.output.append(bytes.data(), static_cast<std::size_t>(got));
    if (end.output.size() > kOutputMax) end.output.erase(0, end.output.size() - kOutputMax);
  }
  end.was_in_time = true;
}

TimedProcess::End TimedProcess::finish(Clock::time_point deadline) {
  End end;
  read_until(deadline, end);
  end.took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began_);
  if (!end.was_in_time) {
    ::kill(pid_, SIGTERM);
    End late;
    read_until(Clock::now() + kGrace, late);
    end.output += late.output;
    ::kill(-pid_, SIGKILL);
  }
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {
  }
  pid_ = -1;
  end.status = info.si_code == CLD_EXITED ? ExitStatus::exited(info.si_status)
                                          : ExitStatus::killed(info.si_status);
  return end;
}

}  // namespace ddprun::cli
