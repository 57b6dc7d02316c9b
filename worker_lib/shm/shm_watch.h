// PeerWatch: calls a function within a millisecond of the end of a process, however it ended: one
// thread that sleeps in epoll on their pidfds. Owned by the Context (through its GroupMaker) and
// shared by the groups. Any thread may call; a function is called on the watch's thread, at most
// once, and must not call back.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::shm {

class PeerWatch {
 public:
  PeerWatch();  // throws Failure
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Ends the watch when it goes; the function is not being called then, nor called later.
  class Watched {
   public:
    Watched(std::shared_ptr<PeerWatch> watch, std::uint64_t id)
        : watch_(std::move(watch)), id_(id) {}
    Watched(Watched&& other) noexcept : watch_(std::move(other.watch_)), id_(other.id_) {}
    Watched& operator=(Watched&&) = delete;
    ~Watched() {
      if (watch_) watch_->forget(id_);
    }

   private:
    std::shared_ptr<PeerWatch> watch_;
    std::uint64_t id_;
  };

  // `pid` is of this process' namespace. Throws Failure, kNotFound: it is gone already.
  static Watched watch(const std::shared_ptr<PeerWatch>& watch, pid_t pid,
                       std::function<void()> at_end);

 private:
  struct Peer {
    rdzv::UniqueFd process;
    std::function<void()> at_end;
  };

  void forget(std::uint64_t id);
  void run();

  rdzv::UniqueFd epoll_;
  rdzv::UniqueFd stop_;
  std::mutex mutex_;
  std::map<std::uint64_t, Peer> peers_;
  std::uint64_t last_id_ = 0;
  std::thread thread_;
};

}  // namespace ddprun::shm
