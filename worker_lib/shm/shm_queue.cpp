#include "worker_lib/shm/shm_queue.h"

#include <pthread.h>

#include <utility>

#include "rendezvous/common/signals_blocked.h"

namespace ddprun::shm {
Queue::Queue(Spins spins) : spins_(spins) {}

Queue::~Queue() {
  {
    Lock lock(mutex_);
    is_stopping_ = true;
    changed_.wait(lock, [this] { return !is_at_work_; });
    tasks_.clear();
  }
  wanted_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Queue::wake_thread(Lock& lock) {
  is_wanted_ = true;
  if (!thread_.joinable()) {
    const AllSignalsBlocked blocked;
    thread_ = std::thread([this] { work(); });
    ::pthread_setname_np(thread_.native_handle(), "ddprun-shm");
  }
  lock.unlock();
  wanted_.notify_one();
}

void Queue::post(std::shared_ptr<Task> task) {
  Lock lock(mutex_);
  tasks_.push_back(task);
  if (tasks_.size() > 1 || is_at_work_) return wake_thread(lock);
  is_at_work_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    task->begin();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  task->has_begun_ = true;
  if (error) return end_front(lock, error);
  is_at_work_ = false;
  changed_.notify_all();
  if (tasks_.size() > 1 || !task->is_quick()) wake_thread(lock);
}

// With the lock, which is not held meanwhile, and nobody at work.
void Queue::do_front(Lock& lock, std::chrono::nanoseconds spin) {
  is_at_work_ = true;
  const std::shared_ptr<Task> task = tasks_.front();
  lock.unlock();
  std::exception_ptr error;
  try {
    if (!std::exchange(task->has_begun_, true)) task->begin();
    task->finish(spin);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  end_front(lock, error);
}

void Queue::end_front(Lock& lock, std::exception_ptr error) {
  const std::shared_ptr<Task> task = std::move(tasks_.front());
  tasks_.pop_front();
  task->error_ = std::move(error);
  task->is_over_ = true;
  is_at_work_ = false;
  if (tasks_.empty()) is_wanted_ = false;
  if (is_wanted_) wanted_.notify_one();
  changed_.notify_all();
  lock.unlock();
  task->ended();
  lock.lock();
}

void Queue::wait(Task& task) {
  Lock lock(mutex_);
  while (!task.is_over_) {
    if (is_at_work_) {
      changed_.wait(lock);
    } else {
      do_front(lock, spins_.waiting);
    }
  }
}

bool Queue::wait_until(Task& task, Clock::time_point until) {
  Lock lock(mutex_);
  if (task.is_over_) return true;
  wake_thread(lock);
  lock.lock();
  return changed_.wait_until(lock, until, [&] { return task.is_over_; });
}

bool Queue::is_over(Task& task) {
  Lock lock(mutex_);
  if (task.is_over_) return true;
  if (!is_wanted_) wake_thread(lock);  // and lets go of the lock
  return false;
}

bool Queue::run_on(Task& last) {
  Lock lock(mutex_);
  if (last.is_over_ || is_wanted_) return last.is_over_;
  if (!is_at_work_ && tasks_.size() == 1 && tasks_.front().get() == &last && last.is_quick()) {
    is_at_work_ = true;
    lock.unlock();
    const bool can_finish = last.can_finish(spins_.waiting);
    lock.lock();
    is_at_work_ = false;
    changed_.notify_all();
    if (can_finish) {
      do_front(lock, spins_.waiting);
      return true;
    }
  }
  wake_thread(lock);
  return false;
}

void Queue::work() {
  Lock lock(mutex_);
  while (true) {
    wanted_.wait(
        lock, [this] { return is_stopping_ || (is_wanted_ && !is_at_work_ && !tasks_.empty()); });
    if (is_stopping_) return;
    do_front(lock, spins_.beside);
  }
}

}  // namespace ddprun::shm
