#include "ddprun/trainer.h"

#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <sstream>

#include "ddprun/early_stopping.h"
#include "ddprun/error.h"
#include "ddprun/evaluation_mode.h"
#include "ddprun/failure_vote.h"
#include "ddprun/gradients.h"
#include "ddprun/log.h"
#include "ddprun/metrics.h"
#include "ddprun/progress.h"
#include "ddprun/recoverable.h"
#include "ddprun/serialize.h"
#include "worker_lib/checkpoint/state_text.h"
#include "worker_lib/group/leave_vote.h"

namespace ddprun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTrainer = "a Trainer";
constexpr auto kLossOfGpuPeriod = std::chrono::seconds(1);

// Each loss and metric times its number of samples.
struct EpochSums {
  double loss = 0;
  Metrics metrics;
  std::int64_t count = 0;  // samples
};

// What is added up in an epoch, of which the means over all ranks' samples are made. A loss that was computed on a GPU
// stays there: reading it would wait for the GPU.
class EpochMeter {
 public:
  // `metrics`: means over the batch's `count` samples, as the loss is.
  void add(const torch::Tensor& loss, const Metrics& metrics, std::int64_t count) {
    const auto weight = static_cast<double>(count);
    if (loss.is_cpu()) {
      loss_.add(loss.item<double>() * weight);
    } else {
      loss_.add(loss.to(torch::kFloat64) * weight);
    }
    count_ += count;
    for (const auto& [name, value] : metrics) metrics_[name] += value * weight;
  }
  EpochSums own() const { return {loss_.value(), metrics_, count_}; }
  void continue_from(EpochSums sums) {
    loss_ = {};
    loss_.add(sums.loss);
    metrics_ = std::move(sums.metrics);
    count_ = sums.count;
  }
  // Collective. Which metrics there are is rank 0's to say.
  EpochSums over_ranks(Context& context) const {
    EpochSums all = own();
    std::vector<std::string> names;
    for (const auto& entry : all.metrics) names.push_back(entry.first);
    names = context.broadcast_object(std::move(names));

    std::vector<double> sums{static_cast<double>(all.count), all.loss};
    for (const std::string& name : names) sums.push_back(all.metrics[name]);
    context.all_reduce(
        torch::from_blob(sums.data(), {static_cast<std::int64_t>(sums.size())}, torch::kFloat64));
    all = {.loss = sums[1], .metrics = {}, .count = static_cast<std::int64_t>(sums[0])};
    for (std::size_t i = 0; i < names.size(); ++i) all.metrics[names[i]] = sums[i + 2];
    return all;
  }

 private:
  detail::DeferredSum loss_;
  Metrics metrics_;
  std::int64_t count_ = 0;
};

std::string text_of(const Metrics& metrics) {
  std::ostringstream text;
  for (const auto& [name, value] : metrics) text << ", " << name << " " << value;
  return text.str();
}

void check(const TrainerOptions& options) {
  const auto refuse = [](const std::string& what) { throw UsageError("Trainer: " + what); };
  if (options.max_epochs < 0) refuse("the number of epochs is negative");
  if (options.accumulate_grad_batches < 1) refuse("accumulate_grad_batches must be at least 1");
  if (options.max_steps < 0 || options.evaluate_every_steps < 0 ||
      options.evaluate_every_epochs < 0) {
    refuse("a number of steps or epochs is negative");
  }
  if (options.clip_grad_norm < 0 || options.clip_grad_value < 0)
    refuse("what to clip at is negative");
  if (options.patience < 0) refuse("patience is negative");
  if (options.patience > 0 && options.monitor.empty()) {
    refuse("early stopping (patience) needs to know by which metric");
  }
}

}  // namespace

struct TrainerBase::Parts final : TrainingView, Stateful {
  Parts(Context& its_context, torch::nn::Module& its_module, Stateful& its_model,
        GradientReducer& reducer, torch::optim::Optimizer& its_optimizer,
        const TrainerOptions& its_options)
      : context(its_context),
        module(its_module),
        model(its_model),
        optimizer(its_optimizer),
        options(its_options),
        parameters(its_module.parameters()),
        failures(its_context),
        finite(failures),
        recoverable(its_context, its_module, reducer, its_optimizer),
        loop(*this) {
    if (options.max_epochs == 0 && options.max_steps == 0) options.max_epochs = 1;
    if (options.patience > 0) {
      stopping.emplace(EarlyStoppingOptions{options.patience, options.min_delta, options.mode});
    }
  }

