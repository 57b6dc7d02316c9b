// NcclEnding: ends the calls over NCCL of groups in which a rank was lost, and frees their communicators.
//
// A kernel of NCCL waits for a dead rank without an end, and nothing is thrown where it was ended: the host goes on with what
// the kernel has left. Hence the order, the same as in python/ddprun/nccl.py, which says why:
//
// 1. All ranks, the new one among them, know that the groups are broken. Only then does any rank end its kernels: one
//    that is ended tells its neighbours that their data is there.
// 2. Each rank waits until its device is idle: note_idle().
// 3. All devices are idle: free(), or free_later(). Before that a rank's kernels may still use the memory of its peers.
//
// Owned by Recovery. The main thread calls; a thread of its own ends the calls.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace ddprun {

class NcclEnding {
 public:
  using Groups = std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>;
  // Whether all ranks know it, within this time. Called by the thread.
  using Question = std::function<bool(std::chrono::milliseconds)>;
  NcclEnding(const Groups& groups, Question do_all_know);
  // Joins the thread. Without free() or free_later() kernels that still run are left to the groups' own ends.
  ~NcclEnding();
  NcclEnding(const NcclEnding&) = delete;
  NcclEnding& operator=(const NcclEnding&) = delete;

  void note_idle();
  // Returns when the communicators are aborted, which takes NCCL a second.
  void free();
  // Returns at once; is_freed() tells when they are.
  void free_later();
  bool is_freed() const { return is_freed_; }

 private:
  void run(const Question& do_all_know);
  void abort_all();

  std::vector<c10::intrusive_ptr<c10d::Backend>> backends_;
  std::atomic<bool> is_freed_ = false;

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  bool is_idle_ = false;
  bool may_free_ = false;
  bool is_given_up_ = false;
  std::thread thread_;
};

}  // namespace ddprun
