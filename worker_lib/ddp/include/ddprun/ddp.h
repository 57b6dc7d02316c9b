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
// Made collectively (all ranks, the same order), used by one thread. The Context, or the smaller
// Group that it was given, must outlive it. Module and inputs are on the module's device already.
// Evaluate on the bare module, *model: ranks whose last batches are uneven would wait for each other.
// With gradient_as_bucket_view clear gradients by zero_grad() (gradients.h): Optimizer::zero_grad()
// detaches them, which such views refuse. Models that differ between ranks, parameters without a
// gradient and what the options refuse are UsageErrors.
//
// Follows torch/nn/parallel/distributed.py and torch/distributed/algorithms/join.py of PyTorch 2.11.
#pragma once

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/collectives.h"
#include "ddprun/comm_hooks.h"
#include "ddprun/error.h"
#include "ddprun/output_tensors.h"
#include "ddprun/stateful.h"

namespace ddprun {

// Defaults are Python's. The same on all ranks.
struct DdpOptions {
  std::int64_t bucket_bytes_cap = std::int64_t{25} << 20;
  // Small: its all-reduce begins early. Nothing: 1 MiB beside the default above, else as above.
  std::optional<std::int64_t> first_bucket_bytes_cap = std::nullopt;
  // For forwards that do not use every parameter. Costs a walk over the graph in each step.
  bool find_unused_parameters = false;
  // Promises that every step uses the same parameters, the same number of times each: unused ones
  // are found once instead of in each step, and a parameter may be used several times. The first
  // backward must be a synchronized one (no no_sync(), no join()), and the first to go through the
  // outputs: an autograd::grad() of them before it counts as it.
  bool static_graph = false;
  bool gradient_as_bucket_view = false;
  bool broadcast_buffers = true;  // rank 0's buffers (BatchNorm's) to all before each forward
  CommHook comm_hook = {};        // comm_hooks.h; empty: all-reduce
};

// What happens to the ranks whose inputs last longer than others': see join() below.
struct JoinOptions {
  // Gradients are divided by the number of all ranks; else by the number that still train.
  bool divide_by_initial_world_size = true;
  // All ranks throw a Failure as soon as one has no inputs left.
  bool throw_on_early_termination = false;
};

// A module's parameters, each once: C++'s parameters() repeats one that two modules share, and an
// optimizer would step it twice.
std::vector<torch::Tensor> distinct_parameters(const torch::nn::Module& module);

// The part without the module's type: parameters, buffers, and the reducer between them.
class GradientReducer {
 public:
  // Verifies that all ranks have the same parameters and takes over rank 0's values.
  GradientReducer(const torch::nn::Module& module, Group& group, const DdpOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  void before_forward();
  // When true, after_forward() needs the tensors of the output and may exchange them.
  bool needs_outputs() const;
  bool delays_reduction() const;  // static_graph, and the first backward is to come
  void after_forward(const std::vector<torch::Tensor*>& outputs);

  // While off, backward adds to the local gradients only. Returns the old setting.
  bool set_synchronizing(bool is_on);

  // Between the two, forwards tell the others that this rank still trains; the end then takes part
  // in what they do until all have arrived. Without the end after a throw.
  void begin_join(const JoinOptions& options);
  void finish_join();
  void abandon_join();

  // The layout of buckets that the next step uses; see DistributedDataParallel.
  std::string state_dict() const;
  void load_state_dict(const std::string& state);

  // ---- for Recoverable (recoverable.h)
  // The group was made anew: takes it, with this layout of buckets (none: the first step is to come).
  void regroup(Group& group, const std::string& layout);
  bool must_broadcast_buffers() const;
  void set_must_broadcast_buffers(bool must);
  bool has_hook() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Its state (stateful.h) is the layout of buckets: which gradients travel together. The reducer finds
// it in its first step, and with three and more ranks on Gloo the order of summation depends on it:
// a resumed run has the uninterrupted one's bits only with the layout of that one. Save between
// steps; rank 0's state is everybody's. Load it before the first step or between two, on all ranks.
template <typename Module>
class DistributedDataParallel : public Stateful {
 public:
  DistributedDataParallel(std::shared_ptr<Module> module, Group& group,
                          const DdpOptions& options = {})
      : module_(std::move(module)),
        reducer_(std::make_unique<GradientReducer>(*module_, group, options)) {}

  // Of what TORCH_MODULE makes: DistributedDataParallel(Net(), context).
  template <typename Holder>
  requires std::is_same_v<typename Holder::ContainedType, Module> DistributedDataParallel(
      const Holder& holder, Group& group, const DdpOptions& options = {})
      : DistributedDataParallel(holder.ptr(), group, options) {}

  // Whatever the module's forward takes and returns.
  template <typename... Args>
  auto forward(Args&&... args) {
    reducer_->before_forward();
    std::vector<torch::Tensor*> tensors;
    if constexpr (std::is_void_v<decltype(module_->forward(std::forward<Args>(args)...))>) {
      module_->forward(std::forward<Args>(args)...);
      if (reducer_->needs_outputs()) refuse_output();
      reducer_->after_forward(tensors);
    } else {
      auto output = module_->forward(std::forward<Args>(args)...);
      if (reducer_->needs_outputs() &&
          !visit_tensors(output, [&](torch::Tensor& tensor) { tensors.push_back(&tensor); })) {
        refuse_output();
      }
      reducer_->after_forward(tensors);
      return output;
    }
  }
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // For gradient accumulation: forwards made while what it returns lives are not synchronized; the first one
  // after it averages the sum of all.
  //
  //   { auto no_sync = model.no_sync(); loss(model(a)).backward(); }
  //   loss(model(b)).backward();
  [[nodiscard("it lasts as long as this object: give it a name")]] auto no_sync() {
    return c10::make_scope_exit(
        [reducer = reducer_.get(), was_on = reducer_->set_synchronizing(false)] {
          reducer->set_synchronizing(was_on);
        });
  }
  // A forward under no_sync() would be refused now: with static_graph until the first backward.
  bool must_synchronize() const { return reducer_->delays_reduction(); }

  // For ranks whose inputs are not equally many: calls `loop`, whose forwards are paired by ranks
  // that are through with theirs with empty ones (zero gradients), until all are through; then every
  // rank has the model of one that trained longest. All ranks call it. Other collectives, such as
  // SyncBatchNorm's, are not paired: do not use them inside.
  //
  //   model.join([&] {
  //     for (const auto& batch : batches) { ...; loss(model(batch)).backward(); optimizer.step(); }
  //   });
  template <typename Loop>
  void join(Loop&& loop, const JoinOptions& options = {}) {
    reducer_->begin_join(options);
    try {
      std::forward<Loop>(loop)();
      reducer_->finish_join();
    } catch (...) {
      reducer_->abandon_join();
      throw;
    }
  }

  std::string state_dict() const override { return reducer_->state_dict(); }
  void load_state_dict(const std::string& state) override { reducer_->load_state_dict(state); }

  // The module itself: to evaluate, to save, to read its members.
  Module& operator*() const { return *module_; }
  Module* operator->() const { return module_.get(); }
  const std::shared_ptr<Module>& module() const { return module_; }
  GradientReducer& reducer() const { return *reducer_; }
  // For an optimizer: each once, as in Python.
  std::vector<torch::Tensor> parameters() const { return distinct_parameters(*module_); }

 private:
  [[noreturn]] static void refuse_output() {
    throw UsageError(
        "find_unused_parameters and static_graph need to see the tensors in what forward "
        "returns: write a function for_each_tensor(T&, const ddprun::TensorVisitor&) beside "
        "that type (ddprun/output_tensors.h)");
  }

  std::shared_ptr<Module> module_;
  std::unique_ptr<GradientReducer> reducer_;
};

template <typename Holder>
requires requires { typename Holder::ContainedType; }
DistributedDataParallel(const Holder&, Group&, const DdpOptions& = {})
    ->DistributedDataParallel<typename Holder::ContainedType>;

}  // namespace ddprun
