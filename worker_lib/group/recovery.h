// Recovery: what a Context knows of replacement in place (agent/README.md): which steps are committed, what
// the calls between two steps gave, and how the groups are made again when a rank has been replaced. Its states and
// decisions are recovery_core's; here are the calls, the mirror, the agent. The state of model and optimizer is given
// from outside (RecoverableState; recover/recoverable.cpp).
//
// | a group's call that waits for others, in | is                                                                |
// |-------------------------------------------|-------------------------------------------------------------------|
// | the set-up of a worker                    | made, and its result noted: the standby of this rank is told it   |
// | the set-up of a prepared standby          | not made: it gives what it gave to the worker of this rank        |
// | between steps                             | made; if a rank is lost meanwhile, made again when it is replaced. |
// |                                           | Its result is noted until the next commit: a replaced rank goes    |
// |                                           | through the same calls, and is told it                            |
// | ... past the group (c10d's own object)    | made, and ranks are not replaced in place from here on             |
// | a step                                    | made; if a rank is lost meanwhile, it throws GroupLost to step()  |
//
// Over NCCL a call that was ended looks like one that is done, and the host may be ahead of it. So what calls have left is
// awaited, and looked at, before it is used (await_queued_calls()): a call of a Group when it returns, what a backward()
// has called at its end, and so before the optimizer's step. No rank ends its calls before all know that the groups are
// broken (c10d/nccl_ending.h), so what has come until then is right.
//
// A step is committed on a rank when step() is over there. At most one step is committed on some ranks and
// not yet on others, because each step waits for all: ranks that are behind are given its outcome.
//
// Owned by the Context, shared with its groups. The thread that made it calls, and in its backward() the autograd's threads;
// after a call on any other thread ranks are not replaced in place. A thread of its own hears the agent, and ends the calls
// of groups that are broken.
#pragma once

#include <c10/core/Event.h>
#include <c10/util/ScopeExit.h>
#include <sys/types.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <variant>
#include <vector>

#include "ddprun/collectives.h"
#include "ddprun/error.h"
#include "rendezvous/common/unique_fd.h"
#include "worker_lib/c10d/nccl_ending.h"
#include "worker_lib/c10d/process_group.h"
#include "worker_lib/group/membership.h"
#include "worker_lib/process/agent_link.h"
#include "worker_lib/process/mirror.h"
#include "worker_lib/recovery_core/recovery_core.h"

namespace ddprun {

// The connection to the other ranks broke in a step.
class GroupLost : public Failure {
 public:
  using Failure::Failure;
};

// What of a training is put back, or given to a rank that takes another's place.
class RecoverableState {
 public:
  virtual ~RecoverableState() = default;

  // What only this rank has; small. restore() is its reverse; `with_replicated`: of parts that all ranks have the
  // same of, too, which share() gives to others.
  virtual void append_to(std::string& state) = 0;
  virtual void restore(std::string_view state, bool with_replicated) = 0;
  // Changes when the optimizer steps.
  virtual std::uint64_t version() = 0;
  // The groups are made anew: take them. Then, collective: all ranks have what rank `source` has; `lacks_it`: this
  // one had not. `told`: what goes with it; returns that of `source`.
  virtual std::string share(int source, bool lacks_it, std::string told) = 0;
  // All that share() has given was compared since.
  virtual bool is_compared() const = 0;
};

class Recovery {
 public:
  struct Hooks {
    // A connection of its own to the store where the ranks meet.
    std::function<c10::intrusive_ptr<c10d::Store>()> connect;
    // A prepared standby is a rank now.
    std::function<void(c10::intrusive_ptr<c10d::Store>)> placed;
    // From here on this object hears the agent.
    std::function<void()> hears_agent;
  };
  Recovery(AgentLink& link, ProcessGroupOptions options, bool is_prepared, Hooks hooks);
  ~Recovery();
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  bool is_prepared() const {  // a standby that has no place yet
    const auto* off = std::get_if<recovery::Off>(&state_);
    return is_in<recovery::Prepared>() || (off != nullptr && off->is_standby);
  }
  // Makes the group of a new membership, the one of all ranks first; in the order in which all ranks
  // make them.
  void make(const std::shared_ptr<detail::Membership>& membership);

  // Whether a call outside of a step goes through run(). One that is asynchronous stays so in the set-up, of
  // which nothing can be noted then; between two steps it is made at once.
  bool records(bool is_async);
  // Steps before the one that this rank is in; all ranks have the same.
  std::int64_t committed() const { return std::get<recovery::InStep>(state_).committed; }
  // Which all ranks are at the same calls.
  bool is_between_steps() const {
    return is_on_its_thread() && unrecorded_ == 0 && is_outside_step();
  }
  // Makes the call that `begin` begins, or does without it. Returns when it is done.
  struct Results {
    const std::vector<torch::Tensor>& tensors;  // that it writes
    bool are_equal_everywhere;
  };
  void run(const std::shared_ptr<detail::Membership>& membership, const char* name,
           const std::vector<torch::Tensor>& kept, const detail::Operation::Begin& begin,
           const Results& results);
  // Whether a call that fails now throws GroupLost.
  bool may_recover() const {
    return is_on_its_thread() && !is_in_set_up() && !is_in<recovery::Off>();
  }

