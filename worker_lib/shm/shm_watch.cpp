#include "worker_lib/shm/shm_watch.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "ddprun/error.h"
#include "rendezvous/common/signals_blocked.h"

namespace ddprun::shm {
namespace {

constexpr std::uint64_t kStop = 0;  // beside the peers' numbers

bool add(const rdzv::UniqueFd& epoll, const rdzv::UniqueFd& fd, std::uint64_t id) {
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = id}};
  return ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0;
}

}  // namespace

PeerWatch::PeerWatch() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!epoll_ || !stop_ || !add(epoll_, stop_, kStop)) {
    throw Failure(error_from_errno(errno, "epoll"));
  }
  const AllSignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  ::pthread_setname_np(thread_.native_handle(), "ddprun-peers");
}

PeerWatch::~PeerWatch() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

PeerWatch::Watched PeerWatch::watch(const std::shared_ptr<PeerWatch>& watch, pid_t pid,
                                    std::function<void()> at_end) {
  rdzv::UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) throw Failure(error_from_errno(errno, "pidfd_open"));
  const std::scoped_lock lock(watch->mutex_);
  const std::uint64_t id = ++watch->last_id_;
  if (!add(watch->epoll_, process, id)) throw Failure(error_from_errno(errno, "epoll"));
  watch->peers_.emplace(id, Peer{std::move(process), std::move(at_end)});
  return Watched(watch, id);
}

void PeerWatch::forget(std::uint64_t id) {
  const std::scoped_lock lock(mutex_);
  peers_.erase(id);  // epoll forgets what is closed
}

void PeerWatch::run() {
  while (true) {
    epoll_event event{};
    const int count = ::epoll_wait(epoll_.get(), &event, 1, -1);
    if (count < 0 && errno != EINTR) return;  // refused: time limits are left
    if (count < 1) continue;
    if (event.data.u64 == kStop) return;
    const std::scoped_lock lock(mutex_);
    // One that was forgotten meanwhile is not there.
    const auto peer = peers_.find(event.data.u64);
    if (peer != peers_.end()) peer->second.at_end();
  }
}

}  // namespace ddprun::shm
