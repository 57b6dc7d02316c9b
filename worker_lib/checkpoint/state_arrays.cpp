#include "worker_lib/checkpoint/state_arrays.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <set>
#include <sstream>
#include <utility>

namespace ddprun {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

constexpr std::string_view kOptimizerPrefix = "optimizer.";

// What an optimizer keeps for one parameter: `visit` is called with each field's name and the field,
// a tensor or a counter, to be read or to be written.
struct SgdFields {
  using State = torch::optim::SGDParamState;
  template <typename Visit>
  static void each(State& state, const Visit& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
};

template <typename AnyAdamState>
struct AdamFields {
  using State = AnyAdamState;
  template <typename Visit>
  static void each(State& state, const Visit& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
};

struct RmspropFields {
  using State = torch::optim::RMSpropParamState;
  template <typename Visit>
  static void each(State& state, const Visit& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
};

struct AdagradFields {
  using State = torch::optim::AdagradParamState;
  template <typename Visit>
  static void each(State& state, const Visit& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
};

struct Writer {
  NamedTensors& tensors;
  void operator()(const char* name, const torch::Tensor& tensor) const {
    if (tensor.defined()) tensors.emplace(name, tensor.detach());
  }
  void operator()(const char* name, std::int64_t counter) const {
    tensors.emplace(name, torch::scalar_tensor(counter, torch::kInt64));
  }
};

struct Reader {
  const NamedTensors& tensors;
  void operator()(const char* name, torch::Tensor& tensor) const {
    if (auto at = tensors.find(name); at != tensors.end()) tensor = at->second;
  }
  void operator()(const char* name, std::int64_t& counter) const {
    if (auto at = tensors.find(name); at != tensors.end()) counter = at->second.item().toLong();
  }
};

struct Kind {
  const char* name;
  bool (*is_kind)(const Optimizer&);
  NamedTensors (*write)(OptimizerParamState&);
  std::unique_ptr<OptimizerParamState> (*read)(const NamedTensors&);
};

template <typename AnyOptimizer, typename Fields>
Kind make_kind(const char* name) {
  using State = typename Fields::State;
  return {name,
          [](const Optimizer& optimizer) {
            return dynamic_cast<const AnyOptimizer*>(&optimizer) != nullptr;
          },
          [](OptimizerParamState& state) {
            NamedTensors tensors;
            Fields::each(static_cast<State&>(state), Writer{tensors});
            return tensors;
          },
          [](const NamedTensors& tensors) -> std::unique_ptr<OptimizerParamState> {
            auto state = std::make_unique<State>();
            Fields::each(*state, Reader{tensors});
            return state;
          }};
}

const Kind* find_kind(const Optimizer& optimizer) {
  using namespace torch::optim;
  static const Kind kinds[] = {
      make_kind<SGD, SgdFields>("SGD"), make_kind<Adam, AdamFields<AdamParamState>>("Adam"),
      make_kind<AdamW, AdamFields<AdamWParamState>>("AdamW"),
      make_kind<RMSprop, RmspropFields>("RMSprop"), make_kind<Adagrad, AdagradFields>("Adagrad")};
  for (const Kind& kind : kinds) {
    if (kind.is_kind(optimizer)) return &kind;
  }
  return nullptr;
}

// Names joined for a sentence, at most a few of them.
class NameList {
 public:
  void add(const std::string& name) {
    if (count_++ < kShown) text_ += (text_.empty() ? "" : ", ") + name;
  }
  std::string text(const char* what) const {
    if (count_ == 0) return {};
    std::string all = std::string(what) + " " + text_;
    if (count_ > kShown) all += " and " + std::to_string(count_ - kShown) + " more";
    return all + "; ";
  }

 private:
  static constexpr int kShown = 5;
  int count_ = 0;
  std::string text_;
};

std::string describe(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << " " << tensor.dtype();
  return text.str();
}

// What a file says and what the model says, compared name by name.
class Comparison {
 public:
  void weights(const std::string& name, const torch::Tensor* saved, const torch::Tensor& place) {
    if (saved == nullptr) {
      missing_.add(name);
    } else if (saved->sizes() != place.sizes() || saved->dtype() != place.dtype()) {
      different_.add(name + " (file: " + describe(*saved) + ", model: " + describe(place) + ")");
    }
  }
  // Of the same shape as its parameter, or a counter.
  void optimizer_array(const std::string& name, const torch::Tensor& saved,
                       const torch::Tensor* parameter) {
    if (parameter == nullptr) {
      unknown(name);
    } else if (saved.sizes() != parameter->sizes() && saved.dim() != 0) {
      different_.add(name + " (file: " + describe(saved) + ", parameter: " + describe(*parameter) +
                     ")");
    }
  }
  void unknown(const std::string& name) { unknown_.add(name); }

  Result<void> outcome() const {
    const std::string differences = missing_.text("the file lacks") +
                                    unknown_.text("it has besides") +
                                    different_.text("it has in another shape or type");
    if (differences.empty()) return {};
    return fail(ErrorCode::kInvalidArgument,
                "it is not this model's: " + differences + "give the same model, or another file");
  }

