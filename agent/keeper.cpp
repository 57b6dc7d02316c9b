#include "agent/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

namespace ddprun::agent {
namespace {

void close_all_but(int fd) {
  if (fd > 0) ::close_range(0, static_cast<unsigned>(fd) - 1, 0);
  ::close_range(static_cast<unsigned>(fd) + 1, ~0U, 0);
}

// Runs in a process that may have been forked from one with threads: system calls only.
[[noreturn]] void keep(int pipe_fd, Keeper::Slot* slots, std::size_t count) {
  ::setsid();  // the terminal's signals are not for us
  ::prctl(PR_SET_NAME, "ddprun-keeper");
  close_all_but(pipe_fd);
  char nothing = 0;
  while (::read(pipe_fd, &nothing, 1) < 0 && errno == EINTR) {
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (const pid_t group = slots[i].load()) ::kill(-group, SIGKILL);
  }
  ::_exit(0);
}

}  // namespace

Result<Keeper> Keeper::start(std::size_t slots) {
  void* memory = ::mmap(nullptr, slots * sizeof(Slot), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail(error_from_errno(errno, "memory for the keeper"));
  // Zeroed pages are slots without a group; touching them all would cost a fault each.
  Keeper keeper(std::launder(static_cast<Slot*>(memory)), slots);
  if (auto forked = keeper.replace(); !forked) return fail(std::move(forked.error()));
  return keeper;
}

Result<void> Keeper::replace() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return fail(error_from_errno(errno, "pipe for the keeper"));
  sigset_t all_signals;
  sigset_t previous;
  ::sigfillset(&all_signals);
  ::pthread_sigmask(SIG_SETMASK, &all_signals, &previous);
  const pid_t pid = ::fork();
  if (pid == 0) keep(fds[0], slots_, count_);
  const int fork_errno = errno;
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  ::close(fds[0]);
  if (pid < 0) {
    ::close(fds[1]);
    return fail(error_from_errno(fork_errno, "fork of the keeper"));
  }
  if (pipe_fd_ >= 0) ::close(pipe_fd_);
  pid_ = pid;
  pipe_fd_ = fds[1];
  return {};
}

Keeper::Keeper(Keeper&& other) noexcept { swap(other); }

Keeper& Keeper::operator=(Keeper&& other) noexcept {
  swap(other);
  return *this;
}

void Keeper::swap(Keeper& other) noexcept {
  std::swap(slots_, other.slots_);
  std::swap(count_, other.count_);
  std::swap(pid_, other.pid_);
  std::swap(pipe_fd_, other.pipe_fd_);
}

Keeper::~Keeper() {
  dismiss();
  if (slots_ != nullptr) ::munmap(slots_, count_ * sizeof(Slot));
}

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

}  // namespace ddprun::agent
