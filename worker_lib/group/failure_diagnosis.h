// FailureDiagnosis: finds out which rank is missing when a collective fails. Gloo only says that some
// connection broke or that time is over, and often names a neighbour who had noticed the same a moment
// before.
//
// Every rank publishes at most one report in the store: that it has left in order, that it fails and
// why, or, when another rank asks, that it is alive and what it is doing. A thread answers that
// question (it waits for a key of the store, which costs one connection and no time), so that a rank
// which is alive but busy elsewhere is told from one that is gone. Only the first report counts:
// whatever a rank says later is a consequence. Only over a ClientStore is there such a thread; over
// other stores a rank reports when it notices a failure itself.
//
// Where calls do not end by themselves when a rank is gone (NCCL's), that thread does more: as soon as
// any rank asks, it finds out what happened and aborts the groups, so that the calls which wait there
// end, and the failure is thrown in the main thread (abort_when_broken). There a rank also asks when
// it fails itself, when the launcher says that another one has died (report_death), and the store's loss
// counts as an answer.
//
// Owned by the Context, shared by its groups. The main thread calls; fail(), report_death() and
// explain_abort() any thread. Nothing here throws: a store that is gone is one more piece of evidence.
#pragma once

#include <c10/core/ScalarType.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "ddprun/error.h"

namespace ddprun {

// What a rank is doing in its groups, as far as others may want to know.
struct Activity {
  std::string call;         // "all_reduce"; empty: none so far
  std::string tensors;      // "Float[3, 4]"
  std::string group;        // a smaller one's name has a '/'
  std::int64_t number = 0;  // of the group's calls, from 1
  bool is_waiting = false;  // in it now, else after it
  std::int64_t for_ms = 0;  // either way

  std::string to_string() const;
  bool is_in_same_call(const Activity& other) const {
    return group == other.group && number == other.number && call == other.call &&
           is_waiting == other.is_waiting;
  }

  template <typename Fields>
  void fields(Fields& field) {
    field(call, tensors, group, number, is_waiting, for_ms);
  }
};

class FailureDiagnosis {
 public:
  // `name` is that of the group of all ranks, and begins every key; `host` says who serves the store,
  // for the case that it is gone: "rank 0". Not in a world of one.
  FailureDiagnosis(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank,
                   std::vector<int> all_ranks, std::string host);
  ~FailureDiagnosis();
  FailureDiagnosis(const FailureDiagnosis&) = delete;
  FailureDiagnosis& operator=(const FailureDiagnosis&) = delete;

  // Around the wait for a call; some ten nanoseconds each. `call` lives as long as this.
  void enter(const char* call, const std::string& group, std::int64_t number,
             const at::Tensor* tensor);
  void exit();

  // Aborts this group, too, when one is broken. From the first call on is_broken() may become true.
  void abort_when_broken(const c10::intrusive_ptr<c10d::ProcessGroup>& group);
  // Takes that back: a rank that is missing is replaced.
  void forget_groups();
  // The groups were aborted: what their calls give from here on is worth nothing, also where they do not
  // throw. Any thread.
  bool is_broken() const { return is_broken_.load(std::memory_order_acquire); }
  // The failure of the call that this rank is in, or makes next, when they are.
  Failure failure_of_broken();
  // That rank's process has ended, as the launcher says. Over a connection of its own.
  void report_death(int rank) noexcept;

  // This rank's last report.
  void leave();
  void fail(const std::string& why);
  // For the rank that serves the store: until all have left or know why they fail. False when one
  // does not in time.
  bool await_end(std::chrono::milliseconds timeout);

  // The failure of a call of these ranks, `error` being the backend's; takes a second at most.
  Failure explain(const std::vector<int>& ranks, const std::exception& error);
  // For a process that is about to abort by `error`, which another thread than the main one has thrown:
  // tells the others, over a connection of its own, since the main thread may be waiting on the other
  // one. Returns what is to be said here.
  std::string explain_abort(const std::exception& error) noexcept;

 private:
  enum class Kind : std::uint8_t { kLeft, kFailed, kAlive, kDied };
  struct Report {
    Kind kind = Kind::kAlive;
    std::string why;
    Activity activity;
    template <typename Fields>
    void fields(Fields& field) {
      field(kind, why, activity);
    }
  };
  using Clock = std::chrono::steady_clock;

  std::string question_key() const { return name_ + "/who_is_alive"; }
  std::string report_key(int rank) const { return name_ + "/report/" + std::to_string(rank); }
  // Set when a rank needs the store no longer.
  std::string end_key(int rank) const { return name_ + "/end/" + std::to_string(rank); }
  void find_missing(c10d::Store& store, std::span<const int> ranks,
                    std::vector<int>& missing) const;

  void publish(c10d::Store& store, Kind kind, const std::string& why = {});
  void ask(c10d::Store& store);
  void end(c10d::Store& store);
  void answer_question(c10d::Store& store);
  void abort_groups(const std::string& found);
  c10::intrusive_ptr<c10d::Store> connect_anew() const;
  std::string store_is_gone() const;
  Activity activity() const;
  Failure failure(const Activity& mine, const std::string& found, const std::string& text,
                  ErrorCode code) const;
  Failure explain(c10d::Store& store, const std::vector<int>& ranks, const std::exception& error);
  std::string findings(c10d::Store& store, const std::vector<int>& ranks, const Activity& mine,
                       bool is_death_seen);

  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  int rank_;
  std::vector<int> all_ranks_;
  std::string host_;

  mutable std::mutex activity_mutex_;
  const char* call_ = nullptr;
  std::string group_;
  std::int64_t number_ = 0;
  std::optional<c10::ScalarType> type_;
  std::vector<std::int64_t> sizes_;
  bool is_waiting_ = false;
  Clock::time_point since_ = Clock::now();

  std::mutex report_mutex_;
  bool has_reported_ = false;

  std::atomic<bool> aborts_ = false;     // groups, when they are broken
  std::atomic<bool> is_ending_ = false;  // this rank needs no answer any more
  std::atomic<bool> is_broken_ = false;
  mutable std::mutex groups_mutex_;
  std::vector<c10::weak_intrusive_ptr<c10d::ProcessGroup>> groups_;
  std::string found_;  // what broke them

  c10::intrusive_ptr<c10d::Store> answering_store_;  // a connection of its own
  std::thread answering_;
};

}  // namespace ddprun
