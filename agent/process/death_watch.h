// Learns of the death of workers by the robust mutex in the page of their links
// (worker_abi/worker_link.h): the kernel tells of it within 0.1 ms, before it frees the memory of the
// process, which takes 10 to 40 ms and more; only then the pidfd is readable. A hint is confirmed by
// /proc/PID/stat before anybody hears of it: execve and the end of the main thread look the same.
//
// One thread waits for all of them (futex_waitv). Where the kernel has none (before 5.16, or a
// filter), and beyond 127 workers, nothing is ever told, and the pidfd remains. A worker may write
// anything into its lock: each one can wake the thread a few times, and is then watched no more.
//
// Event loop only. The thread has no part in this object: both share what it touches. The destructor
// stops it and waits for its end.
#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <map>
#include <memory>

#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/thread.h"

namespace ddprun::agent {

class DeathWatch {
 public:
  // The process has ended or is about to; the status of its end, as waitpid() has it.
  using OnDeath = std::function<void(int wait_status)>;

  explicit DeathWatch(const boost::asio::any_io_executor& executor);
  ~DeathWatch();

  // Watches the lock in this page, if the worker has said that it holds it. `on_death` is called once
  // at most, and never before watch() has returned. Again for the same pid: nothing.
  void watch(pid_t pid, int page_fd, OnDeath on_death);
  // `on_death` is not called from now on.
  void forget(pid_t pid);

 private:
  struct Shared;

  void on_hint(pid_t pid);

  const boost::asio::any_io_executor executor_;
  std::map<pid_t, OnDeath> watched_;
  std::shared_ptr<Shared> shared_;  // with the thread
  rdzv::Thread thread_;
  bool is_possible_ = true;
  bool has_thread_ = false;
  const Lifetime lifetime_;
};

// The status of waitpid() of a process that is on its way out and cannot come back, if that is not 0;
// else nothing: it lives, only its main thread has ended, it ends with 0, or it is not there.
std::optional<int> status_of_dying(pid_t pid);

}  // namespace ddprun::agent
