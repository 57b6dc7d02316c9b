// Trainer: the training loop, written. Epochs or steps, gradient accumulation, schedules, clipping,
// evaluation, the best model and early stopping, checkpoints that a run resumes from inside an
// epoch with the same bits, callbacks, a progress bar. Every part of it works without it, and
// examples/train_manual_loop.cpp is the loop without it.
//
//   ddprun::DistributedDataParallel model(std::make_shared<Net>(), context);
//   torch::optim::SGD optimizer(model.parameters(), 0.1);
//   ddprun::Trainer trainer(context, model, optimizer, {.max_epochs = 10, .monitor = "accuracy"});
//   trainer.use(schedule, ddprun::LRScheduler::Interval::kStep);
//   trainer.use(checkpoints);
//   ddprun::History history = trainer.fit(
//       loader,
//       [](auto& net, auto& batch) { return cross_entropy(net(batch.data), batch.target); },
//       [&] { return ddprun::Metrics{{"accuracy", accuracy_over_all_ranks()}}; });
//
// fit() is collective, and called once. One thread; Context, model, optimizer and all that is used
// must outlive it. All ranks need equally many batches: a DataLoader and DistributedSampler give them
// that. What the options and functions refuse is a UsageError.
//
// Under `ddprun --standby` a rank that dies is replaced in place, without a lost step (recoverable.h), where
// the batches are given again after a resume: by a DataLoader or another range with a DistributedSampler.
// State of a callback's own is not given to the process that takes a rank's place. On a GPU each step then reads its losses,
// which waits for the GPU, as Gloo does; over NCCL no rank is replaced in place, and a step waits for nothing.
//
// The arithmetic of a step is that of the usual Python loop, so the same program gives the same bits
// in both languages: zero_grad; for each batch of the window (loss / window).backward(), all but the
// last under no_sync; clip; optimizer.step(); schedule.step().
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/callbacks.h"
#include "ddprun/checkpoint.h"
#include "ddprun/context.h"
#include "ddprun/ddp.h"
#include "ddprun/history.h"
#include "ddprun/lr_scheduler.h"
#include "ddprun/metric_mode.h"
#include "ddprun/mixed_precision.h"
#include "ddprun/sampler.h"

namespace ddprun {

struct TrainerOptions {
  std::int64_t max_epochs = 0;  // 0: one, or with max_steps as many as these take
  std::int64_t max_steps = 0;  // end after so many optimizer steps, whatever the epoch; 0: no limit

  // Batches per optimizer step. The gradients of a step are the mean over its batches, also in the
  // last, shorter window of an epoch. A window's batches are in memory together.
  int accumulate_grad_batches = 1;

  // Of the gradients, averaged over the ranks, before the optimizer's step; 0: not. Norm first.
  double clip_grad_norm = 0;
  double clip_grad_value = 0;

  // When fit()'s evaluation is called: after every so many steps, and epochs; 0: not. After the
  // last step it is called in any case.
  std::int64_t evaluate_every_steps = 0;
  std::int64_t evaluate_every_epochs = 1;

  // Which of the evaluation's numbers says how good the model is. With it, a new best one is saved
  // (if checkpoints are used), and early stopping is possible.
  std::string monitor = {};
  MetricMode mode = MetricMode::kMax;
  int patience = 0;  // evaluations without an improvement above min_delta, then it ends; 0: never
  double min_delta = 0;

  // A loss that is NaN or infinite on one rank ends all of them, naming it: within half a second
  // and before any evaluation or checkpoint (failure_vote.h).
  bool terminate_on_nan = true;
  // A bar on the main process' stderr, and a log line after each epoch and evaluation.
  bool enable_progress_bar = true;
};

// What a loss function may return in place of the loss.
struct BatchResult {
  torch::Tensor loss;      // one element
  std::int64_t count = 1;  // samples: the batch's weight in the epoch's means
  Metrics metrics = {};    // means over the batch
};

// Steps for checkpoints; they are also made when the job is to end early, at the end of fit(), and
// (with TrainerOptions::monitor) when the model is the best so far.
struct CheckpointCadence {
  std::int64_t every_steps = 0;   // 0: not by steps
  std::int64_t every_epochs = 1;  // 0: not by epochs
};

// The part of Trainer that knows neither the model's nor the batches' type.
class TrainerBase {
 public:
  TrainerBase(const TrainerBase&) = delete;
  TrainerBase& operator=(const TrainerBase&) = delete;

  // Calls schedule.step() after every optimizer step, or after every epoch and its evaluation.
  void use(LRScheduler& schedule, LRScheduler::Interval interval);

  // fit() resumes from the newest checkpoint, if there is one, and saves: model, optimizer, schedule,
  // scaler, random numbers, history; parts of your own by register_for_checkpointing(). Do not call
  // resume() yourself, nor save() when the Trainer is gone. For the best model
  // CheckpointOptions::best must be TrainerOptions::mode.
  void use(Checkpointer& checkpoints, const CheckpointCadence& cadence = {});

  // A range of batches whose order is this sampler's and which cannot say so: fit() calls its
  // set_epoch() and resumes from its position. (A DataLoader says so itself.) Without a sampler fit()
  // calls the range's own set_epoch(epoch), if it has one, and a run that is resumed inside an
  // epoch goes through the batches that were done without using them.
  void use(const DistributedSampler& sampler);

  // Scales losses, unscales gradients before clipping, makes the optimizer's steps. The autocast
  // belongs into the loss function.
  void use(GradScaler& scaler);