  // --- TrainingView
  bool is_main_process() const override { return context.is_main_process(); }
  std::int64_t epoch() const override { return at.epoch; }
  std::int64_t epochs() const override { return options.max_epochs; }
  std::int64_t step() const override { return at.step; }
  double loss() const override {
    if (window_losses.empty()) return saved_loss;
    double sum = 0;
    for (const torch::Tensor& loss : window_losses) sum += loss.item<double>();
    return sum / static_cast<double>(window_losses.size());
  }
  double learning_rate() const override {
    return std::as_const(optimizer).param_groups().front().options().get_lr();
  }
  const History& history() const override { return record; }

  // --- Stateful: what the position does not say. save() has gathered the sums before.
  std::string state_dict() const override {
    StateText state(kTrainer);
    state.put("world_size", std::int64_t{context.world_size()}).put("batches_done", batches_done);
    state.put("samples", saved_sums.count).put("loss_sum", saved_sums.loss);
    state.put("metric_sums", saved_sums.metrics);
    state.put("history", record.to_state());
    state.put("last_loss", loss()).put("last_learning_rate", last_learning_rate);
    if (stopping) state.put("stopping", stopping->state_dict());
    return state.to_string();
  }
  void load_state_dict(const std::string& text) override {
    const StateText state = StateText::parse(kTrainer, text);
    History loaded = History::from_state(state.text("history"));
    EpochSums sums{.loss = state.number("loss_sum"),
                   .metrics = state.numbers("metric_sums"),
                   .count = state.integer("samples")};
    const std::int64_t batches = state.integer("batches_done");
    const auto world_size = static_cast<int>(state.integer("world_size"));
    const double loss_then = state.number("last_loss");
    const double learning_rate_then = state.number("last_learning_rate");
    if (stopping && state.has("stopping")) stopping->load_state_dict(state.text("stopping"));
    saved_loss = loss_then;
    last_learning_rate = learning_rate_then;
    batches_done = batches;
    saved_world_size = world_size;
    record = std::move(loaded);
    if (context.is_main_process()) meter.continue_from(std::move(sums));
  }

  void call(void (Callback::*hook)(const TrainingView&));
  void evaluate();
  void save();
  void keep();
  void tell_progress(std::int64_t total);
  bool is_evaluated() const {
    return !record.evaluations.empty() && record.evaluations.back().step == at.step;
  }
  bool are_steps_done() const { return options.max_steps > 0 && at.step >= options.max_steps; }
  bool are_epochs_done() const { return options.max_epochs > 0 && at.epoch >= options.max_epochs; }
  // "3/10", from 1; "3" where it is not known how many there will be.
  std::string number_of(std::int64_t epoch) const {
    std::string text = std::to_string(epoch + 1);
    if (options.max_epochs > 0) text.append("/").append(std::to_string(options.max_epochs));
    return text;
  }
  std::int64_t updates_in(std::int64_t batches) const {
    return (batches + options.accumulate_grad_batches - 1) / options.accumulate_grad_batches;
  }

  Context& context;
  torch::nn::Module& module;
  Stateful& model;
  torch::optim::Optimizer& optimizer;
  TrainerOptions options;
  std::vector<torch::Tensor> parameters;
  Evaluation evaluation;

  LRScheduler* schedule = nullptr;
  LRScheduler::Interval schedule_interval = LRScheduler::Interval::kStep;
  Checkpointer* checkpoints = nullptr;
  CheckpointCadence cadence;
  std::optional<DistributedSampler> sampler;
  GradScaler* scaler = nullptr;
  std::vector<std::pair<std::shared_ptr<Callback>, Callback::On>> callbacks;

  FailureVote failures;
  FiniteGuard finite;
  std::optional<EarlyStopping> stopping;

  bool has_begun = false;

  // Where the training stands.
  TrainingPosition at;
  std::int64_t batches_done = 0;  // of the epoch, on this rank
  std::optional<History::Ending> ending;
  History record;
  EpochMeter meter;
  int saved_world_size = 0;
  EpochSums saved_sums;         // over all ranks, as of the newest save()
  std::int64_t saved_step = 0;  // and that of the newest checkpoint
  bool is_epoch_saved = true;   // it was of the position after the epoch's end, or none has ended
  bool is_new_best = false;     // and not in a checkpoint yet
  bool is_evaluation_saved = true;
  double saved_loss = std::numeric_limits<double>::quiet_NaN();  // of the step resumed after

