// PeerWatch: calls a function within a millisecond of the end of a process, however it ended: one
// thread that sleeps in poll() on their pidfds. Owned by the Context (through its GroupMaker) and
// shared by the groups. Any thread may call; a function is called on the watch's thread, at most
// once, and must not call back.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::shm {

class PeerWatch {
 public:
  static Result<std::shared_ptr<PeerWatch>> start();
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Ends the watch when it goes; the function is not being called then, nor called later.
  class Watched {
   public:
    Watched(std::shared_ptr<PeerWatch> watch, int id) : watch_(std::move(watch)), id_(id) {}
    Watched(Watched&& other) noexcept : watch_(std::move(other.watch_)), id_(other.id_) {}
    Watched& operator=(Watched&&) = delete;
    ~Watched() {
      if (watch_) watch_->forget(id_);
    }

   private:
    std::shared_ptr<PeerWatch> watch_;
    int id_;
  };

  // `pid` is of this process' namespace. kNotFound: it is gone already.
  static Result<Watched> watch(const std::shared_ptr<PeerWatch>& watch, pid_t pid,
                               std::function<void()> at_end);

 private:
  struct Peer {
    rdzv::UniqueFd process;
    std::function<void()> at_end;
  };

  explicit PeerWatch(rdzv::UniqueFd changed);
  void forget(int id);
  void nudge();
  void run();

  rdzv::UniqueFd changed_;  // an eventfd: the list is another, or it is time to end
  std::mutex mutex_;
  std::map<int, Peer> peers_;
  int next_id_ = 0;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace ddprun::shm
