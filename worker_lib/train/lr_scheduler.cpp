#include "ddprun/lr_scheduler.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <utility>

#include "ddprun/error.h"
#include "ddprun/log.h"
#include "ddprun/optim.h"
#include "worker_lib/checkpoint/state_text.h"

namespace ddprun {
namespace {

using torch::optim::OptimizerOptions;

constexpr auto kSchedule = "a learning-rate schedule";

// What Python calls momentum, or the first of betas; null for optimizers that have neither.
double* momentum_of(OptimizerOptions& options) {
  using namespace torch::optim;
  if (auto* sgd = dynamic_cast<optim::SGDOptions*>(&options)) return &sgd->momentum();
  if (auto* adam = dynamic_cast<optim::AdamOptions*>(&options)) return &std::get<0>(adam->betas());
  if (auto* sgd = dynamic_cast<SGDOptions*>(&options)) return &sgd->momentum();
  if (auto* rms = dynamic_cast<RMSpropOptions*>(&options)) return &rms->momentum();
  if (auto* adam = dynamic_cast<AdamOptions*>(&options)) return &std::get<0>(adam->betas());
  if (auto* adamw = dynamic_cast<AdamWOptions*>(&options)) return &std::get<0>(adamw->betas());
  return nullptr;
}

}  // namespace

LRScheduler::LRScheduler(torch::optim::Optimizer& optimizer, lr_scheduler::Rule rule)
    : optimizer_(optimizer), rule_(std::move(rule)) {
  for (const auto& group : optimizer_.param_groups()) {
    base_lrs_.push_back(group.options().get_lr());
  }
  auto groups = rates();
  rule_.begin(groups);
  set_rates(groups);
}

void LRScheduler::step() {
  auto groups = rates();
  rule_.advance(steps_ + 1, groups);
  set_rates(groups);
  ++steps_;
}

std::vector<double> LRScheduler::get_last_lr() const {
  std::vector<double> all;
  for (const GroupRates& group : rates()) all.push_back(group.lr);
  return all;
}

std::vector<GroupRates> LRScheduler::rates() const {
  std::vector<GroupRates> all;
  auto& groups = optimizer_.param_groups();
  if (groups.size() != base_lrs_.size()) {
    throw UsageError("the optimizer has got other parameter groups (" +
                     std::to_string(groups.size()) + ") since its schedule was made (" +
                     std::to_string(base_lrs_.size()) + "); make the schedule last");
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    OptimizerOptions& options = groups[i].options();
    const double* momentum = momentum_of(options);
    all.push_back({options.get_lr(), base_lrs_[i],
                   momentum == nullptr ? std::nullopt : std::optional(*momentum)});
  }
  return all;
}

void LRScheduler::set_rates(const std::vector<GroupRates>& rates) {
  auto& groups = optimizer_.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    OptimizerOptions& options = groups[i].options();
    options.set_lr(rates[i].lr);
    base_lrs_[i] = rates[i].base_lr;
    if (rates[i].momentum) *momentum_of(options) = *rates[i].momentum;
  }
}

std::string LRScheduler::state_dict() const {
  StateText state(kSchedule);
  state.put("shape", rule_.shape).put("rule", rule_.text).put("step", steps_);
  const auto groups = rates();
  state.put("groups", static_cast<std::int64_t>(groups.size()));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string number = std::to_string(i);
    state.put("lr." + number, groups[i].lr).put("base_lr." + number, groups[i].base_lr);
    if (groups[i].momentum) state.put("momentum." + number, *groups[i].momentum);
  }
  return state.to_string();
}

void LRScheduler::load_state_dict(const std::string& text) {
  const StateText state = StateText::parse(kSchedule, text);
  if (state.text("shape") != rule_.shape) {
    throw UsageError("the saved schedule is " + state.text("rule") + " and this program's is " +
                     rule_.text + "; continue with the same kind");
  }
  auto groups = rates();
  if (state.integer("groups") != static_cast<std::int64_t>(groups.size())) {
    throw UsageError("the schedule was saved with " + state.text("groups") +
                     " parameter groups and this program's optimizer has " +
                     std::to_string(groups.size()));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string number = std::to_string(i);
    groups[i].lr = state.number("lr." + number);
    groups[i].base_lr = state.number("base_lr." + number);
    if (groups[i].momentum && state.has("momentum." + number)) {
      groups[i].momentum = state.number("momentum." + number);
    }
  }
  const std::int64_t steps = state.integer("step");
  if (state.text("rule") != rule_.text) {
    log::info("the schedule goes on from step ", steps, " as ", rule_.text, ", not as ",
              state.text("rule"), ", with which it was saved");
  }
  set_rates(groups);
  steps_ = steps;
}

}  // namespace ddprun