  // Of the epoch that is running.
  std::int64_t batches_to_skip = 0;
  std::int64_t batches_expected = 0;  // 0: not known
  double last_learning_rate = 0;
  Clock::time_point epoch_begun;
  Clock::time_point next_loss_of_gpu;  // is read for those who watch
  std::optional<ProgressBar> bar;
  std::vector<torch::Tensor> window_losses;

  // What this rank has of the loop, for the process that may take its place (recoverable.h).
  struct Loop final : Stateful {
    explicit Loop(Parts& its_parts) : parts(its_parts) {}
    std::string state_dict() const override;
    void load_state_dict(const std::string& state) override;
    Parts& parts;
    // Of the history, which is the same for many steps.
    mutable std::string history;
    mutable std::size_t history_size = 0;
  };
  Recoverable recoverable;
  Loop loop;
};

namespace {

struct LoopState {
  std::vector<double> losses;  // of the last window
  EpochSums sums;
  std::string history;
  std::string stopping;
  LeaveVote::State vote{};
  template <typename Fields>
  void fields(Fields& field) {
    field(losses, sums.loss, sums.metrics, sums.count, history, stopping, vote);
  }
};

}  // namespace

std::string TrainerBase::Parts::Loop::state_dict() const {
  const std::size_t size = parts.record.epochs.size() + parts.record.evaluations.size() + 1;
  if (std::exchange(history_size, size) != size) history = parts.record.to_state();
  LoopState state{.losses = {},
                  .sums = parts.meter.own(),
                  .history = history,
                  .stopping = parts.stopping ? parts.stopping->state_dict() : "",
                  .vote = parts.failures.vote_state()};
  for (const torch::Tensor& loss : parts.window_losses) {
    state.losses.push_back(loss.item<double>());
  }
  return to_bytes(state);
}

void TrainerBase::Parts::Loop::load_state_dict(const std::string& text) {
  LoopState state = from_bytes<LoopState>(text);
  parts.window_losses.clear();
  for (const double loss : state.losses) {
    parts.window_losses.push_back(torch::scalar_tensor(loss, torch::kFloat64));
  }
  parts.meter.continue_from(std::move(state.sums));
  parts.record = History::from_state(state.history);
  history_size = 0;
  if (parts.stopping) parts.stopping->load_state_dict(state.stopping);
  parts.failures.restore_vote(state.vote);
}

// What a callback on the main process throws is kept for the next vote: the others are not in this
// hook and would wait for ever. After that no more of them are called.
void TrainerBase::Parts::call(void (Callback::*hook)(const TrainingView&)) {
  for (const auto& [callback, on] : callbacks) {
    if (on == Callback::On::kAllRanks) {
      ((*callback).*hook)(*this);
    } else if (context.is_main_process() && !failures.has_report()) {
      try {
        ((*callback).*hook)(*this);
      } catch (...) {
        failures.report(at.step, std::current_exception());
      }
    }
  }
}

void TrainerBase::Parts::evaluate() {
  failures.settle();
  Metrics metrics;
  {
    const EvaluationMode mode(module);
    metrics = evaluation();
  }
  metrics = context.broadcast_object(std::move(metrics));
  if (!options.monitor.empty()) {
    const EvaluationRecord* best = record.best(options.monitor, options.mode);
    const auto found = metrics.find(options.monitor);
    if (found == metrics.end()) {
      throw UsageError("Trainer: the evaluation gave no '" + options.monitor + "', only" +
                       (metrics.empty() ? " nothing" : text_of(metrics).substr(1)));
    }
    is_new_best = best == nullptr ||
                  is_better(found->second, best->metrics.at(options.monitor), options.mode);
    if (stopping && stopping->add(found->second)) ending = History::Ending::kEarlyStopped;
  }
  record.evaluations.push_back({at.epoch, at.step, std::move(metrics)});
  is_evaluation_saved = false;
  call(&Callback::on_evaluation_end);
  if (options.enable_progress_bar) {
    log::info("step ", at.step, text_of(record.evaluations.back().metrics));
  }
}

