#include "worker_lib/checkpoint/state_arrays.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
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

// What is given an optimizer's fields, one after the other, to read or to write them.
struct FieldVisit {
  virtual void operator()(const char* name, torch::Tensor& tensor) = 0;
  virtual void operator()(const char* name, std::int64_t& counter) = 0;

 protected:
  ~FieldVisit() = default;
};

struct Reader final : FieldVisit {
  explicit Reader(const NamedTensors& its_tensors) : tensors(its_tensors) {}

  void operator()(const char* name, torch::Tensor& tensor) override {
    if (auto at = tensors.find(name); at != tensors.end()) tensor = at->second;
  }
  void operator()(const char* name, std::int64_t& counter) override {
    if (auto at = tensors.find(name); at != tensors.end()) counter = at->second.item().toLong();
  }

  const NamedTensors& tensors;
};

struct Kind {
  const char* name;
  bool (*is_kind)(const Optimizer&);
  std::unique_ptr<OptimizerParamState> (*make)();
  void (*each_field)(OptimizerParamState&, FieldVisit&);
};

template <typename AnyOptimizer, typename State>
Kind make_kind(const char* name) {
  return {name,
          [](const Optimizer& optimizer) {
            return dynamic_cast<const AnyOptimizer*>(&optimizer) != nullptr;
          },
          []() -> std::unique_ptr<OptimizerParamState> { return std::make_unique<State>(); },
          [](OptimizerParamState& any, FieldVisit& visit) {
            auto& state = static_cast<State&>(any);
            if constexpr (requires { state.step(); }) visit("step", state.step());
            if constexpr (requires { state.momentum_buffer(); }) {
              visit("momentum_buffer", state.momentum_buffer());
            }
            if constexpr (requires { state.square_avg(); }) {
              visit("square_avg", state.square_avg());
              visit("grad_avg", state.grad_avg());
            }
            if constexpr (requires { state.sum(); }) visit("sum", state.sum());
            if constexpr (requires { state.exp_avg(); }) {
              visit("exp_avg", state.exp_avg());
              visit("exp_avg_sq", state.exp_avg_sq());
              visit("max_exp_avg_sq", state.max_exp_avg_sq());
            }
          }};
}

