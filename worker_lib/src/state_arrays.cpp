#include "worker_lib/src/state_arrays.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

namespace ddprun {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

constexpr std::string_view kModelPrefix = "model.";
constexpr std::string_view kOptimizerPrefix = "optimizer.";

torch::Tensor on_cpu(const torch::Tensor& tensor) { return tensor.detach().cpu().contiguous(); }

// What an optimizer keeps for one parameter, as tensors by name.
struct SgdCodec {
  using State = torch::optim::SGDParamState;
  static NamedTensors write(const State& state) {
    NamedTensors tensors;
    if (state.momentum_buffer().defined()) tensors["momentum_buffer"] = state.momentum_buffer();
    return tensors;
  }
  static void read(State& state, const NamedTensors& tensors) {
    if (auto at = tensors.find("momentum_buffer"); at != tensors.end()) {
      state.momentum_buffer(at->second);
    }
  }
};

template <typename AnyAdamState>
struct AdamCodec {
  using State = AnyAdamState;
  static NamedTensors write(const State& state) {
    NamedTensors tensors{{"step", torch::scalar_tensor(state.step(), torch::kInt64)},
                         {"exp_avg", state.exp_avg()},
                         {"exp_avg_sq", state.exp_avg_sq()}};
    if (state.max_exp_avg_sq().defined()) tensors["max_exp_avg_sq"] = state.max_exp_avg_sq();
    return tensors;
  }
  static void read(State& state, const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      if (name == "step") state.step(tensor.item().toLong());
      if (name == "exp_avg") state.exp_avg(tensor);
      if (name == "exp_avg_sq") state.exp_avg_sq(tensor);
      if (name == "max_exp_avg_sq") state.max_exp_avg_sq(tensor);
    }
  }
};

template <typename Codec>
NamedTensors write_with(const OptimizerParamState& state) {
  return Codec::write(static_cast<const typename Codec::State&>(state));
}

template <typename Codec>
std::unique_ptr<OptimizerParamState> read_with(const NamedTensors& tensors) {
  auto state = std::make_unique<typename Codec::State>();
  Codec::read(*state, tensors);
  return state;
}

struct Kind {
  const char* name;
  bool (*is_kind)(const Optimizer&);
  NamedTensors (*write)(const OptimizerParamState&);
  std::unique_ptr<OptimizerParamState> (*read)(const NamedTensors&);
};

template <typename AnyOptimizer, typename Codec>
Kind make_kind(const char* name) {
  return {name,
          [](const Optimizer& optimizer) {
            return dynamic_cast<const AnyOptimizer*>(&optimizer) != nullptr;
          },
          &write_with<Codec>, &read_with<Codec>};
}

const Kind* find_kind(const Optimizer& optimizer) {
  using namespace torch::optim;
  static const Kind kinds[] = {make_kind<SGD, SgdCodec>("SGD"),
                               make_kind<Adam, AdamCodec<AdamParamState>>("Adam"),
                               make_kind<AdamW, AdamCodec<AdamWParamState>>("AdamW")};
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

// The model's parameters and buffers as they are, not copies.
NamedTensors places_in(const torch::nn::Module& model) {
  NamedTensors places;
  for (const auto& item : model.named_parameters()) {
    places.emplace(std::string(kModelPrefix) + item.key(), item.value());
  }
  for (const auto& item : model.named_buffers()) {
    places.emplace(std::string(kModelPrefix) + item.key(), item.value());
  }
  return places;
}

}  // namespace

std::string kind_of(const Optimizer& optimizer) {
  const Kind* kind = find_kind(optimizer);
  return kind == nullptr ? "" : kind->name;
}

NamedTensors state_of(const torch::nn::Module& model, Optimizer& optimizer) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : places_in(model)) tensors.emplace(name, on_cpu(tensor));
  const Kind* kind = find_kind(optimizer);
  for (const auto& item : model.named_parameters()) {
    const auto at = optimizer.state().find(item.value().unsafeGetTensorImpl());
    if (at == optimizer.state().end()) continue;
    for (const auto& [what, tensor] : kind->write(*at->second)) {
      tensors.emplace(std::string(kOptimizerPrefix) + item.key() + "." + what, on_cpu(tensor));
    }
  }
  return tensors;
}

Result<void> restore_state(const NamedTensors& saved, torch::nn::Module& model,
                           Optimizer& optimizer) {
  const NamedTensors places = places_in(model);
  NameList missing;
  NameList unknown;
  NameList different;
  for (const auto& [name, place] : places) {
    const auto at = saved.find(name);
    if (at == saved.end()) {
      missing.add(name);
    } else if (at->second.sizes() != place.sizes() || at->second.dtype() != place.dtype()) {
      different.add(name + " (file: " + describe(at->second) + ", model: " + describe(place) + ")");
    }
  }
  // Each parameter's own entries of the optimizer, without the prefix and the parameter's name.
  std::map<std::string, NamedTensors> states;
  for (const auto& [name, tensor] : saved) {
    if (name.starts_with(kOptimizerPrefix)) {
      const std::size_t dot = name.rfind('.');
      const std::string parameter =
          name.substr(kOptimizerPrefix.size(), dot - kOptimizerPrefix.size());
      if (places.count(std::string(kModelPrefix) + parameter) == 0) unknown.add(name);
      states[parameter].emplace(name.substr(dot + 1), tensor);
    } else if (places.count(name) == 0) {
      unknown.add(name);
    }
  }
  const std::string differences = missing.text("the file lacks") + unknown.text("it has besides") +
                                  different.text("it has in another shape or type");
  if (!differences.empty()) {
    return fail(ErrorCode::kInvalidArgument, "it is not this model's: " + differences +
                                                 "give the same model, or another folder");
  }

  const torch::NoGradGuard no_grad;
  for (const auto& [name, place] : places) {
    torch::Tensor(place).copy_(saved.at(name));
  }
  const Kind* kind = find_kind(optimizer);
  optimizer.state().clear();
  for (const auto& item : model.named_parameters()) {
    const auto at = states.find(item.key());
    if (at == states.end()) continue;
    NamedTensors tensors;
    for (const auto& [what, tensor] : at->second) {
      // The step counter stays on the CPU; the rest lives where its parameter does.
      tensors.emplace(what, what == "step" ? tensor : tensor.to(item.value().device()).clone());
    }
    optimizer.state()[item.value().unsafeGetTensorImpl()] = kind->read(tensors);
  }
  return {};
}

}  // namespace ddprun