void TrainerBase::Parts::save() {
  failures.settle();
  saved_sums = meter.over_ranks(context);
  std::optional<double> metric;
  if (is_evaluated() && !options.monitor.empty()) {
    metric = record.evaluations.back().metrics.at(options.monitor);
  }
  checkpoints->save(module, optimizer, at, metric);
  saved_step = at.step;
  is_epoch_saved = true;
  is_new_best = false;
  is_evaluation_saved = true;
}

void TrainerBase::Parts::keep() {
  if (checkpoints == nullptr || !checkpoints->keeps_after(at.step)) return;
  failures.settle();
  saved_sums = meter.over_ranks(context);
  checkpoints->keep(module, optimizer, at);
}

void TrainerBase::Parts::tell_progress(std::int64_t total) {
  if (!window_losses.front().is_cpu()) {
    const auto now = Clock::now();
    if (now < next_loss_of_gpu) return context.progress(at.step, total);
    next_loss_of_gpu = now + kLossOfGpuPeriod;
  }
  context.progress(at.step, total, {{"loss", loss()}, {"learning_rate", last_learning_rate}});
}

TrainerBase::TrainerBase(Context& context, torch::nn::Module& module, Stateful& model,
                         GradientReducer& reducer, torch::optim::Optimizer& optimizer,
                         const TrainerOptions& options) {
  check(options);
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw UsageError(
        "Trainer: LBFGS computes the loss several times within a step, for which it needs a "
        "closure of yours: write this loop by hand, with DistributedDataParallel");
  }
  parts_ = std::make_unique<Parts>(context, module, model, reducer, optimizer, options);
}

TrainerBase::~TrainerBase() = default;

void TrainerBase::use(LRScheduler& schedule, LRScheduler::Interval interval) {
  parts_->schedule = &schedule;
  parts_->schedule_interval = interval;
}

void TrainerBase::use(Checkpointer& checkpoints, const CheckpointCadence& cadence) {
  parts_->checkpoints = &checkpoints;
  parts_->cadence = cadence;
}

void TrainerBase::use(GradScaler& scaler) { parts_->scaler = &scaler; }

void TrainerBase::use(const DistributedSampler& sampler) {
  parts_->sampler = sampler;
  parts_->at.seed = sampler.seed();
}

void TrainerBase::add_callback(std::shared_ptr<Callback> callback, Callback::On on) {
  if (!callback) throw UsageError("Trainer: the callback that was added is a null pointer");
  parts_->callbacks.emplace_back(std::move(callback), on);
}

int TrainerBase::accumulate_grad_batches() const { return parts_->options.accumulate_grad_batches; }

void TrainerBase::begin(Evaluation evaluation) {
  Parts& p = *parts_;
  if (std::exchange(p.has_begun, true)) {
    throw UsageError(
        "Trainer: fit() can be called once; make another Trainer for another training");
  }
  p.evaluation = std::move(evaluation);
  if (!p.options.monitor.empty() && !p.evaluation) {
    throw UsageError("Trainer: there is no evaluation that could give '" + p.options.monitor + "'");
  }
  if (p.checkpoints != nullptr) {
    p.checkpoints->register_for_checkpointing("trainer", p);
    p.checkpoints->register_for_checkpointing("trainer.model", p.model);
    if (p.schedule != nullptr) {
      p.checkpoints->register_for_checkpointing("trainer.schedule", *p.schedule);
    }
    if (p.scaler != nullptr) p.checkpoints->register_for_checkpointing("trainer.scaler", *p.scaler);
    if (auto saved = p.checkpoints->resume(p.module, p.optimizer)) {
      if (p.sampler && saved->seed != p.at.seed) {
        throw UsageError("Trainer: the checkpoint is of a sampler with seed " +
                         std::to_string(saved->seed) + ", and this program's has seed " +
                         std::to_string(p.at.seed) + "; give the same, or another folder");
      }
      p.at = *saved;
      p.saved_step = p.checkpoints->step_on_disk().value_or(-1);
      const bool skips = !p.sampler && p.batches_done > 0;
      if (skips && p.saved_world_size != p.context.world_size()) {
        throw UsageError(
            "Trainer: the checkpoint was made inside an epoch by " +
            std::to_string(p.saved_world_size) + " ranks, and there are " +
            std::to_string(p.context.world_size()) +
            " now; only a range with a DistributedSampler (a DataLoader) can go on from there");
      }
      log::info("continuing in epoch ", p.at.epoch + 1, " after step ", p.at.step);
    }
  }
  p.recoverable.keep(p.at.epoch, p.at.step, p.at.consumed, p.batches_done, p.saved_step,
                     p.is_epoch_saved, p.is_new_best, p.is_evaluation_saved, p.last_learning_rate);
  p.recoverable.keep(p.loop);
  if (p.schedule != nullptr) p.recoverable.keep(*p.schedule);
  if (p.scaler != nullptr) p.recoverable.keep_replicated(*p.scaler);
  p.recoverable.join();
  if (!p.sampler) p.batches_to_skip = p.batches_done;
  if (p.are_epochs_done() || p.are_steps_done()) p.ending = History::Ending::kDone;
  // As in the run that came to it: there the evaluation is the last to speak.
  if (p.stopping && p.stopping->is_over()) p.ending = History::Ending::kEarlyStopped;
  if (p.sampler) p.sampler->set_epoch(p.at.epoch, p.at.consumed);  // fit() asks what is left
  p.call(&Callback::on_train_begin);
}

