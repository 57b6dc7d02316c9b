#include "worker_lib/checkpoint/state_arrays.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <unordered_set>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/optim.h"
#include "worker_lib/process/message_text.h"

namespace ddprun {
namespace {

using NamedParameters = torch::OrderedDict<std::string, torch::Tensor>;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

constexpr std::string_view kOptimizerPrefix = "optimizer.";

// What an optimizer keeps for one parameter: `visit` is called with each field's name and the field,
// a tensor or a counter, to be read or to be written.
template <typename Visit>
void each_field(optim::SGDParamState& state, const Visit& visit) {
  visit("momentum_buffer", state.momentum_buffer());
}
template <typename Visit>
void each_field(torch::optim::SGDParamState& state, const Visit& visit) {
  visit("momentum_buffer", state.momentum_buffer());
}
template <typename Visit>
void each_field(torch::optim::RMSpropParamState& state, const Visit& visit) {
  visit("step", state.step());
  visit("square_avg", state.square_avg());
  visit("momentum_buffer", state.momentum_buffer());
  visit("grad_avg", state.grad_avg());
}
template <typename Visit>
void each_field(torch::optim::AdagradParamState& state, const Visit& visit) {
  visit("step", state.step());
  visit("sum", state.sum());
}
template <typename AnyAdamState, typename Visit>
void each_field(AnyAdamState& state, const Visit& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
}

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

template <typename AnyOptimizer, typename State>
Kind make_kind(const char* name) {
  return {name,
          [](const Optimizer& optimizer) {
            return dynamic_cast<const AnyOptimizer*>(&optimizer) != nullptr;
          },
          [](OptimizerParamState& state) {
            NamedTensors tensors;
            each_field(static_cast<State&>(state), Writer{tensors});
            return tensors;
          },
          [](const NamedTensors& tensors) -> std::unique_ptr<OptimizerParamState> {
            auto state = std::make_unique<State>();
            each_field(*state, Reader{tensors});
            return state;
          }};
}

// Those of the same name read each other's states: LibTorch's count steps in an integer, ours as Python's.
const Kind* find_kind(const Optimizer& optimizer) {
  using namespace torch::optim;
  static const Kind kinds[] = {
      make_kind<optim::SGD, optim::SGDParamState>("SGD"),
      make_kind<optim::AdamW, optim::AdamParamState>("AdamW"),  // which is an optim::Adam, too
      make_kind<optim::Adam, optim::AdamParamState>("Adam"),
      make_kind<SGD, SGDParamState>("SGD"),
      make_kind<Adam, AdamParamState>("Adam"),
      make_kind<AdamW, AdamWParamState>("AdamW"),
      make_kind<RMSprop, RMSpropParamState>("RMSprop"),
      make_kind<Adagrad, AdagradParamState>("Adagrad")};
  for (const Kind& kind : kinds) {
    if (kind.is_kind(optimizer)) return &kind;
  }
  return nullptr;
}

bool is_counter(std::string_view what, const torch::Tensor& tensor) {
  return what == "step" && tensor.dim() == 0;
}

// An array of the optimizer's.
struct StateEntry {
  std::string parameter, what;
};

std::optional<StateEntry> state_entry(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (!name.starts_with(kOptimizerPrefix) || dot < kOptimizerPrefix.size()) return std::nullopt;
  return StateEntry{name.substr(kOptimizerPrefix.size(), dot - kOptimizerPrefix.size()),
                    name.substr(dot + 1)};
}

// "<what> a and b; "
std::string difference(const std::string& what, const std::vector<std::string>& names) {
  return names.empty() ? "" : what + " " + listed(names, /*most=*/5) + "; ";
}

std::string describe(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << " " << tensor.dtype();
  return text.str();
}

// What a file says and what the model says, compared name by name.
struct Comparison {
  std::vector<std::string> missing, unknown, different;

  // Both are sorted: side by side, without a search for each. `unknown_array` is called for those that the model lacks.
  template <typename Visit>
  void compare(const NamedTensors& saved, const NamedTensors& places, const Visit& unknown_array) {
    auto at = saved.begin();
    for (const auto& [name, place] : places) {
      int order = 1;
      for (; at != saved.end() && (order = at->first.compare(name)) < 0; ++at) unknown_array(*at);
      if (at == saved.end() || order > 0) {
        missing.push_back(name);
        continue;
      }
      if (at->second.sizes() != place.sizes() || at->second.dtype() != place.dtype()) {
        different.push_back(name + " (file: " + describe(at->second) +
                            ", model: " + describe(place) + ")");
      }
      ++at;
    }
    for (; at != saved.end(); ++at) unknown_array(*at);
  }
  void throw_if_different() const {
    const std::string differences = difference("the file lacks", missing) +
                                    difference("it has besides", unknown) +
                                    difference("it has in another shape or type", different);
    if (differences.empty()) return;
    throw UsageError("it is not this model's: " + differences +
                     "give the same model, or another file");
  }
};

void copy_all(const NamedTensors& saved, const NamedTensors& places) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, place] : places) torch::Tensor(place).copy_(saved.at(name));
}

