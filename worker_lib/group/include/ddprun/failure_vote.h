// FailureVote: one rank's trouble ends all ranks, at the same place and with the same text, where
// an exception on one rank would leave the others waiting in a collective until it is noticed.
// FiniteGuard uses it for a loss that is NaN or infinite. One thread; the Group (or
// Context) must outlive both.
//
//   ddprun::FailureVote failures(context);
//   ddprun::FiniteGuard finite(failures);
//   for (...) {
//     loss.backward();
//     optimizer.step();
//     finite.watch(loss, step);
//     failures.poll();
//   }
//   failures.settle();
//
// A vote is a collective of 16 bytes through the CPU (some 50 us between two processes of one
// machine), so it is not held after every step but about twice a second, at calls that the vote
// before has fixed, as Context::should_leave() does; in between poll() is a decrement. A bad step is
// therefore told up to half a second late, by its number and rank, and before anything that matters
// (a checkpoint, an evaluation, the end) settle() asks at once.
#pragma once

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ddprun/collectives.h"

namespace ddprun {

class Context;
class LeaveVote;

class FailureVote {
 public:
  explicit FailureVote(Group& group);
  explicit FailureVote(Context& context);
  ~FailureVote();
  FailureVote(const FailureVote&) = delete;
  FailureVote& operator=(const FailureVote&) = delete;

  // Not collective: this rank is in trouble since `step`. The first report counts. With an exception
  // this rank throws that one in the end, the others a Failure with its text.
  void report(std::int64_t step, std::string why);
  void report(std::int64_t step, std::exception_ptr thrown);
  bool has_report() const { return trouble_.has_value(); }

  // Call it equally often on every rank, at the same places. Throws on every rank when one has
  // reported; of several the earliest step, and of these the lowest rank, is named.
  void poll();
  // poll(), and whether the job is to end early: one vote for both, instead of a second one by
  // Context::should_leave(), which says what the answer means and is not called then. Of a FailureVote
  // of a Context only.
  bool should_leave();
  // poll() with a vote in any case.
  void settle();

  // Of the votes, for the process that may take this rank's place (recoverable.h).
  std::array<std::int64_t, 3> vote_state() const;
  void restore_vote(const std::array<std::int64_t, 3>& state);

  // Called before each vote, for watchers that look only now and then.
  void before_vote(std::function<void()> look) { look_ = std::move(look); }

 private:
  struct Trouble {
    std::int64_t step;
    std::string why;
    std::exception_ptr thrown;
  };

  template <typename AlsoTold>
  bool vote(const AlsoTold& is_also_told);
  [[noreturn]] void end_together();

  Group& group_;
  Context* context_ = nullptr;
  std::unique_ptr<LeaveVote> vote_;
  std::optional<Trouble> trouble_;
  std::function<void()> look_;
  bool is_leaving_ = false;
};

// Reports to `failures` when a loss is not finite. On a GPU the loss is not read after every step
// (that would wait for the GPU) but before a vote.
class FiniteGuard {
 public:
  // The only one of this FailureVote, which must outlive it.
  explicit FiniteGuard(FailureVote& failures);
  ~FiniteGuard();
  FiniteGuard(const FiniteGuard&) = delete;
  FiniteGuard& operator=(const FiniteGuard&) = delete;

  // `loss`: a floating-point tensor of one element, this rank's. Not collective.
  void watch(const torch::Tensor& loss, std::int64_t step);
  void watch(double loss, std::int64_t step);

 private:
  void look();

  FailureVote& failures_;
  torch::Tensor first_bad_;  // on a GPU: the step, or the largest number
};

}  // namespace ddprun
