// What the GPUs of this node say, where the job uses some: for status, metrics and the page, when a worker has failed, and
// before the next round starts. NVML is loaded and called on threads of its own, because its calls may hang when a GPU has
// fallen off the bus: an answer that does not come is said, and not awaited for longer than its limit. Nothing is loaded
// before CUDA_VISIBLE_DEVICES, a worker with a GPU open, or an error of CUDA says that GPUs are used. Whether a worker has one
// open is looked at on that thread, too, and only where the machine has a device file of the driver: elsewhere no thread is there.
//
// Xids come as NVML's events: those need no root and no /dev/kmsg, which most containers do not have.
//
// Owned by the Supervisor; event loop only.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/worker_event.h"
#include "agent/gpu/gpu_facts.h"
#include "agent/status/node_status.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/worker_view.h"
#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/loop/timer.h"

namespace ddprun::agent {

class Gpus {
 public:
  Gpus(const AgentParts& parts, const WorkerView& workers);

  void on(const WorkerEvent& event);

  // Asks them, for fill(), unless that was a moment ago. `done` may be called before this returns, and is called soon.
  void refresh(std::function<void()> done);
  void fill(NodeStatus& status) const;

  // A worker has ended by itself: adds to its message what is known of its GPU. What its GPU says after that is a warning,
  // and is in remark().
  void explain(rdzv::WorkerFailure& failure);
  // When nothing more is to be expected for remark(), perhaps at once.
  void when_explained(std::function<void()> done);
  std::string remark() const { return remarks_; }  // for the report of a failure
  // Before workers start: until the memory of those before them is free. The latest call counts.
  void await_memory(std::function<void()> done);

 private:
  using Clock = std::chrono::steady_clock;
  struct Driver;  // shared with the threads
  struct Look {
    std::vector<GpuSample> gpus;
    std::set<int> own;  // processes of this job
    bool are_pids_known = false;
    bool tells_xids = false;
  };
  struct Waiter {
    explicit Waiter(boost::asio::io_context& io) : limit(io) {}
    Timer limit;
    bool is_asked = false;  // the answer that is awaited is for it
    std::function<void(bool is_fresh)> done;
  };

  void look_whether_used();
  void sample(std::chrono::milliseconds limit, std::function<void(bool is_fresh)> done);
  void ask();
  void take(Look look);
  void place_ranks();
  void await_xid();
  void xids_cannot_be_awaited(const std::string& trouble);
  void note(const GpuXid& xid);
  std::vector<int> xids_of(int gpu) const;
  std::optional<std::uint64_t> ecc_of(int gpu) const;
  std::string trouble() const;
  std::vector<std::string> lines_for(const rdzv::WorkerFailure& failure, bool is_fresh) const;
  std::string why_they_say_nothing(const rdzv::WorkerFailure& failure) const;
  void add_remarks(const rdzv::WorkerFailure& failure, const std::vector<std::string>& lines);
  void is_explained();
  void look_for_memory();
  void memory_is_awaited_no_more(const std::string& sentence);

  const AgentParts parts_;
  const WorkerView& workers_;
  bool are_used_ = false;
  bool looks_whether_used_ = false;
  std::optional<Clock::time_point> looked_whether_used_at_;
  const std::shared_ptr<Driver> driver_;
  BlockingCalls calls_;
  BlockingCalls xid_calls_;
  bool has_watched_ = false;
  int xid_troubles_ = 0;  // in a row
  Timer xid_pause_;

  std::vector<std::shared_ptr<Waiter>> waiters_;
  std::optional<Clock::time_point> asked_at_;  // there is no answer yet
  Look last_;
  std::optional<Clock::time_point> last_at_;
  std::vector<GpuSample> at_round_;  // its begin, as soon as they had answered
  bool is_round_new_ = false;
  std::vector<GpuXid> xids_;        // this round's
  std::map<int, int> gpu_of_rank_;  // by local rank

  int explanations_ = 0;  // that are awaited
  std::function<void()> when_explained_;
  std::string remarks_;

  std::set<int>
      listed_;  // processes of this job that had memory in this round, such as a worker's children
  MemoryWait wait_;
  Clock::time_point waits_since_;
  bool has_told_wait_ = false;
  std::function<void()> start_;  // the workers
  Timer look_again_;
};

}  // namespace ddprun::agent