  // While what it returns lives, calls are neither noted nor told: what they are about is given in another way.
  [[nodiscard]] static auto unrecorded(Recovery* recovery) {
    if (recovery != nullptr) ++recovery->unrecorded_;
    return c10::make_scope_exit([recovery] {
      if (recovery != nullptr) --recovery->unrecorded_;
    });
  }

  // This program cannot be recovered from here on, says the sentence. Idempotent. `nor_later`: nor in a later round of this
  // job, because a recovery was wrong.
  void refuse(const std::string& why, bool nor_later = false);
  // False from a replacement on until the replicas were compared: a snapshot of them must not take the place of an
  // older one. The same on all ranks.
  bool are_replicas_compared() const { return parts_ == nullptr || parts_->is_compared(); }
  // The set-up is over. In a prepared standby returns when it has taken its rank's place; `warm_up` is called
  // before, if there is one.
  void join(RecoverableState& state, const std::function<void()>& warm_up);
  void step(const std::function<void()>& f);
  // No step follows; idempotent. end(): nor is there a link any more.
  void leave();
  void end();
  // For the state that is about to be given to others; on any thread.
  void before_call(CallKind kind);
  // Likewise; before the optimizer's step, in a step that is to be made again: throws GroupLost, so that its rest need not
  // be computed.
  void end_lost_step() const;
  // Until the calls over NCCL are done on the GPU. Throws GroupLost if a rank was lost until then.
  void await_queued_calls();

 private:
  // The thread that made this object, or one of the autograd's, for which that thread waits in backward().
  bool is_on_its_thread() const;
  // Called on that thread, because no other thread may change the state.
  void refuse_calls_of_other_threads();
  template <typename State>
  bool is_in() const {
    return std::holds_alternative<State>(state_);
  }
  bool is_in_set_up() const { return is_in<recovery::SetUp>() || is_in<recovery::Prepared>(); }
  bool is_outside_step() const { return is_in<recovery::Between>() || is_in<recovery::Entering>(); }
  // The next state. recovery::Bug ends the process: a rank must not train on in a state that cannot be.
  recovery::Outcome ask(const recovery::Event& event) noexcept;
  void perform(const recovery::Outcome& outcome);
  void tell(const recovery::Event& event) { perform(ask(event)); }

  void listen(FailureDiagnosis& diagnosis);
  bool has_news() const;
  void await_device();
  void note_gpu(bool is_known);
  [[noreturn]] void fail_with_gpu(const std::exception& error);
  void await_at_end_of_backward();
  bool has_stepped() const;  // the optimizer, in this step
  std::uint32_t wanted_generation() const {
    const std::scoped_lock lock(mutex_);
    return wanted_generation_;
  }
  // Until the agent says what is to become of the groups of this generation. False: they are not made anew.
  bool await_news(std::uint32_t broken);
  void recover();
  void make_groups(std::uint32_t generation);
  void meet(c10d::Store& store, std::uint32_t generation);
  void end_calls_over_nccl();
  void note_that_nccl_connects(std::uint32_t generation);
  void note_that_nccl_is_connected();
  recovery::Outcome agree();  // what is to be done once all ranks have their state
  void take_state(const recovery::TakeState& take);
  recovery::InMirror look_into_mirror() const;
  void take_place();
  void write(std::int64_t step, Mirror::Moment moment, const std::string& bytes);
  void give_up(const std::exception_ptr& thrown);
  std::shared_ptr<detail::Membership> whole() const;

  AgentLink& link_;
  const ProcessGroupOptions options_;
  const Hooks hooks_;
  const std::thread::id its_thread_ = std::this_thread::get_id();
  std::atomic<bool> has_other_threads_ = false;  // which make calls
  recovery::State state_;
  int unrecorded_ = 0;
  bool is_in_call_ = false;  // of run()
  std::vector<std::weak_ptr<detail::Membership>> groups_;
  // This rank among all.
  std::string name_;  // the group's
  int rank_ = 0;
  int world_size_ = 0;

  RecoverableState* parts_ = nullptr;
  bool was_wrong_ = false;
  std::unique_ptr<Mirror> mirror_;
  std::vector<std::string> setup_;  // results of its calls
  std::size_t setup_bytes_ = 0;
  std::vector<std::string> results_;    // calls since the commit, as far as this rank knows
  std::size_t noted_bytes_ = 0;         // in them
  std::uint64_t version_at_entry_ = 0;  // of the state, in a step
  std::string written_;                 // the last effect
  std::string scratch_;

  std::uint32_t generation_ = 0;  // of the groups
  int steps_made_ = 0;            // by this process, at most kMeasuredSteps

  // Over NCCL.
  std::atomic<bool> has_queued_ = false;     // calls, since they were awaited
  std::atomic<std::int64_t> backward_ = -1;  // the last one that has made such calls
  std::optional<c10::Event> queued_;
  std::vector<std::unique_ptr<NcclEnding>> freed_later_;  // groups before

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::uint32_t wanted_generation_ = 0;
  bool is_broken_ = false;  // for good
  bool is_off_ = false;
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> current_;
  c10::intrusive_ptr<c10d::Store> joining_store_;  // that make_groups() waits at
  rdzv::UniqueFd stop_joining_;                    // an eventfd: make_groups() waits no longer
  std::unique_ptr<NcclEnding> ending_;             // ends the calls of `current_`
  std::optional<std::set<ino_t>> sockets_before_;  // NCCL connects the ranks, which it does now
  rdzv::UniqueFd stop_;
  std::thread thread_;
};

}  // namespace ddprun
