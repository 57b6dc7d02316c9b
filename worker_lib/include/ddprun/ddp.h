// DistributedDataParallel: a module of which every rank holds a copy; each rank's backward sees its
// own batch, and gradients are averaged over all ranks while the backward still runs. The work is
// done by c10d::Reducer, the same that Python's class uses, set up the same way, so that the same
// program gives the same bits in both languages.
//
//   auto model = ddprun::DistributedDataParallel(std::make_shared<Net>(), context);
//   torch::optim::SGD optimizer(model.parameters(), 0.1);
//   auto loss = torch::nn::functional::cross_entropy(model(images), labels);
//   loss.backward();   // afterwards every rank's gradients are the average
//
// Made collectively (all ranks, the same order), used by one thread. The Context must outlive it.
// Evaluate on the bare module, *model: ranks whose last batches are uneven would wait for each
// other. With gradient_as_bucket_view clear gradients by grad.zero_(): C++'s Optimizer::zero_grad()
// detaches them, which such views refuse.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddprun/context.h"
#include "ddprun/stateful.h"

namespace ddprun {

// Defaults are Python's.
struct DdpOptions {
  std::int64_t bucket_cap_bytes = std::int64_t{25} << 20;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  // small: its all-reduce begins early
  // For forwards that do not use every parameter. Costs a walk over the graph in each step.
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool broadcast_buffers = true;  // rank 0's buffers (BatchNorm's) to all before each forward
};

// The part without the module's type: parameters, buffers, and the reducer between them.
class GradientReducer {
 public:
  // Verifies that all ranks have the same parameters and takes over rank 0's values.
  GradientReducer(const torch::nn::Module& module, Context& context, const DdpOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  void before_forward();
  // `outputs` is needed only with find_unused_parameters.
  void after_forward(const std::vector<torch::Tensor>& outputs);

  bool finds_unused_parameters() const;
  // While off, backward adds to the local gradients only. Returns the old setting.
  bool set_synchronizing(bool is_on);

  // The layout of buckets that the next step uses; see DistributedDataParallel.
  std::string save_state() const;
  void load_state(const std::string& state);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Adds every tensor inside a forward's result to `found`: tensors, and optionals, pairs, tuples,
// vectors and maps of them. For a type of your own write a function collect_tensors() beside it.
inline void collect_tensors(const torch::Tensor& tensor, std::vector<torch::Tensor>& found) {
  if (tensor.defined()) found.push_back(tensor);
}
template <typename T>
void collect_tensors(const std::optional<T>& value, std::vector<torch::Tensor>& found);
template <typename T>
void collect_tensors(const std::vector<T>& values, std::vector<torch::Tensor>& found);
template <typename K, typename V>
void collect_tensors(const std::map<K, V>& values, std::vector<torch::Tensor>& found);
template <typename K, typename V>
void collect_tensors(const std::unordered_map<K, V>& values, std::vector<torch::Tensor>& found);
template <typename A, typename B>
void collect_tensors(const std::pair<A, B>& values, std::vector<torch::Tensor>& found);
template <typename... Ts>
void collect_tensors(const std::tuple<Ts...>& values, std::vector<torch::Tensor>& found);
template <typename T>
requires std::is_arithmetic_v<T>
void collect_tensors(const T&, std::vector<torch::Tensor>&) {}

template <typename T>
void collect_tensors(const std::optional<T>& value, std::vector<torch::Tensor>& found) {
  if (value) collect_tensors(*value, found);
}
template <typename T>
void collect_tensors(const std::vector<T>& values, std::vector<torch::Tensor>& found) {
  for (const auto& value : values) collect_tensors(value, found);
}
template <typename K, typename V>
void collect_tensors(const std::map<K, V>& values, std::vector<torch::Tensor>& found) {
  for (const auto& entry : values) collect_tensors(entry.second, found);
}
template <typename K, typename V>
void collect_tensors(const std::unordered_map<K, V>& values, std::vector<torch::Tensor>& found) {
  for (const auto& entry : values) collect_tensors(entry.second, found);
}
template <typename A, typename B>
void collect_tensors(const std::pair<A, B>& values, std::vector<torch::Tensor>& found) {
  collect_tensors(values.first, found);
  collect_tensors(values.second, found);
}
template <typename... Ts>
void collect_tensors(const std::tuple<Ts...>& values, std::vector<torch::Tensor>& found) {
  std::apply([&](const auto&... value) { (collect_tensors(value, found), ...); }, values);
}

template <typename T>
concept HasCollectableTensors = requires(const T& value, std::vector<torch::Tensor>& found) {
  collect_tensors(value, found);
};

// Its state (stateful.h) is the layout of buckets: which gradients travel together. The reducer finds
// it in its first step, and with three and more ranks on Gloo the order of summation depends on it:
// a resumed run has the uninterrupted one's bits only with the layout of that one. Save between
// steps; rank 0's state is everybody's. Load it before the first step or between two, on all ranks.
template <typename Module>
class DistributedDataParallel : public Stateful {
 public:
  DistributedDataParallel(std::shared_ptr<Module> module, Context& context,
                          const DdpOptions& options = {})
      : module_(std::move(module)),
        reducer_(std::make_unique<GradientReducer>(*module_, context, options)) {}

  // Of what TORCH_MODULE makes: DistributedDataParallel(Net(), context).
  template <typename Holder>
  requires std::is_same_v<typename Holder::ContainedType, Module> DistributedDataParallel(
      const Holder& holder, Context& context, const DdpOptions& options = {})
      : DistributedDataParallel(holder.ptr(), context, options) {}

  // Whatever the module's forward takes and returns.
  template <typename... Args>
  auto forward(Args&&... args) {
    reducer_->before_forward();
    auto output = module_->forward(std::forward<Args>(args)...);
    std::vector<torch::Tensor> tensors;
    if (reducer_->finds_unused_parameters()) {
      if constexpr (HasCollectableTensors<decltype(output)>) {
        collect_tensors(output, tensors);
      } else {
        throw UsageError(
            "find_unused_parameters needs to see the tensors in what forward returns: write a "
            "function collect_tensors(const T&, std::vector<torch::Tensor>&) beside that type");
      }
    }
    reducer_->after_forward(tensors);
    return output;
  }
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // For gradient accumulation: forwards made while it lives are not synchronized; the first one
  // after it averages the sum of all.
  //
  //   { auto no_sync = model.no_sync(); loss(model(a)).backward(); }
  //   loss(model(b)).backward();
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(GradientReducer& reducer)
        : reducer_(reducer), was_on_(reducer.set_synchronizing(false)) {}
    ~NoSync() { reducer_.set_synchronizing(was_on_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    GradientReducer& reducer_;
    bool was_on_;
  };
  NoSync no_sync() { return NoSync(*reducer_); }

  std::string save_state() const override { return reducer_->save_state(); }
  void load_state(const std::string& state) override { reducer_->load_state(state); }

  // The module itself: to evaluate, to save, to read its members.
  Module& operator*() const { return *module_; }
  Module* operator->() const { return module_.get(); }
  const std::shared_ptr<Module>& module() const { return module_; }
  std::vector<torch::Tensor> parameters() const { return module_->parameters(); }

 private:
  std::shared_ptr<Module> module_;
  std::unique_ptr<GradientReducer> reducer_;
};

template <typename Holder>
requires requires { typename Holder::ContainedType; }
DistributedDataParallel(const Holder&, Context&, const DdpOptions& = {})
    ->DistributedDataParallel<typename Holder::ContainedType>;

}  // namespace ddprun
