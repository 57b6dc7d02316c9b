// Recoverable: when a rank dies, the others keep their processes, their model and their place, and another
// process takes the dead one's: `ddprun --standby=auto` has it ready. No step is lost, each sample is used
// once, and the final weights have the bits of a run without the death. The Trainer (trainer.h) does it by
// itself; this is for loops of your own.
//
//   ddprun::Recoverable recoverable(context, model, optimizer);
//   recoverable.keep(at.epoch, at.consumed, at.step, loss_sum);
//   recoverable.join();                                     // after resume(), before the loop
//   for (; at.epoch < 10; ++at.epoch, at.consumed = 0) {
//     sampler.set_epoch(at.epoch, at.consumed);
//     while (auto indices = sampler.next(64)) {
//       recoverable.step([&] {                              // one step of the optimizer
//         optimizer.zero_grad();
//         auto loss = loss_of(model(inputs(*indices)), targets(*indices));
//         loss_sum += loss.item<double>();
//         loss.backward();
//         optimizer.step();
//       });
//       ++at.step; at.consumed = sampler.consumed();
//     }
//   }
//
// What the standby does: the program's set-up, for its rank alone, up to join(), where it waits. What the
// other ranks told its worker there (broadcast_object and others) it is told again. Its output is dropped;
// files that it opens or writes are opened and written twice. When it takes its rank's place, join()
// returns with the state kept as it was at the entry of the step that is due, and the loop must lead from
// there to step() without calls that wait for others, as it does after a checkpoint was resumed.
//
// In step(): all that must not be done twice, or by halves: forward, backward, the optimizer's step. When a
// rank is lost, backward() or a call throws, which must reach step(), and the step is made again from its
// beginning: the state kept, the module's buffers, the optimizer's options and the random numbers are put back, gradients
// are cleared.
// What it changes besides must be the same when it is done twice, or be kept. What is kept must have its new
// value before backward(): a rank may die after it has given its gradients, and the step counts. It is an error (UsageError)
// to change it later in one of the first steps; where a later step does so for the first time, ddprun says so, and ranks are
// not replaced in place from there on. After the
// optimizer's step no call that waits for others: make it after step(), where it is made again by itself.
// Nothing of it is kept on a thread of your own.
//
// run() is step() in a form in which the compiler sees what a step may change. All that the loop counts is one struct,
// which is kept as a whole, and the function has no captures: it gets the struct, the model, the optimizer and kept parts
// as they are, and everything else as const. To write into a const Tensor compiles, and is found in each step (UsageError), with
// and without ddprun; tensor_marks.h says in which values.
//
//   struct Loop {
//     std::int64_t epoch = 0, consumed = 0, step = 0;
//     double loss_sum = 0;
//   } at;
//   recoverable.keep(at);
//   recoverable.join();
//   for (; at.epoch < 10; ++at.epoch, at.consumed = 0) {
//     sampler.set_epoch(at.epoch, at.consumed);
//     while (auto indices = sampler.next(64)) {
//       recoverable.run(at, [](Loop& loop, Model& model, Optimizer& optimizer, const Batch& batch) {
//         optimizer.zero_grad();
//         auto loss = loss_of(model(batch.inputs), batch.targets);
//         ++loop.step, loop.loss_sum += loss.item<double>();
//         loss.backward();
//         optimizer.step();
//       }, model, optimizer, batch_of(*indices));
//       at.consumed = sampler.consumed();
//     }
//   }
//
// Options of the optimizer's parameter groups (learning rate, momentum, …) come along as the weights do, whether a
// schedule or the loop sets them, in a step or between two. Before a step is committed after a replacement the ranks compare
// options and replicated parts, and in the first steps (8 at most, 64 MiB in each if that is enough) the parameters, also
// those that only the optimizer has, and the optimizer's state. If ranks differ, step() throws a Failure that names what,
// which ranks and since which step, and all workers begin anew: a loop that computes its learning rate from a counter that
// it does not keep is found so. Values and parts given to keep(), and buffers, are each rank's own: a part must have the state
// that it was given back (state_dict() after load_state_dict()), else all workers begin anew.
//
// Every rank makes the same steps; each waits for all ranks (DDP does). Without ddprun, with --standby=off,
// with an agent of an earlier version and alone, step() calls f and nothing else happens. Where ranks
// cannot be replaced (a communication hook with a memory, a join() of uneven inputs, an optimizer of another
// class or with sparse state, a first step that changes a buffer or draws random numbers after its backward()), ddprun says why
// at the start, and restarts the workers as before. One thread. All that is given must outlive this.
#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/context.h"
#include "ddprun/ddp.h"
#include "ddprun/serialize.h"
#include "ddprun/stateful.h"
#include "ddprun/tensor_marks.h"

namespace ddprun {

class Recoverable {
 public:
  template <typename Module>
  Recoverable(Context& context, DistributedDataParallel<Module>& model,
              torch::optim::Optimizer& optimizer)
      : Recoverable(context, *model, model.reducer(), optimizer) {}
  // The same where the module's type is not known.
  Recoverable(Context& context, torch::nn::Module& module, GradientReducer& reducer,
              torch::optim::Optimizer& optimizer);
  ~Recoverable();
  Recoverable(const Recoverable&) = delete;
  Recoverable& operator=(const Recoverable&) = delete;

