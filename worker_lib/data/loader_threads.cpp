#include "ddprun/loader_threads.h"

#include <pthread.h>

#include <string>

#include "rendezvous/common/signals_blocked.h"

namespace ddprun {

LoaderThreads::LoaderThreads(int count, const std::function<void()>& prepare) {
  const AllSignalsBlocked blocked;
  for (int thread = 0; thread < count; ++thread) {
    threads_.emplace_back([this, thread, prepare](const std::stop_token& stop) {
      pthread_setname_np(pthread_self(), ("ddprun-load-" + std::to_string(thread)).c_str());
      prepare();
      run(stop, thread);
    });
  }
}

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

void LoaderThreads::run(const std::stop_token& stop, int thread) {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
    }
    job(thread);
  }
}

}  // namespace ddprun
