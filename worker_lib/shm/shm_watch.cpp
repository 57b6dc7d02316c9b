#include "worker_lib/shm/shm_watch.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "rendezvous/common/signals_blocked.h"

namespace ddprun::shm {

Result<std::shared_ptr<PeerWatch>> PeerWatch::start() {
  rdzv::UniqueFd changed(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!changed) return fail(error_from_errno(errno, "eventfd"));
  return std::shared_ptr<PeerWatch>(new PeerWatch(std::move(changed)));
}

PeerWatch::PeerWatch(rdzv::UniqueFd changed) : changed_(std::move(changed)) {
  const AllSignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  ::pthread_setname_np(thread_.native_handle(), "ddprun-peers");
}

PeerWatch::~PeerWatch() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopping_ = true;
  }
  nudge();
  thread_.join();
}

void PeerWatch::nudge() {
  const std::uint64_t one = 1;
  // Full means that it is nudged already.
  [[maybe_unused]] const auto written = ::write(changed_.get(), &one, sizeof one);
}

Result<PeerWatch::Watched> PeerWatch::watch(const std::shared_ptr<PeerWatch>& watch, pid_t pid,
                                            std::function<void()> at_end) {
  rdzv::UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return fail(error_from_errno(errno, "pidfd_open"));
  int id = 0;
  {
    const std::scoped_lock lock(watch->mutex_);
    id = watch->next_id_++;
    watch->peers_.emplace(id, Peer{std::move(process), std::move(at_end)});
  }
  watch->nudge();
  return Watched(watch, id);
}

void PeerWatch::forget(int id) {
  {
    const std::scoped_lock lock(mutex_);
    peers_.erase(id);
  }
  nudge();
}

void PeerWatch::run() {
  std::vector<pollfd> polled;
  std::vector<int> ids;
  while (true) {
    polled.assign(1, pollfd{changed_.get(), POLLIN, 0});
    ids.clear();
    {
      const std::scoped_lock lock(mutex_);
      if (is_stopping_) return;
      for (const auto& [id, peer] : peers_) {
        if (!peer.process) continue;  // told of already
        polled.push_back({peer.process.get(), POLLIN, 0});
        ids.push_back(id);
      }
    }
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    std::uint64_t nudges = 0;
    [[maybe_unused]] const auto got = ::read(changed_.get(), &nudges, sizeof nudges);
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto peer = peers_.find(ids[i]);
      // One that was forgotten in between: its descriptor's number may be another's by now.
      if ((polled[i + 1].revents & POLLIN) == 0 || peer == peers_.end()) continue;
      peer->second.process.reset();
      peer->second.at_end();
    }
  }
}

}  // namespace ddprun::shm