  // Hooks are called in the order in which callbacks were added.
  void add_callback(std::shared_ptr<Callback> callback, Callback::On on = Callback::On::kAllRanks);

 protected:
  using Evaluation = std::function<Metrics()>;
  static BatchResult as_result(BatchResult result) { return result; }
  static BatchResult as_result(torch::Tensor loss) { return {std::move(loss)}; }

  // `model`: what the module's wrapper keeps of its own.
  TrainerBase(Context& context, torch::nn::Module& module, Stateful& model,
              GradientReducer& reducer, torch::optim::Optimizer& optimizer,
              const TrainerOptions& options);
  ~TrainerBase();

  int accumulate_grad_batches() const;

  // The stations of fit(), in its order.
  void begin(Evaluation evaluation);
  bool is_over() const;
  bool has_sampler() const;
  // Nothing of the resumed epoch is left but its end; `batches` as for expect_batches(), if known.
  bool is_epoch_done(std::optional<std::int64_t> batches) const;
  std::int64_t begin_epoch();                 // which one; the sampler stands where it begins
  void expect_batches(std::int64_t batches);  // of the epoch, as far as it is still to come
  bool is_done_already();  // the next batch of a range without a sampler, in a resumed epoch
  // Calls `update`, again if a rank has been replaced meanwhile (recoverable.h).
  void make_update(const std::function<void()>& update);
  void begin_update();
  // Notes the result and returns what is to be differentiated.
  torch::Tensor part_of_update(const BatchResult& result, std::size_t window);
  void step_optimizer();
  void end_update();
  // `is_whole`: the range came to its end.
  void end_epoch(bool is_whole);
  History end();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

template <typename Module>
class Trainer : public TrainerBase {
 public:
  Trainer(Context& context, DistributedDataParallel<Module>& model,
          torch::optim::Optimizer& optimizer, const TrainerOptions& options = {})
      : TrainerBase(context, *model, model, model.reducer(), optimizer, options), model_(model) {}

  // Trains until the options say that it is over, or the job is to end early.
  //   batches: any range; begun anew for each epoch. A batch is copied once, as tensors are: by
  //     reference.
  //   loss_of(model, batch): the batch's mean loss, a tensor of one element, or a BatchResult.
  //   evaluation(): called on all ranks without gradients and with the module in eval mode. It must
  //     return the same on all ranks (reduced metrics); rank 0's numbers count.
  // Returns the whole history, that of the runs before included.
  template <typename Batches, typename LossFunction>
  History fit(Batches&& batches, LossFunction&& loss_of, Evaluation evaluation = nullptr) {
    using Batch = std::remove_cvref_t<decltype(*std::begin(batches))>;
    constexpr bool kGivesLoss = requires(LossFunction & loss, Batch & batch) {
      TrainerBase::as_result(loss(std::declval<DistributedDataParallel<Module>&>(), batch));
    };
    static_assert(kGivesLoss,
                  "Trainer::fit(batches, loss_of, evaluation) calls loss_of(model, batch), which "
                  "returns the mean loss "
                  "of the batch, a tensor, or a ddprun::BatchResult: [](auto& model, auto& batch) "
                  "{ return …; }");
    if constexpr (requires { batches.sampler(); }) use(batches.sampler());
    const auto batches_to_come = [&]() -> std::optional<std::int64_t> {
      if constexpr (requires { batches.batches_left(); }) {
        return batches.batches_left();
      } else if constexpr (requires { std::size(batches); }) {
        return static_cast<std::int64_t>(std::size(batches));
      } else {
        return std::nullopt;
      }
    };
    begin(std::move(evaluation));
    // The run before was interrupted between its last step and the end of that step's epoch.
    if (is_over() && is_epoch_done(batches_to_come())) {
      begin_epoch();
      expect_batches(*batches_to_come());
      end_epoch(/*is_whole=*/true);
    }
    while (!is_over()) {
      const std::int64_t epoch = begin_epoch();
      if constexpr (requires { batches.set_epoch(epoch); }) {
        if (!has_sampler()) batches.set_epoch(epoch);
      }
      if (const auto count = batches_to_come()) expect_batches(*count);
      std::vector<Batch> window;
      bool is_whole = true;
      for (auto&& batch : batches) {
        if (is_done_already()) continue;
        window.push_back(batch);
        if (static_cast<int>(window.size()) < accumulate_grad_batches()) continue;
        update(window, loss_of);
        window.clear();
        is_whole = !is_over();
        if (!is_whole) break;
      }
      if (!window.empty()) update(window, loss_of);
      end_epoch(is_whole);
    }
    return end();
  }

 private:
  // One step of the optimizer.
  template <typename Batch, typename LossFunction>
  void update(std::vector<Batch>& window, LossFunction& loss_of) {
    const auto backward = [&](Batch& batch) {
      part_of_update(as_result(loss_of(model_, batch)), window.size()).backward();
    };
    make_update([&] {
      begin_update();
      for (std::size_t i = 0; i + 1 < window.size(); ++i) {
        // What is averaged once more with the window's last batch stays the same.
        if (model_.must_synchronize()) {
          backward(window[i]);
          continue;
        }
        const auto no_sync = model_.no_sync();
        backward(window[i]);
      }
      backward(window.back());
      step_optimizer();
    });
    end_update();
  }

  DistributedDataParallel<Module>& model_;
};

}  // namespace ddprun