bool TrainerBase::is_over() const { return parts_->ending.has_value(); }

bool TrainerBase::has_sampler() const { return parts_->sampler.has_value(); }

bool TrainerBase::is_epoch_done(std::optional<std::int64_t> batches) const {
  const Parts& p = *parts_;
  return batches && p.batches_done > 0 && *batches == (p.sampler ? 0 : p.batches_done);
}

std::int64_t TrainerBase::begin_epoch() {
  Parts& p = *parts_;
  if (p.sampler) p.sampler->set_epoch(p.at.epoch, p.at.consumed);
  p.batches_expected = 0;
  p.epoch_begun = Clock::now();
  p.call(&Callback::on_epoch_begin);
  return p.at.epoch;
}

void TrainerBase::expect_batches(std::int64_t batches) {
  Parts& p = *parts_;
  // A sampler stands after what is done already; other ranges begin anew.
  p.batches_expected = p.sampler ? p.batches_done + batches : batches;
  if (p.options.enable_progress_bar && p.context.is_main_process()) {
    p.bar.emplace(true, "epoch " + p.number_of(p.at.epoch), p.updates_in(p.batches_expected),
                  p.updates_in(p.batches_done));
  }
}

bool TrainerBase::is_done_already() {
  if (parts_->batches_to_skip == 0) return false;
  --parts_->batches_to_skip;
  return true;
}

void TrainerBase::begin_update() {
  zero_grad(parts_->parameters);
  parts_->window_losses.clear();
}

torch::Tensor TrainerBase::part_of_update(const BatchResult& result, std::size_t window) {
  Parts& p = *parts_;
  if (!result.loss.defined() || result.loss.numel() != 1) {
    throw UsageError(
        "Trainer: the loss is to be a tensor of one element, not " +
        (result.loss.defined() ? c10::str("of shape ", result.loss.sizes()) : "undefined"));
  }
  p.meter.add(p.window_losses.emplace_back(result.loss.detach()), result.metrics, result.count);
  const torch::Tensor part = window == 1 ? result.loss : result.loss / static_cast<double>(window);
  return p.scaler == nullptr ? part : p.scaler->scale(part);
}

void TrainerBase::make_update(const std::function<void()>& update) {
  parts_->recoverable.step(update);
}

void TrainerBase::step_optimizer() {
  Parts& p = *parts_;
  if (p.scaler != nullptr && (p.options.clip_grad_norm > 0 || p.options.clip_grad_value > 0)) {
    p.scaler->unscale_(p.optimizer);
  }
  if (p.options.clip_grad_norm > 0) clip_grad_norm_(p.parameters, p.options.clip_grad_norm);
  if (p.options.clip_grad_value > 0) clip_grad_value_(p.parameters, p.options.clip_grad_value);
  if (p.scaler != nullptr) {
    p.scaler->step(p.optimizer);
    p.scaler->update();
  } else {
    p.optimizer.step();
  }
}

