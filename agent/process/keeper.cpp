#include "agent/process/keeper.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <span>
#include <tuple>
#include <utility>

#include "agent/process/child_end.h"
#include "agent/process/control_group.h"
#include "rendezvous/common/open_files.h"
#include "rendezvous/common/signals_blocked.h"
#include "rendezvous/common/unfinished_file.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// How long to wait for killed processes to end. One that hangs in the kernel, or is not reaped,
// does not end.
constexpr auto kPatience = 250ms;
constexpr auto kControlGroupPatience = 1000ms;
// How long the agent waits for the keeper at its own end: for all of these, and for slow files.
constexpr auto kCleaningLimit = 5s;

// A leader is no child of the keeper: without a pidfd nothing tells of its end.
void await_leader(pid_t group, Keeper::Clock::time_point until) {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, group, 0));
  pollfd end{fd, POLLIN, 0};
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - Keeper::Clock::now());
  if (fd < 0 || ::poll(&end, 1, static_cast<int>(std::max(left, 0ms).count())) < 0) {
    while (::kill(group, 0) == 0 && Keeper::Clock::now() < until) ::usleep(1000);
  }
  if (fd >= 0) ::close(fd);
}

// With what worker_lib leaves of a file if its process is killed while it writes.
void remove_file(const char* file) {
  std::array<char, PATH_MAX + sizeof kUnfinishedErrorFile> unfinished;
  ::stpcpy(::stpcpy(unfinished.data(), file), kUnfinishedErrorFile);
  ::unlink(file);
  ::unlink(unfinished.data());
}

void await_group(pid_t group, Keeper::Clock::time_point until, MemoryHolder& memory) {
  while (::kill(-group, 0) == 0 && Keeper::Clock::now() < until) memory.pause(1ms);
}

}  // namespace

// Runs in a process that may have been forked from one with threads: system calls only.
void Keeper::keep(int pipe_fd, int cleaned_fd) const {
  ::setsid();  // gets no signals of the terminal
  ::prctl(PR_SET_NAME, "ddprun-keeper");
  std::array kept{pipe_fd, cleaned_fd, -1, -1, -1};
  if (offer_) {
    kept[2] = offer_->memory.get();
    kept[3] = offer_->folder.get();
    kept[4] = offer_->listener.get();
  }
  std::ranges::sort(kept);
  close_all_files_but(std::span<const int>(kept).subspan(offer_ ? 0 : 3));
  const std::optional<bool> is_dropped = await_end_of_agent(pipe_fd, offer_.get());
  if (!is_dropped) ::_exit(errno);
  const std::time_t ended = ::time(nullptr);
  const auto each_group = [this](auto&& perform) {
    for (std::size_t i = 0; i < count_; ++i) {
      if (const pid_t group = entries_[i].group.load()) perform(group);
    }
  };
  const auto remove_files = [this] {
    for (std::size_t i = 0; i < count_; ++i) {
      if (entries_[i].file[0] != '\0') remove_file(entries_[i].file);
    }
  };
  each_group([](pid_t group) { ::kill(-group, SIGKILL); });
  const auto each_control_group = [this](auto&& perform) {
    for (std::size_t i = count_; i < count_ + kControlGroups; ++i) {
      if (entries_[i].file[0] != '\0') perform(entries_[i].file);
    }
  };
  each_control_group(kill_control_group);
  const auto until = Clock::now() + kPatience;
  each_group([until](pid_t group) { await_leader(group, until); });
  remove_files();
  MemoryHolder memory(offer_.get(), *is_dropped, ended);  // the workers themselves have ended
  // Other members of a group may have made the file meanwhile, so it is removed again. This waits
  // longer if dead orphans are not reaped (a container without an init): they still count as
  // members.
  each_group([&](pid_t group) { await_group(group, until, memory); });
  remove_files();
  each_control_group([](const char* path) { remove_control_group(path, kControlGroupPatience); });
  ::close(cleaned_fd);
  memory.hold();
  ::_exit(0);
}

