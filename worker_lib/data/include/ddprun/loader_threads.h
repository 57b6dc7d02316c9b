// LoaderThreads: a few threads that load data beside the one that trains; what DataLoader
// (data_loader.h) is made of. Nothing of Torch. Jobs begin in the order in which they were added. One
// owner, who adds and drops; the destructor drops what waits and joins what runs, so everything that
// a job touches must outlive this object. A job must not throw (a std::packaged_task keeps what it
// throws).
//
// The threads take no signals: a program's handlers run where they ran without a loader.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ddprun {

class LoaderThreads {
 public:
  using Job = std::function<void(int thread)>;  // told which of the threads it is, from 0

  // Each thread calls `prepare` first.
  LoaderThreads(int count, const std::function<void()>& prepare);
  ~LoaderThreads() { drop_waiting(); }
  LoaderThreads(const LoaderThreads&) = delete;
  LoaderThreads& operator=(const LoaderThreads&) = delete;

  void add(Job job);
  // Forgets the jobs that no thread has begun.
  void drop_waiting();

 private:
  void run(const std::stop_token& stop, int thread);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Job> waiting_;
  std::vector<std::jthread> threads_;  // last: they use the rest
};

}  // namespace ddprun