  // State of this rank, in the same order on all: numbers and other plain data, structs that name their fields
  // (serialize.h), or parts that can say their state. It is copied in every step: some hundred nanoseconds each.
  template <typename... Values>
  void keep(Values&... values) {
    (keep_one(values), ...);
  }
  // A part that all ranks have the same of and that step() changes after backward(): a GradScaler.
  void keep_replicated(Stateful& part);

  // Once, when all is kept and the set-up is over. `warm_up` makes a step, on any data and without step(): it is
  // called in a standby only, alone, and what it changes is put back. A first step is slower than others, and
  // this one then is before all wait for it.
  void join(const std::function<void()>& warm_up = {});

  template <typename Function>
  void step(Function&& f) {
    constexpr bool kReturnsNothing = requires {
      { f() } -> std::same_as<void>;
    };
    static_assert(kReturnsNothing,
                  "Recoverable::step() calls a function without arguments that returns nothing, as "
                  "[&] { … }: what it returned would be lost when another rank's step counts");
    if constexpr (kReturnsNothing) make_step(std::ref(f));
  }

  // step() with f(state, others...); see above. `state` was given to keep(). `others`: the model, the optimizer, and
  // parts that were given to keep() or keep_replicated(); f gets all else as const.
  template <typename State, typename Function, typename... Others>
  void run(State& state, Function&& f, Others&&... others) {
    constexpr bool kFits =
        (std::is_empty_v<std::decay_t<Function>> ||
         std::is_pointer_v<std::decay_t<Function>>)&&std::is_invocable_v<Function&, State&,
                                                                         Passed<Others>&...>;
    static_assert(
        kFits,
        "Recoverable::run(state, f, others...) calls a function without captures: [](State& state, "
        "Model& model, Optimizer& optimizer, const Batch& batch) { … }. What is neither the state, "
        "the "
        "model, the optimizer nor a part that keep() was given, it takes as const");
    if constexpr (kFits) {
      check_is_carried(&state, "a state");
      (check_other(others), ...);
      make_step([&] {
        const std::vector<detail::TensorMarks> before{marks_of_const(others)...};
        f(state, static_cast<Passed<Others>&>(others)...);
        check_const({marks_of_const(others)...}, before);
      });
    }
  }

 private:
  // What a step may change, because it is carried.
  template <typename Other>
  static constexpr bool kIsCarried =
      std::is_base_of_v<torch::optim::Optimizer, Other> ||
      std::is_base_of_v<torch::nn::Module, Other> || std::is_base_of_v<Stateful, Other>;
  template <typename Other>
  using Passed =
      std::conditional_t<kIsCarried<std::remove_reference_t<Other>>, std::remove_reference_t<Other>,
                         const std::remove_reference_t<Other>>;

  // A struct that names its fields, as a part.
  template <typename Value>
  class Fields final : public Stateful {
   public:
    explicit Fields(Value& value) : value_(value) {}
    std::string state_dict() const override { return to_bytes(value_); }
    void load_state_dict(const std::string& state) override { value_ = from_bytes<Value>(state); }

   private:
    Value& value_;
  };

  template <typename Value>
  void keep_one(Value& value) {
    if constexpr (std::is_base_of_v<Stateful, Value>) {
      Stateful* const part = &value;
      keep_part({std::shared_ptr<void>(), part}, part);  // which is not ours
    } else if constexpr (std::is_trivially_copyable_v<Value>) {
      static_assert(!std::is_pointer_v<Value>,
                    "a pointer means nothing in another process: keep what it points to");
      keep_bytes(&value, sizeof value);
    } else {
      static_assert(
          !std::is_same_v<Value, torch::Tensor>,
          "a tensor that steps change is to be a buffer of the model: all buffers are kept");
      static_assert(Serialisable<Value>,
                    "Recoverable::keep() takes plain data, parts that are ddprun::Stateful, and "
                    "structs with a "
                    "fields() (serialize.h)");
      keep_part(std::make_shared<Fields<Value>>(value), &value);
    }
  }
  template <typename Other>
  void check_other(const Other& other) const {
    if constexpr (std::is_base_of_v<torch::optim::Optimizer, Other>) {
      check_is_carried(static_cast<const torch::optim::Optimizer*>(&other), "an optimizer");
    } else if constexpr (std::is_base_of_v<torch::nn::Module, Other>) {
      check_is_carried(static_cast<const torch::nn::Module*>(&other), "a module");
    } else if constexpr (requires { other.reducer(); }) {
      check_is_carried(static_cast<const torch::nn::Module*>(&*other), "a model");
    } else if constexpr (std::is_base_of_v<Stateful, Other>) {
      check_is_carried(static_cast<const Stateful*>(&other), "a part");
    }
  }
  template <typename Other>
  static detail::TensorMarks marks_of_const(const Other& other) {
    if constexpr (kIsCarried<Other>) {
      return {};
    } else {
      return detail::marks_of(other);
    }
  }
  // The same for each of `others`; else throws UsageError.
  static void check_const(const std::vector<detail::TensorMarks>& now,
                          const std::vector<detail::TensorMarks>& before);
  // `place` is that of the model, the optimizer, or of what was kept; else throws UsageError.
  void check_is_carried(const void* place, const char* what) const;
  void keep_bytes(void* data, std::size_t size);
  void keep_part(std::shared_ptr<Stateful> part, const void* place);
  void make_step(const std::function<void()>& f);

  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ddprun
