// Ranks that share memory as processes (forked) or threads of a test, without LibTorch and without
// a store: the segment is made before they begin.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "worker_lib/shm/shm_group.h"

namespace ddprun::shm::test {

inline std::shared_ptr<Segment> make_segment(int ranks, std::size_t bytes_per_rank) {
  return std::make_shared<Segment>(Segment::make(geometry_for(ranks, bytes_per_rank)));
}

// One collective or what else there is to do, as the queue wants it.
class CollectiveTask : public Task {
 public:
  CollectiveTask(NodeGroup& node, std::unique_ptr<Collective> collective,
                 Clock::time_point until = Clock::time_point::max())
      : run_(node.exchange(), std::move(collective), until) {}
  void begin() override { run_.begin(); }
  void finish(std::chrono::nanoseconds spin) override { run_.finish(spin); }
  bool is_quick() const override { return run_.is_quick(); }
  bool can_finish(std::chrono::nanoseconds spin) override { return run_.can_finish(spin); }

  void rethrow() const {
    if (error()) std::rethrow_exception(error());
  }

 private:
  Run run_;
};

template <typename What, typename... Arguments>
std::shared_ptr<CollectiveTask> post(NodeGroup& node, Clock::time_point until,
                                     Arguments&&... arguments) {
  auto task = std::make_shared<CollectiveTask>(
      node, std::make_unique<What>(node.exchange(), std::forward<Arguments>(arguments)...), until);
  node.queue().post(task);
  return task;
}

// Posts it and waits.
template <typename What, typename... Arguments>
void run(NodeGroup& node, Arguments&&... arguments) {
  const auto task =
      post<What>(node, Clock::time_point::max(), std::forward<Arguments>(arguments)...);
  node.queue().wait(*task);
  task->rethrow();
}

inline std::vector<int> ranks_below(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

using Body = std::function<void(NodeGroup& node)>;

// Each rank a thread; what one throws fails the test.
inline void on_threads(int ranks, std::size_t bytes_per_rank, const Body& body) {
  const auto segment = make_segment(ranks, bytes_per_rank);
  for (int rank = 0; rank < ranks; ++rank) announce(*segment, rank);
  const auto watch = std::make_shared<PeerWatch>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        NodeGroup node(segment, rank, ranks_below(ranks), watch);
        body(node);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thrown by rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Each rank a child of this process, which must have no other thread. A body that returns ends its
// rank with 0; one that throws with 1 and its words on stderr.
class Children {
 public:
  Children(int ranks, std::size_t bytes_per_rank, const Body& body)
      : segment_(make_segment(ranks, bytes_per_rank)) {
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = ::fork();
      if (pid != 0) {
        pids_.push_back(pid);
        continue;
      }
      ::_exit(be(rank, ranks, body));
    }
  }
  ~Children() {
    for (const pid_t pid : pids_) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) wait(static_cast<int>(rank));
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  Segment& segment() { return *segment_; }

  // The status as waitpid() gives it; -1 when it was asked for before.
  int wait(int rank) {
    pid_t& child = pids_[static_cast<std::size_t>(rank)];
    int status = -1;
    if (child > 0) ::waitpid(child, &status, 0);
    child = 0;
    return status;
  }

 private:
  int be(int rank, int ranks, const Body& body) {
    try {
      announce(*segment_, rank);
      for (int other = 0; other < ranks; ++other) {
        while (segment_->page(other).state == State::kAbsent) std::this_thread::yield();
      }
      const auto watch = std::make_shared<PeerWatch>();
      NodeGroup node(segment_, rank, ranks_below(ranks), watch);
      body(node);
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return 1;
    }
  }

  std::shared_ptr<Segment> segment_;
  std::vector<pid_t> pids_;
};

}  // namespace ddprun::shm::test