 private:
  NameList missing_;
  NameList unknown_;
  NameList different_;
};

const torch::Tensor* find_in(const NamedTensors& tensors, const std::string& name) {
  const auto at = tensors.find(name);
  return at == tensors.end() ? nullptr : &at->second;
}

void copy_all(const NamedTensors& saved, const NamedTensors& places) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, place] : places) torch::Tensor(place).copy_(saved.at(name));
}

std::string optimizer_name(const std::string& parameter, const std::string& what) {
  return std::string(kOptimizerPrefix) + parameter + "." + what;
}

// Its state would be lost without a word.
Result<void> check_parameters(const torch::nn::Module& model, Optimizer& optimizer) {
  std::set<const c10::TensorImpl*> of_model;
  for (const torch::Tensor& parameter : model.parameters()) {
    of_model.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      if (of_model.count(parameter.unsafeGetTensorImpl()) > 0) continue;
      return fail(ErrorCode::kInvalidArgument,
                  "the optimizer has a parameter " + describe(parameter) +
                      " that is none of the model's: give the checkpoint a module that has both");
    }
  }
  return {};
}

}  // namespace

std::string kind_of(const Optimizer& optimizer) {
  const Kind* kind = find_kind(optimizer);
  return kind == nullptr ? "" : kind->name;
}

NamedTensors weights_of(const torch::nn::Module& model) {
  NamedTensors weights;
  for (const auto& item : model.named_parameters()) {
    weights.emplace(item.key(), item.value().detach());
  }
  for (const auto& item : model.named_buffers()) {
    weights.emplace(item.key(), item.value().detach());
  }
  return weights;
}

Result<NamedTensors> state_of(const torch::nn::Module& model, Optimizer& optimizer) {
  const Kind* kind = find_kind(optimizer);
  if (kind == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "checkpoints know the optimizers SGD, Adam, AdamW, RMSprop and Adagrad only");
  }
  if (auto ok = check_parameters(model, optimizer); !ok) return fail(std::move(ok.error()));
  NamedTensors tensors;
  for (const auto& [name, tensor] : weights_of(model)) {
    tensors.emplace(std::string(kModelPrefix) + name, tensor);
  }
  for (const auto& item : model.named_parameters()) {
    const auto at = optimizer.state().find(item.value().unsafeGetTensorImpl());
    if (at == optimizer.state().end()) continue;
    for (const auto& [what, tensor] : kind->write(*at->second)) {
      tensors.emplace(optimizer_name(item.key(), what), tensor);
    }
  }
  return tensors;
}

Result<void> restore_weights(const NamedTensors& saved, const torch::nn::Module& model) {
  const NamedTensors places = weights_of(model);
  Comparison comparison;
  for (const auto& [name, place] : places) comparison.weights(name, find_in(saved, name), place);
  for (const auto& [name, tensor] : saved) {
    if (find_in(places, name) == nullptr) comparison.unknown(name);
  }
  if (auto same = comparison.outcome(); !same) return same;
  copy_all(saved, places);
  return {};
}

Result<void> restore_state(const NamedTensors& saved, const torch::nn::Module& model,
                           Optimizer& optimizer) {
  NamedTensors places;
  for (const auto& [name, place] : weights_of(model)) {
    places.emplace(std::string(kModelPrefix) + name, place);
  }
  Comparison comparison;
  for (const auto& [name, place] : places) comparison.weights(name, find_in(saved, name), place);
  // Each parameter's own entries of the optimizer, without the prefix and the parameter's name.
  std::map<std::string, NamedTensors> states;
  for (const auto& [name, tensor] : saved) {
    if (name.starts_with(kOptimizerPrefix)) {
      const std::size_t dot = name.rfind('.');
      const std::string parameter =
          name.substr(kOptimizerPrefix.size(), dot - kOptimizerPrefix.size());
      comparison.optimizer_array(name, tensor,
                                 find_in(places, std::string(kModelPrefix) + parameter));
      states[parameter].emplace(name.substr(dot + 1), tensor);
    } else if (find_in(places, name) == nullptr) {
      comparison.unknown(name);
    }
  }
  if (auto same = comparison.outcome(); !same) return same;

  copy_all(saved, places);
  const Kind* kind = find_kind(optimizer);
  optimizer.state().clear();
  for (const auto& item : model.named_parameters()) {
    const auto at = states.find(item.key());
    if (at == states.end()) continue;
    NamedTensors tensors;
    for (const auto& [what, tensor] : at->second) {
      // Counters stay on the CPU; the rest lives where its parameter does.
      tensors.emplace(what, tensor.dim() == 0 && what == "step"
                                ? tensor
                                : tensor.to(item.value().device(), /*non_blocking=*/false,
                                            /*copy=*/true));
    }
    optimizer.state()[item.value().unsafeGetTensorImpl()] = kind->read(tensors);
  }
  return {};
}

}  // namespace ddprun