void TrainerBase::end_update() {
  Parts& p = *parts_;
  ++p.at.step;
  p.batches_done += static_cast<std::int64_t>(p.window_losses.size());
  if (p.sampler) p.at.consumed = p.sampler->consumed();
  p.last_learning_rate = p.learning_rate();
  if (p.schedule != nullptr && p.schedule_interval == LRScheduler::Interval::kStep)
    p.schedule->step();

  if (p.options.terminate_on_nan) {
    for (const torch::Tensor& loss : p.window_losses) p.finite.watch(loss, p.at.step);
  }
  p.call(&Callback::on_step_end);
  const bool is_leaving = p.failures.should_leave();
  if (p.bar) p.bar->advance(1, p.bar->is_due() ? "loss " + std::to_string(p.loss()) : "");
  const std::int64_t left_in_epoch = p.updates_in(p.batches_expected - p.batches_done);
  const std::int64_t by_epochs =
      p.batches_expected == 0 || p.options.max_epochs == 0
          ? 0
          : p.at.step + left_in_epoch +
                (p.options.max_epochs - p.at.epoch - 1) * p.updates_in(p.batches_expected);
  p.tell_progress(p.options.max_steps > 0 ? p.options.max_steps : by_epochs);

  if (p.are_steps_done()) p.ending = History::Ending::kDone;
  if (p.evaluation && p.options.evaluate_every_steps > 0 &&
      p.at.step % p.options.evaluate_every_steps == 0) {
    p.evaluate();
  }
  if (is_leaving) p.ending = History::Ending::kLeft;
  if (p.checkpoints == nullptr) return;
  p.keep();
  if (is_leaving || p.is_new_best ||
      (p.cadence.every_steps > 0 && p.at.step % p.cadence.every_steps == 0)) {
    p.save();
  }
}

void TrainerBase::end_epoch(bool is_whole) {
  Parts& p = *parts_;
  p.bar.reset();
  // One that is left after its last batch ends in the run that goes on.
  if (p.ending == History::Ending::kLeft) return;
  if (!is_whole && (p.batches_expected == 0 || p.batches_done < p.batches_expected)) return;

  const EpochSums sums = p.meter.over_ranks(p.context);
  if (sums.count == 0) {
    throw UsageError("Trainer: epoch " + std::to_string(p.at.epoch + 1) +
                     (p.batches_done > 0 ? " has batches without samples: BatchResult::count is 0"
                                         : " has no batches: is the dataset empty, or smaller than "
                                           "a batch where drop_last leaves a short one out?"));
  }
  const auto samples = static_cast<double>(sums.count);
  EpochRecord epoch{
      .epoch = p.at.epoch,
      .step = p.at.step,
      .loss = sums.loss / samples,
      .metrics = sums.metrics,
      .learning_rate = p.last_learning_rate,
      .seconds = std::chrono::duration<double>(Clock::now() - p.epoch_begun).count(),
  };
  for (auto& [name, value] : epoch.metrics) value /= samples;
  if (p.options.enable_progress_bar) {
    log::info("epoch ", p.number_of(epoch.epoch), ": loss ", epoch.loss, text_of(epoch.metrics),
              ", learning rate ", epoch.learning_rate, ", ", epoch.seconds, " s");
  }
  p.record.epochs.push_back(std::move(epoch));

  if (p.evaluation && p.options.evaluate_every_epochs > 0 &&
      (p.at.epoch + 1) % p.options.evaluate_every_epochs == 0 && !p.is_evaluated()) {
    p.evaluate();
  }
  if (p.schedule != nullptr && p.schedule_interval == LRScheduler::Interval::kEpoch)
    p.schedule->step();
  p.call(&Callback::on_epoch_end);

  ++p.at.epoch;
  p.at.consumed = 0;
  p.batches_done = 0;
  p.meter = EpochMeter();
  p.is_epoch_saved = false;
  if (p.are_epochs_done() && !p.ending) p.ending = History::Ending::kDone;
  if (p.checkpoints != nullptr &&
      (p.is_new_best || (p.cadence.every_epochs > 0 && p.at.epoch % p.cadence.every_epochs == 0))) {
    p.save();
  }
}

History TrainerBase::end() {
  Parts& p = *parts_;
  const bool is_leaving = p.ending == History::Ending::kLeft;
  if (p.evaluation && !is_leaving && !p.is_evaluated() && p.at.step > 0) p.evaluate();
  if (p.checkpoints != nullptr) {
    if (p.saved_step != p.at.step || !p.is_epoch_saved || !p.is_evaluation_saved) p.save();
    p.checkpoints->wait();
  }
  p.call(&Callback::on_train_end);
  p.failures.settle();
  History history = p.record;
  history.ending = *p.ending;
  return history;
}

}  // namespace ddprun