// Its state would be lost without a word.
void check_parameters(const NamedParameters& parameters, Optimizer& optimizer) {
  std::unordered_set<const c10::TensorImpl*> of_model;
  of_model.reserve(parameters.size());
  for (const auto& item : parameters) of_model.insert(item.value().unsafeGetTensorImpl());
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      if (of_model.count(parameter.unsafeGetTensorImpl()) > 0) continue;
      throw UsageError("the optimizer has a parameter " + describe(parameter) +
                       " that is none of the model's: give the checkpoint a module that has both");
    }
  }
}

// With the prefix that they have in a checkpoint.
NamedTensors prefixed_weights_of(const NamedParameters& parameters,
                                 const torch::nn::Module& model) {
  NamedTensors weights;
  const auto add = [&](const NamedParameters& tensors) {
    for (const auto& item : tensors) {
      weights.emplace(std::string(kModelPrefix) + item.key(), item.value().variable_data());
    }
  };
  add(parameters);
  add(model.named_buffers());
  return weights;
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

NamedTensors state_of(const torch::nn::Module& model, Optimizer& optimizer) {
  const Kind* kind = find_kind(optimizer);
  if (kind == nullptr) {
    throw UsageError("checkpoints know the optimizers SGD, Adam, AdamW, RMSprop and Adagrad only");
  }
  const NamedParameters parameters = model.named_parameters();
  check_parameters(parameters, optimizer);
  NamedTensors tensors = prefixed_weights_of(parameters, model);
  for (const auto& item : parameters) {
    const auto at = optimizer.state().find(item.value().unsafeGetTensorImpl());
    if (at == optimizer.state().end()) continue;
    for (const auto& [what, tensor] : kind->write(*at->second)) {
      tensors.emplace(std::string(kOptimizerPrefix) + item.key() + "." + what, tensor);
    }
  }
  return tensors;
}

void restore_weights(const NamedTensors& saved, const torch::nn::Module& model) {
  const NamedTensors places = weights_of(model);
  Comparison comparison;
  comparison.compare(saved, places,
                     [&](const auto& array) { comparison.unknown.push_back(array.first); });
  comparison.throw_if_different();
  copy_all(saved, places);
}

NamedTensors places_of(const NamedTensors& saved, const torch::nn::Module& model) {
  const NamedParameters named = model.named_parameters();
  NamedTensors places = prefixed_weights_of(named, model);
  Comparison comparison;
  std::vector<const NamedTensors::value_type*> others;
  comparison.compare(saved, places, [&](const auto& array) { others.push_back(&array); });
  for (const auto* const array : others) {
    const auto& [name, tensor] = *array;
    const auto entry = state_entry(name);
    const torch::Tensor* const parameter = entry ? named.find(entry->parameter) : nullptr;
    if (parameter == nullptr) {
      comparison.unknown.push_back(name);
    } else if (is_counter(entry->what, tensor)) {
      places.emplace(name, torch::empty({}, tensor.scalar_type()));  // counters stay on the CPU
    } else if (tensor.sizes() == parameter->sizes()) {
      // With the parameter's strides: fused operators go through both as rows of memory.
      places.emplace(name, torch::empty_like(*parameter, tensor.scalar_type()));
    } else {
      comparison.different.push_back(name + " (file: " + describe(tensor) +
                                     ", parameter: " + describe(*parameter) + ")");
    }
  }
  comparison.throw_if_different();
  return places;
}

void take_state(const NamedTensors& places, const torch::nn::Module& model, Optimizer& optimizer) {
  std::map<std::string, NamedTensors> states;
  for (const auto& [name, tensor] : places) {
    if (const auto entry = state_entry(name)) states[entry->parameter].emplace(entry->what, tensor);
  }
  const Kind* kind = find_kind(optimizer);
  optimizer.state().clear();
  if (states.empty()) return;
  for (const auto& item : model.named_parameters()) {
    const auto at = states.find(item.key());
    if (at == states.end()) continue;
    optimizer.state()[item.value().unsafeGetTensorImpl()] = kind->read(at->second);
  }
}

}  // namespace ddprun
