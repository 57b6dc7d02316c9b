#include "ddprun/loader_threads.h"

#include <pthread.h>

#include <string>

#include "rendezvous/common/signals_blocked.h"

namespace ddprun {
LoaderThreads::LoaderThreads(int count, const std::function<void()>& prepare) {
  const AllSignalsBlocked blocked;
  try {
    for (int thread = 0; thread < count; ++thread) {
      threads_.emplace_back([this, thread, prepare] {
        pthread_setname_np(pthread_self(), ("ddprun-load-" + std::to_string(thread)).c_str());
        prepare();
        run(thread);
      });
    }
  } catch (...) {  // the system gives no further thread
    stop();
    throw;
  }
}

LoaderThreads::~LoaderThreads() { stop(); }

void LoaderThreads::add(Job job) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void LoaderThreads::drop_waiting() {
  std::deque<Job> dropped;  // destroyed without the lock: jobs own data
  const std::lock_guard lock(mutex_);
  dropped.swap(waiting_);
}

void LoaderThreads::run(int thread) {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
      if (is_stopping_) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
    }
    job(thread);
  }
}

void LoaderThreads::stop() {
  drop_waiting();
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace ddprun
