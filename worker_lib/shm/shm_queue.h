// The collectives of a group that are under way, done one after the other in the order in which
// they were posted, by whichever thread is there: post() publishes the first piece at once if
// nothing else is under way; who waits does the work itself; and a thread of the queue's own, made
// when first needed, does what nobody waits for, so that it goes on while the program calculates.
// So a small collective that is waited for costs no change of threads, and a large one overlaps.
//
// Any thread may call; the owner destroys it when nobody does. A task that fails gives the exchange
// up, so those behind it fail too.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "worker_lib/shm/shm_futex.h"

namespace ddprun::shm {

// What is to be done. All but the destructor is called by one thread at a time, and by the queue.
class Task {
 public:
  virtual ~Task() = default;
  // Does not wait.
  virtual void begin() = 0;
  virtual void finish(std::chrono::nanoseconds spin) = 0;
  // After begin(): whether this rank has said all that the others wait for, so that there is time
  // until somebody here asks for the result.
  virtual bool is_quick() const = 0;
  // For a quick one: looks for `spin` whether finish() would not wait.
  virtual bool can_finish(std::chrono::nanoseconds spin) = 0;
  // Once, after the end; on the thread that did the work, which may call the queue from here.
  virtual void ended() noexcept {}

  // What ended it, if it failed; after its end.
  const std::exception_ptr& error() const { return error_; }

 private:
  friend class Queue;
  std::exception_ptr error_;
  bool has_begun_ = false;
  bool is_over_ = false;  // under the queue's lock
};

class Queue {
 public:
  // How long to look before sleeping: a thread that waits for the result, and the queue's own, which
  // takes the core of one that may be calculating. Both zero where there is no core for each rank.
  struct Spins {
    std::chrono::nanoseconds waiting{0};
    std::chrono::nanoseconds beside{0};
  };
  explicit Queue(Spins spins);
  // Tasks that are not done are dropped, but for one that is being done, which is awaited.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void post(std::shared_ptr<Task> task);
  // Until `task`, which was posted, is over.
  void wait(Task& task);
  // The same until then at most; leaves the work to the queue's thread.
  bool wait_until(Task& task, Clock::time_point until);
  bool is_over(Task& task);
  // Nobody may come to wait for what was posted: the queue's thread does it, unless the last one is
  // over within a moment of looking. Returns whether it is over.
  bool run_on(Task& last);

 private:
  using Lock = std::unique_lock<std::mutex>;
  void do_front(Lock& lock, std::chrono::nanoseconds spin);
  void end_front(Lock& lock, std::exception_ptr error);
  void wake_thread(Lock& lock);
  void work();

  const Spins spins_;
  std::mutex mutex_;
  std::condition_variable changed_;  // a task is over, or nobody is at work
  std::condition_variable wanted_;   // for the thread
  std::deque<std::shared_ptr<Task>> tasks_;
  bool is_at_work_ = false;  // somebody does the front task
  bool is_wanted_ = false;   // the thread is to do them all
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace ddprun::shm
