#include "worker_lib/process/agent_link.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

namespace ddprun {
namespace {

// A clock that is a tick (4 ms) behind at most and costs a quarter of the exact one.
std::int64_t coarse_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * 1'000'000'000L + now.tv_nsec;
}

template <typename T>
bool has_option(int socket, int name, T* value) {
  socklen_t size = sizeof *value;
  return ::getsockopt(socket, SOL_SOCKET, name, value, &size) == 0 && size == sizeof *value;
}

// The number may long be another file's: nothing is read of what cannot be the page.
bool is_our_page(int fd, link::Header& header) {
  struct stat about {};
  return ::fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == link::kPageBytes &&
         ::pread(fd, &header, sizeof header, 0) == sizeof header && header.magic == link::kMagic &&
         header.version >= 1 && header.bytes == link::kPageBytes && header.worker_pid == ::getpid();
}

bool is_socket_to(int fd, pid_t agent) {
  int domain = 0;
  int type = 0;
  ucred peer{};
  return has_option(fd, SO_DOMAIN, &domain) && domain == AF_UNIX &&
         has_option(fd, SO_TYPE, &type) && type == SOCK_SEQPACKET &&
         has_option(fd, SO_PEERCRED, &peer) && peer.pid == agent;
}

// The agent hands its descriptors over without this flag, so one that has it is somebody's already:
// of another Context, or of a library for another language in this process.
bool take(int fd) {
  const int flags = ::fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0 && ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

// One byte that is 1 here and 0 in every child that is forked from here on; nullptr: not possible.
const char* make_owner_mark() {
  void* memory =
      ::mmap(nullptr, link::kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (::madvise(memory, link::kPageBytes, MADV_WIPEONFORK) != 0) {
    ::munmap(memory, link::kPageBytes);
    return nullptr;
  }
  auto* mark = static_cast<char*>(memory);
  *mark = 1;
  return mark;
}

// Where a scheduler signals every process of the job, the agent's notice must not find a corpse. A
// handler of the program's own stays, and so does what a stop signal does.
void survive(int preempt_signal) {
  const bool is_notice_only = preempt_signal == SIGUSR1 || preempt_signal == SIGUSR2;
  struct sigaction now {};
  if (!is_notice_only || ::sigaction(preempt_signal, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL) {
    ::signal(preempt_signal, SIG_IGN);
  }
}

}  // namespace

std::unique_ptr<AgentLink> AgentLink::open(int socket_fd, int page_fd) {
  link::Header header;
  if (!is_our_page(page_fd, header) || !is_socket_to(socket_fd, header.agent_pid)) return nullptr;
  if (!take(socket_fd)) return nullptr;
  rdzv::UniqueFd socket(socket_fd);
  const rdzv::UniqueFd page(page_fd);
  void* memory =
      ::mmap(nullptr, link::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  const char* mark = make_owner_mark();
  if (mark == nullptr) {
    ::munmap(memory, link::kPageBytes);
    return nullptr;
  }
  return std::unique_ptr<AgentLink>(
      new AgentLink(std::move(socket), static_cast<link::Page*>(memory), mark));
}

AgentLink::AgentLink(rdzv::UniqueFd socket, link::Page* page, const char* is_owner)
    : socket_(std::move(socket)), page_(page), is_owner_(is_owner) {}

AgentLink::~AgentLink() {
  ::munmap(page_, link::kPageBytes);
  ::munmap(const_cast<char*>(is_owner_), link::kPageBytes);
}

void AgentLink::step_done(std::int64_t step, std::int64_t total_steps,
                          std::span<const link::Value> values) {
  const std::size_t count = std::min(values.size(), link::kValuesMax);
  std::copy_n(values.begin(), count, note_.values.begin());
  if (count > 0) note_.value_count = static_cast<std::uint32_t>(count);
  step_done(step, total_steps);
}

void AgentLink::step_done(std::int64_t step, std::int64_t total_steps) {
  note_.step = step;
  note_.total_steps = total_steps;
  note_.step_at_ns = coarse_ns();
  publish();
}

void AgentLink::collective_begins() {
  ++note_.collectives;
  publish();
}

void AgentLink::enter(WorkerPhase phase) {
  note_.phase = phase;
  note_.phase_since_ns = coarse_ns();
  publish();
}

void AgentLink::publish() {
  if (*is_owner_ != 0) link::write_note(*page_, note_);
}

void AgentLink::take_leave_requests() {
  if (std::exchange(takes_leave_, true) || *is_owner_ == 0 || !socket_) return;
  link::Message hello;
  hello.kind = static_cast<std::uint32_t>(link::Kind::kHello);
  hello.pid = ::getpid();
  hello.requests = link::kTakesLeave;
  if (::send(socket_.get(), &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof hello) {
    socket_.reset();
  } else {
    survive(page_->header.preempt_signal);
  }
}

bool AgentLink::is_told_to_leave() {
  while (!is_told_to_leave_ && socket_ && *is_owner_ != 0) {
    link::Message message;
    const ssize_t length = ::recv(socket_.get(), &message, sizeof message, MSG_DONTWAIT);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (length <= 0) {
      socket_.reset();
    } else if (length == sizeof message &&
               message.kind == static_cast<std::uint32_t>(link::Kind::kLeave)) {
      is_told_to_leave_ = true;
    }  // else: a newer agent's, for newer workers
  }
  return is_told_to_leave_ && *is_owner_ != 0;
}

}  // namespace ddprun