// Those of the same name read each other's states: LibTorch's count steps in an integer, ours as Python's.
const Kind* find_kind(const Optimizer& optimizer) {
  using namespace torch::optim;
  static const Kind kinds[] = {
      make_kind<optim::SGD, SGDParamState>("SGD"),
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

// An array of the optimizer's.
struct StateEntry {
  std::string parameter, what;
};

std::optional<StateEntry> state_entry(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (!name.starts_with(kOptimizerPrefix) || dot < kOptimizerPrefix.size()) return std::nullopt;
  return StateEntry{
      std::string(name.substr(kOptimizerPrefix.size(), dot - kOptimizerPrefix.size())),
      std::string(name.substr(dot + 1))};
}

// "<what> a and b; "
std::string difference(const std::string& what, const std::vector<std::string>& names) {
  return names.empty() ? "" : what + " " + listed(names, /*most=*/5) + "; ";
}

Described described(const torch::Tensor& tensor) {
  return {{}, tensor.scalar_type(), tensor.sizes()};
}

std::string text_of(const Described& array) {
  return c10::str(array.sizes, " ", c10::scalarTypeToTypeMeta(array.type));
}

// What a file says and what the model says, compared name by name.
struct Comparison {
  std::vector<std::string> missing, unknown, different;

  bool has_the_form_of(const torch::Tensor& place, const Described& saved) {
    if (saved.sizes == place.sizes() && saved.type == place.scalar_type()) return true;
    different.push_back(std::string(saved.name) + " (file: " + text_of(saved) +
                        ", model: " + text_of(described(place)) + ")");
    return false;
  }
  void throw_if_different() {
    for (auto* const names : {&missing, &unknown, &different}) std::ranges::sort(*names);
    const std::string differences = difference("the file lacks", missing) +
                                    difference("it has besides", unknown) +
                                    difference("it has in another shape or type", different);
    if (differences.empty()) return;
    throw UsageError("it is not this model's: " + differences +
                     "give the same model, or another file");
  }
};

// named_parameters() and parameters() make a table of all names at each call.
struct ModuleParameters : torch::nn::Module {
  static const NamedParameters& of(const torch::nn::Module& module) {
    return module.*(&ModuleParameters::parameters_);
  }
};

// Calls f(path of its module, name there, tensor) for each, in the order of parameters().
template <typename F>
void each_parameter(const torch::nn::Module& model, const F& f) {
  model.apply([&](const std::string& path, const torch::nn::Module& module) {
    for (const auto& item : ModuleParameters::of(module)) {
      if (item.value().defined()) f(path, item.key(), item.value());
    }
  });
}
// f(whole name, tensor)
template <typename F>
void each_named_parameter(const torch::nn::Module& model, const F& f) {
  each_parameter(
      model, [&](const std::string& path, const std::string& name, const torch::Tensor& parameter) {
        f(path.empty() ? name : path + "." + name, parameter);
      });
}

// A module's parameters and buffers by their names.
class ModelTensors {
 public:
  explicit ModelTensors(const torch::nn::Module& model) {
    each_named_parameter(model, [&](std::string name, const torch::Tensor& parameter) {
      items_.emplace_back(std::move(name), parameter);
    });
    parameters_ = items_.size();
    for (const auto& item : model.named_buffers()) items_.emplace_back(item.key(), item.value());
    places_.reserve(items_.size());
    for (std::size_t i = 0; i < items_.size(); ++i) places_.emplace(items_[i].first, i);
  }

  // Null: there is none.
  const torch::Tensor* find(std::string_view name) const {
    const auto at = places_.find(name);
    return at == places_.end() ? nullptr : &items_[at->second].second;
  }
  const torch::Tensor* parameter(std::string_view name) const {
    const auto at = places_.find(name);
    return at == places_.end() || at->second >= parameters_ ? nullptr : &items_[at->second].second;
  }
  const std::vector<std::pair<std::string, torch::Tensor>>& all() const { return items_; }

 private:
  std::vector<std::pair<std::string, torch::Tensor>> items_;  // parameters, then buffers
  std::size_t parameters_ = 0;
  std::unordered_map<std::string_view, std::size_t> places_;
};

// Its state would be lost without a word.
void check_parameters(const std::vector<torch::Tensor>& of_model,
                      const std::vector<torch::Tensor>& of_optimizer) {
  std::unordered_set<const c10::TensorImpl*> known;
  known.reserve(of_model.size());
  for (const torch::Tensor& parameter : of_model) known.insert(parameter.unsafeGetTensorImpl());
  for (const torch::Tensor& parameter : of_optimizer) {
    if (known.count(parameter.unsafeGetTensorImpl()) > 0) continue;
    throw UsageError("the optimizer has a parameter " + text_of(described(parameter)) +
                     " that is none of the model's: give the checkpoint a module that has both");
  }
}

std::vector<torch::Tensor> parameters_of(const Optimizer& optimizer) {
  std::vector<torch::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

bool are_same(const std::vector<torch::Tensor>& some, const std::vector<torch::Tensor>& others) {
  return std::ranges::equal(some, others,
                            [](const auto& one, const auto& other) { return one.is_same(other); });
}

bool are_parameters_of(const torch::nn::Module& model, const std::vector<torch::Tensor>& known) {
  std::size_t count = 0;
  bool are_same = true;
  each_parameter(model, [&](const auto&, const auto&, const torch::Tensor& parameter) {
    are_same = are_same && count < known.size() && known[count].is_same(parameter);
    count += 1;
  });
  return are_same && count == known.size();
}

}  // namespace

std::string kind_of(const Optimizer& optimizer) {
  const Kind* kind = find_kind(optimizer);
  return kind == nullptr ? "" : kind->name;
}

NamedTensors weights_of(const torch::nn::Module& model) {
  NamedTensors weights;
  const ModelTensors of_model(model);
  for (const auto& [name, tensor] : of_model.all()) weights.emplace(name, tensor);
  return weights;
}

// ---- StateView

struct StateView::Fields final : FieldVisit {
  Fields(StateView& its_view, bool is_new) : view(its_view), is_making(is_new) {}

  void operator()(const char* what, torch::Tensor& tensor) override {
    if (!tensor.defined()) return;
    if (torch::Tensor* const place = place_of(what)) *place = tensor;
  }
  void operator()(const char* what, std::int64_t& counter) override {
    torch::Tensor* const place = place_of(what);
    if (place == nullptr) return;
    if (place->defined()) {
      *place->mutable_data_ptr<std::int64_t>() = counter;  // this view's own
    } else {
      *place = torch::scalar_tensor(counter, torch::kInt64);
    }
  }
  // Null: not what it was.
  torch::Tensor* place_of(const char* what) {
    if (is_making) {
      const std::string name = std::string(kOptimizerPrefix) + *parameter_name + "." + what;
      view.fields_.push_back({parameter, what, &view.shared_[name]});
    }
    if (at >= view.fields_.size()) return different();
    const Field& known = view.fields_[at++];
    return known.parameter == parameter && std::string_view(known.what) == what ? known.place
                                                                                : different();
  }
  torch::Tensor* different() {
    at = std::numeric_limits<std::size_t>::max();
    return nullptr;
  }

  StateView& view;
  const bool is_making;
  std::size_t at = 0;  // of the fields
  std::size_t parameter = 0;
  const std::string* parameter_name = nullptr;  // while they are made
};

void StateView::update(const torch::nn::Module& model, Optimizer& optimizer) {
  const Kind* kind = find_kind(optimizer);
  if (kind == nullptr) {
    throw UsageError("checkpoints know the optimizers SGD, Adam, AdamW, RMSprop and Adagrad only");
  }
  const auto read_fields = [&](Fields& fields, const std::vector<std::string>& names) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto state = optimizer.state().find(parameters_[i].unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      fields.parameter = i;
      if (fields.is_making) fields.parameter_name = &names[i];
      kind->each_field(*state->second, fields);
    }
    return fields.at == fields_.size();
  };
  std::vector<torch::Tensor> of_optimizer = parameters_of(optimizer);
  if (kind_ == kind && are_parameters_of(model, parameters_) &&
      are_same(buffers_, model.buffers()) && are_same(of_optimizer_, of_optimizer)) {
    Fields fields(*this, /*is_new=*/false);
    if (read_fields(fields, {})) return;
  }
  *this = {};
  kind_ = kind;
  std::vector<std::string> names;
  each_named_parameter(model, [&](std::string name, const torch::Tensor& parameter) {
    parameters_.push_back(parameter);
    shared_.emplace(std::string(kModelPrefix) + name, parameter);
    names.push_back(std::move(name));
  });
  check_parameters(parameters_, of_optimizer);
  of_optimizer_ = std::move(of_optimizer);
  for (const auto& item : model.named_buffers()) {
    buffers_.push_back(item.value());
    named_buffers_.emplace(std::string(kModelPrefix) + item.key(), item.value());
  }
  Fields fields(*this, /*is_new=*/true);
  read_fields(fields, names);
}

void StateView::forget_optimizer() {
  for (const Field& field : fields_) field.place->reset();
}

NamedTensors StateView::take_all() && {
  shared_.merge(named_buffers_);
  return std::move(shared_);
}

NamedTensors state_of(const torch::nn::Module& model, Optimizer& optimizer) {
  StateView view;
  view.update(model, optimizer);
  return std::move(view).take_all();
}

std::vector<torch::Tensor> places_of(const std::vector<Described>& saved,
                                     const torch::nn::Module& model, std::string_view other,
                                     std::string_view prefix) {
  const ModelTensors of_model(model);
  Comparison comparison;
  std::vector<torch::Tensor> places(saved.size());
  std::size_t found = 0;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const Described& array = saved[i];
    if (array.name.starts_with(prefix)) {
      const auto* const place = of_model.find(array.name.substr(prefix.size()));
      if (place != nullptr) {
        found += 1;
        if (comparison.has_the_form_of(*place, array)) places[i] = *place;
        continue;
      }
    } else if (!other.empty() && array.name.starts_with(other)) {
      places[i] = torch::empty(array.sizes, array.type);
      continue;
    }
    const auto entry = prefix == kModelPrefix ? state_entry(array.name) : std::nullopt;
    const torch::Tensor* const parameter = entry ? of_model.parameter(entry->parameter) : nullptr;
    if (parameter == nullptr) {
      comparison.unknown.emplace_back(array.name);
    } else if (entry->what == "step" && array.sizes.empty()) {
      places[i] = torch::empty({}, array.type);  // counters stay on the CPU
    } else if (array.sizes == parameter->sizes()) {
      // With the parameter's strides: fused operators go through both as rows of memory.
      places[i] = torch::empty_like(*parameter, array.type);
    } else {
      comparison.different.push_back(std::string(array.name) + " (file: " + text_of(array) +
                                     ", parameter: " + text_of(described(*parameter)) + ")");
    }
  }
  if (found < of_model.all().size()) {
    std::set<std::string_view> names;
    for (const Described& array : saved) names.insert(array.name);
    for (const auto& [name, place] : of_model.all()) {
      std::string whole = std::string(prefix) + name;
      if (!names.contains(whole)) comparison.missing.push_back(std::move(whole));
    }
  }
  comparison.throw_if_different();
  return places;
}

void take_state(const std::vector<Described>& saved, const std::vector<torch::Tensor>& values,
                const torch::nn::Module& model, Optimizer& optimizer) {
  std::map<std::string, NamedTensors> states;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const auto entry = state_entry(saved[i].name);
    if (entry) states[entry->parameter].emplace(entry->what, values[i]);
  }
  const Kind* kind = find_kind(optimizer);
  optimizer.state().clear();
  if (states.empty()) return;
  each_named_parameter(model, [&](const std::string& name, const torch::Tensor& parameter) {
    const auto at = states.find(name);
    if (at == states.end()) return;
    auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()] = kind->make();
    Reader reader(at->second);
    kind->each_field(*state, reader);
  });
}

}  // namespace ddprun
