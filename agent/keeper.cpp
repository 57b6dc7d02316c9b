#include "agent/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

namespace ddprun::agent {
namespace {

// One record: a process group to kill (> 0), or one to forget (< 0). Far below PIPE_BUF, so records
// of several writers never mix.
using Record = std::int32_t;

void write_record(int fd, Record record) {
  // Fails only when the keeper is gone (EPIPE); then the agent makes a new one with the whole list.
  while (::write(fd, &record, sizeof record) < 0 && errno == EINTR) {
  }
}

// The list lives in fixed memory: the keeper may be forked from a process with threads, where only
// async-signal-safe calls are allowed. More groups than this on one node are refused by the
// launcher.
constexpr std::size_t kMaxGroups = 8192;

struct Groups {
  std::array<Record, kMaxGroups> ids;
  std::size_t count = 0;

  void apply(Record record) {
    if (record > 0) {
      if (count < ids.size()) ids[count++] = record;
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (ids[i] == -record) ids[i--] = ids[--count];
    }
  }
};

void close_all_but(int fd) {
  if (fd > 0) ::close_range(0, static_cast<unsigned>(fd) - 1, 0);
  ::close_range(static_cast<unsigned>(fd) + 1, ~0U, 0);
}

[[noreturn]] void keep(int pipe_fd, Groups& groups) {
  ::setsid();  // the terminal's signals are not for us
  ::prctl(PR_SET_NAME, "ddprun-keeper");
  close_all_but(pipe_fd);
  std::array<Record, 256> records;
  for (;;) {
    const ssize_t got = ::read(pipe_fd, records.data(), sizeof records);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    for (std::size_t i = 0; i < static_cast<std::size_t>(got) / sizeof(Record); ++i) {
      groups.apply(records[i]);
    }
  }
  for (std::size_t i = 0; i < groups.count; ++i) ::kill(-groups.ids[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

Result<Keeper> Keeper::start(const std::vector<pid_t>& groups) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return fail(error_from_errno(errno, "pipe for the keeper"));
  // Static: the child's copy is its own, and the agent never touches these pages.
  static Groups list;
  sigset_t all_signals;
  sigset_t previous;
  ::sigfillset(&all_signals);
  ::pthread_sigmask(SIG_SETMASK, &all_signals, &previous);
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (const pid_t group : groups) list.apply(group);
    keep(fds[0], list);
  }
  const int fork_errno = errno;
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  ::close(fds[0]);
  if (pid < 0) {
    ::close(fds[1]);
    return fail(error_from_errno(fork_errno, "fork of the keeper"));
  }
  return Keeper(pid, fds[1]);
}

Keeper::Keeper(Keeper&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pipe_fd_(std::exchange(other.pipe_fd_, -1)) {}

Keeper& Keeper::operator=(Keeper&& other) noexcept {
  if (this != &other) {
    dismiss();
    pid_ = std::exchange(other.pid_, -1);
    pipe_fd_ = std::exchange(other.pipe_fd_, -1);
  }
  return *this;
}

Keeper::~Keeper() { dismiss(); }

void Keeper::dismiss() {
  if (pipe_fd_ >= 0) ::close(std::exchange(pipe_fd_, -1));
  if (pid_ > 0) {
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }
}

bool Keeper::has_died() {
  if (pid_ <= 0 || ::waitpid(pid_, nullptr, WNOHANG) != pid_) return false;
  pid_ = -1;
  return true;
}

void Keeper::forget(pid_t group) { write_record(pipe_fd_, -static_cast<Record>(group)); }

void Keeper::register_self(int registration_fd) {
  write_record(registration_fd, static_cast<Record>(::getpid()));
}

}  // namespace ddprun::agent