Result<Keeper> Keeper::start(std::size_t slots, std::optional<MemoryOffer> offer) {
  void* memory = ::mmap(nullptr, (slots + kControlGroups) * sizeof(Entry), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail(error_from_errno(errno, "memory for the keeper"));
  // Zeroed pages are valid empty entries; initialising them would cost a page fault each.
  Keeper keeper(std::launder(static_cast<Entry*>(memory)), slots);
  if (offer) keeper.offer_ = std::make_unique<MemoryOffer>(std::move(*offer));
  if (auto forked = keeper.replace(); !forked) return fail(std::move(forked.error()));
  return keeper;
}

Result<void> Keeper::replace() {
  int fds[2];
  int cleaned_fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0)
    return fail(error_from_errno(errno, "cannot make a pipe for the keeper"));
  rdzv::UniqueFd reading(fds[0]);
  rdzv::UniqueFd writing(fds[1]);
  if (::pipe2(cleaned_fds, O_CLOEXEC) != 0)
    return fail(error_from_errno(errno, "cannot make a pipe for the keeper"));
  rdzv::UniqueFd cleaned(cleaned_fds[0]);
  const rdzv::UniqueFd cleaning(cleaned_fds[1]);
  int fork_errno = 0;
  const pid_t pid = [&] {
    const AllSignalsBlocked blocked;
    const pid_t forked = ::fork();
    if (forked == 0) {
      writing.reset();  // with it open, read() would never see the end of file
      keep(reading.get(), cleaning.get());
    }
    fork_errno = errno;
    return forked;
  }();
  if (pid < 0) return fail(error_of_start(fork_errno, "cannot start the keeper"));
  pid_ = pid;
  pipe_ = std::move(writing);
  cleaned_ = std::move(cleaned);
  if (is_memory_dropped_) tell_to_drop();
  return {};
}

void Keeper::Unmap::operator()(Entry* entries) const { ::munmap(entries, bytes); }

Keeper::~Keeper() {
  if (!entries_) return;
  let_go();
  if (pid_ <= 0) return;
  ::kill(pid_, SIGCONT);  // it may have been stopped
  if (!has_cleaned_by(Clock::now() + kCleaningLimit)) return;
  const bool holds_memory = offer_ && !is_memory_dropped_;
  if (!holds_memory) ::kill(pid_, SIGKILL);  // it has nothing left to do, and may be stopped again
  reaped(pid_, holds_memory ? WNOHANG : 0);
}

// If it has not, a file server holds it, or it was stopped once more. It goes on when it can, without this process.
bool Keeper::has_cleaned_by(Clock::time_point until) const {
  pollfd cleaned{cleaned_.get(), POLLIN, 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    const int ready = ::poll(&cleaned, 1, static_cast<int>(std::max(left, 0ms).count()));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

void Keeper::drop_memory() {
  if (std::exchange(is_memory_dropped_, true)) return;
  tell_to_drop();
}

void Keeper::tell_to_drop() {
  if (offer_ && pipe_) std::ignore = ::write(pipe_.get(), &keeper_words::kDrop, 1);
}

// The agent may be killed during this. The path is then a mixture of the old and the new one, but
// both are of this agent, and the last byte of an entry is always 0.
void Keeper::set_path(std::size_t index, std::string_view path) {
  char* file = entries_[index].file;
  if (path.size() >= sizeof entries_[index].file) path = {};  // too long to be made anywhere
  path.copy(file, path.size());
  file[path.size()] = '\0';
}

void Keeper::let_go() {
  const int pipe = pipe_.release();
  if (pipe >= 0 && ::close(pipe) != 0) std::ignore = ::write(pipe, &keeper_words::kEnd, 1);
}

std::optional<ExitStatus> Keeper::died() {
  const auto end = pid_ > 0 ? reaped(pid_, WNOHANG) : std::nullopt;
  if (!end) return std::nullopt;
  pid_ = -1;
  return pipe_ ? end : std::nullopt;
}

}  // namespace ddprun::agent
