#include "ddprun/ddp.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <algorithm>
#include <limits>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "worker_lib/c10d/torch_compat.h"
#include "worker_lib/ddp/bucket_layout.h"
#include "worker_lib/ddp/missing_gradients.h"
#include "worker_lib/ddp/module_parameters.h"
#include "worker_lib/group/context_access.h"
#include "worker_lib/group/recovery.h"

namespace ddprun {
namespace {

// As in Python: what is broadcast at once at the start, and per forward for buffers.
constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;

torch::Tensor all_reduced(c10d::ProcessGroup& group, torch::Tensor tensor,
                          c10d::ReduceOp::RedOpType op) {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  group.allreduce(tensors, options)->wait();
  return tensors[0];
}

// c10d's reducer, and what it keeps to itself about its buckets.
class Reducer : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;

  // The layout that it was made with is the one that a first step found out.
  void keep_buckets() { has_rebuilt_bucket_ = true; }

  // Empty as long as the first step is to come. After it the new buckets are made by the next
  // forward only, in common with all ranks, by rank 0's order of gradients: told in advance here, so
  // that a state can be saved after the first step, and by one rank alone.
  BucketLayout next_layout(std::int64_t first_bucket_bytes_cap) const {
    BucketLayout layout;
    if (!should_rebuild_buckets()) {
      for (const auto& bucket : buckets_) layout.push_back(bucket.variable_indices);
    } else if (rebuilt_params_.size() == params_.size()) {
      layout = std::get<0>(c10d::compute_bucket_assignment_by_size(
          rebuilt_params_,
          {static_cast<std::size_t>(first_bucket_bytes_cap),
           static_cast<std::size_t>(bucket_bytes_cap_)},
          expect_sparse_gradients_, rebuilt_param_indices_));
    }
    return layout;
  }
};

// The one node through which every output's gradient comes. Backward visits it whole, also when the
// loss uses only some of the outputs: the others' parameters then get an undefined gradient, which
// tells the reducer that they are through, instead of none, for which it would wait.
struct OutputSink : torch::autograd::Node {
  explicit OutputSink(std::function<void()> at_backward) : on_backward(std::move(at_backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (on_backward) on_backward();
    return std::move(gradients);
  }
  std::string name() const override { return "ddprun::OutputSink"; }

  std::function<void()> on_backward;
};

void route_through_sink(const std::vector<torch::Tensor*>& outputs,
                        std::function<void()> on_backward) {
  std::vector<torch::Tensor*> differentiable;
  torch::autograd::variable_list sources;
  for (torch::Tensor* output : outputs) {
    if (output->grad_fn() == nullptr) continue;
    differentiable.push_back(output);
    sources.push_back(*output);
  }
  if (differentiable.empty()) return;
  const auto sink = compat::make_node<OutputSink>(std::move(on_backward));
  sink->set_next_edges(torch::autograd::collect_next_edges(sources));
  for (torch::Tensor* output : differentiable) {
    *output = output->detach();  // the same memory, with a history of its own
    torch::autograd::set_history(*output, sink);
  }
}

}  // namespace

struct GradientReducer::Parts {
  const torch::nn::Module* module = nullptr;  // outlives this, as calls does
  Group* calls = nullptr;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  Parameters parameters;
  std::vector<torch::Tensor> buffers;
  DdpOptions options;
  std::shared_ptr<Reducer> reducer;
  // The reducer asks it things without looking whether it is there.
  std::shared_ptr<c10d::Logger> logger;
  std::optional<JoinOptions> join;  // while in one
  bool is_synchronizing = true;
  // Buffers are as rank 0 has them until a synchronized forward may have changed them.
  bool must_broadcast_buffers = true;
  // With a static graph the first backward reduces everything at its end.
  std::shared_ptr<bool> has_delayed_first_reduction = std::make_shared<bool>(false);

  torch::Device device() const { return parameters.tensors.front().device(); }
  bool looks_for_unused() const { return options.find_unused_parameters && !options.static_graph; }
  bool delays_reduction() const { return options.static_graph && !*has_delayed_first_reduction; }

  BucketLayout first_layout() const;
  void make_reducer(BucketLayout layout);
  template <typename Call>
  void name_missing_gradients(const Call& call) const;

  void broadcast_module(int root);
  void take_group(Group& its_group) {
    calls = &its_group;
    group = its_group.process_group();
  }
  std::shared_ptr<Recovery> recovery() const { return detail::ContextAccess::recovery(*calls); }
  // A member that is a reference to its buffer's place may have been assigned another tensor.
  void look_up_buffers() {
    if (options.broadcast_buffers) buffers = module->buffers();
  }
  bool is_to_broadcast_buffers() const {
    return must_broadcast_buffers && options.broadcast_buffers && !buffers.empty();
  }

  float sum_over_ranks(float value) const;
  void tell_that_this_rank_trains();
  int greatest(int value) const;
  void shadow_step();
};

BucketLayout GradientReducer::Parts::first_layout() const {
  // One bucket for the first step: its backward tells the order in which gradients come, and the
  // reducer then builds the real buckets by that order. It does not when unused parameters are
  // looked for.
  std::vector<std::size_t> limits{std::numeric_limits<std::int64_t>::max()};
  if (looks_for_unused()) {
    limits = {static_cast<std::size_t>(first_bucket_bytes_of(options)),
              static_cast<std::size_t>(options.bucket_bytes_cap)};
  }
  auto layout = std::get<0>(
      c10d::compute_bucket_assignment_by_size(parameters.tensors, limits, parameters.are_sparse));
  // Backward meets the last parameters first.
  std::reverse(layout.begin(), layout.end());
  return layout;
}

// What DdpOptions::comm_hook is called by.
class HookCaller : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  HookCaller(const c10::intrusive_ptr<c10d::ProcessGroup>& group, CommHook hook)
      : CppCommHookInterface(group), hook_(std::move(hook)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    return hook_(bucket, *state_);
  }

 private:
  CommHook hook_;
};

void GradientReducer::Parts::make_reducer(BucketLayout layout) {
  logger.reset();
  reducer.reset();  // takes its hooks off the parameters
  const bool is_known = !layout.empty();
  reducer = std::make_shared<Reducer>(
      parameters.tensors, is_known ? std::move(layout) : first_layout(), group,
      parameters.are_sparse, options.bucket_bytes_cap, options.find_unused_parameters,
      options.gradient_as_bucket_view, parameters.names, first_bucket_bytes_of(options),
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  if (is_known) reducer->keep_buckets();
  logger = std::make_shared<c10d::Logger>(reducer);
  reducer->set_logger(logger);
  if (options.comm_hook) {
    reducer->register_comm_hook(std::make_unique<HookCaller>(group, options.comm_hook));
  }
  *has_delayed_first_reduction = false;
  if (options.static_graph) reducer->set_static_graph();
}

// c10d complains in the next step, with indices: the names are what the user knows.
template <typename Call>
void GradientReducer::Parts::name_missing_gradients(const Call& call) const {
  try {
    call();
  } catch (const c10::Error& error) {
    const auto indices =
        indices_without_gradient(error.what_without_backtrace(), parameters.tensors.size());
    if (indices.empty()) throw;
    std::string names;
    for (const std::size_t index : indices) {
      names += (names.empty() ? "" : ", ") + parameters.names.at(index);
    }
    throw UsageError(
        "the last backward gave these parameters no gradient on rank " +
        std::to_string(group->getRank()) + ": " + names +
        (options.static_graph
             ? "; with static_graph every step must use the same parameters: leave it off"
             : "; use all of them in forward and in the loss, or set "
               "DdpOptions::find_unused_parameters"));
  }
}

void GradientReducer::Parts::broadcast_module(int root) {
  std::vector<torch::Tensor> state;
  for (const auto& item : module->named_parameters()) state.push_back(item.value().detach());
  if (options.broadcast_buffers) {
    for (const auto& buffer : buffers) state.push_back(buffer.detach());
  }
  c10d::broadcast_coalesced(group, state, kBroadcastBytes, root);
}

GradientReducer::GradientReducer(const torch::nn::Module& module, Group& group,
                                 const DdpOptions& options)
    : parts_(std::make_unique<Parts>()) {
  Parts& parts = *parts_;
  if (options.bucket_bytes_cap <= 0 || first_bucket_bytes_of(options) <= 0) {
    throw UsageError("DdpOptions: a bucket needs room for at least one byte");
  }
  parts.module = &module;
  parts.take_group(group);
  parts.options = options;
  verify_same_model(group, module, options);
  parts.parameters = parameters_of(module);
  refuse_sparse_over_nccl(parts.parameters, *parts.group);
  parts.look_up_buffers();
  parts.broadcast_module(0);
  parts.make_reducer({});
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::before_forward() {
  Parts& parts = *parts_;
  const bool is_grad_enabled = torch::GradMode::is_enabled();
  if (is_grad_enabled && !parts.is_synchronizing && parts.delays_reduction()) {
    // c10d counts the parameters' uses in the first backward that it sees, and would count these too.
    throw UsageError(
        "with static_graph the first backward must be synchronized: use no_sync() from the second "
        "step on, or leave static_graph off");
  }
  if (is_grad_enabled && parts.is_synchronizing) parts.reducer->prepare_for_forward();
  if (parts.join) parts.tell_that_this_rank_trains();
  if (is_grad_enabled) {
    parts.name_missing_gradients([&] { parts.reducer->rebuild_buckets(); });
  }
  parts.look_up_buffers();
  if (parts.is_to_broadcast_buffers()) {
    // In a join rank 0 may be through, and its buffers old.
    const int root = parts.join ? parts.greatest(parts.group->getRank()) : 0;
    const auto recovery = parts.recovery();
    if (recovery && recovery->is_between_steps()) {  // an evaluation: a rank may be replaced in it
      for (const torch::Tensor& buffer : parts.buffers) parts.calls->broadcast(buffer, root);
    } else {
      c10d::broadcast_coalesced(parts.group, parts.buffers, kBroadcastBytes, root);
    }
  }
  // Ranks that are through ask whether the coming backward is synchronized.
  if (parts.join) parts.sum_over_ranks(parts.is_synchronizing ? 1 : 0);
}

bool GradientReducer::delays_reduction() const { return parts_->delays_reduction(); }

bool GradientReducer::needs_outputs() const {
  return parts_->is_synchronizing && torch::GradMode::is_enabled() &&
         (parts_->looks_for_unused() || parts_->delays_reduction());
}

void GradientReducer::after_forward(const std::vector<torch::Tensor*>& outputs) {
  Parts& parts = *parts_;
  parts.must_broadcast_buffers = torch::GradMode::is_enabled() && parts.is_synchronizing;
  if (!parts.must_broadcast_buffers) return;
  std::vector<torch::Tensor> tensors;
  if (parts.looks_for_unused()) {
    for (const torch::Tensor* output : outputs) tensors.push_back(*output);
  }
  parts.name_missing_gradients([&] { parts.reducer->prepare_for_backward(tensors); });
  if (parts.looks_for_unused()) {
    route_through_sink(outputs, nullptr);
  } else if (parts.delays_reduction()) {
    route_through_sink(outputs, [reducer = std::weak_ptr<Reducer>(parts.reducer),
                                 is_queued = parts.has_delayed_first_reduction] {
      if (std::exchange(*is_queued, true)) return;
      torch::autograd::Engine::get_default_engine().queue_callback([reducer] {
        if (const auto alive = reducer.lock()) alive->delay_all_reduce();
      });
    });
  }
}

bool GradientReducer::set_synchronizing(bool is_on) {
  return std::exchange(parts_->is_synchronizing, is_on);
}

float GradientReducer::Parts::sum_over_ranks(float value) const {
  const torch::Tensor own = torch::full({1}, value, device());
  return all_reduced(*group, own, c10d::ReduceOp::SUM).item<float>();
}

int GradientReducer::Parts::greatest(int value) const {
  const auto own = torch::full({1}, value, torch::dtype(torch::kInt64).device(device()));
  return all_reduced(*group, own, c10d::ReduceOp::MAX).item<int>();
}

void GradientReducer::Parts::tell_that_this_rank_trains() {
  std::vector<torch::Tensor> count{torch::ones({1}, torch::TensorOptions(device()))};
  // The reducer reads from it how many ranks still train, when it divides.
  reducer->set_forward_pass_work_handle(group->allreduce(count),
                                        join->divide_by_initial_world_size);
  if (join->throw_on_early_termination && sum_over_ranks(0) != 0) {
    throw Failure(ErrorCode::kClosed,
                  "another rank has no inputs left, and the join was told to end then");
  }
}

// The collectives of one step of those that still train, with zeros for gradients.
void GradientReducer::Parts::shadow_step() {
  reducer->rebuild_buckets();
  look_up_buffers();
  if (is_to_broadcast_buffers()) {
    c10d::broadcast_coalesced(group, buffers, kBroadcastBytes, greatest(-1));
  }
  must_broadcast_buffers = sum_over_ranks(0) != 0;
  if (!must_broadcast_buffers) return;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> reductions;
  for (auto& bucket : reducer->get_grad_buckets(/*return_zero_tensors=*/true)) {
    reductions.push_back(reducer->run_comm_hook(bucket));
  }
  for (const auto& reduction : reductions) reduction->waitAndThrow();
  if (looks_for_unused()) {
    all_reduced(*group, reducer->get_local_used_map_on_device(), c10d::ReduceOp::SUM);
  }
  reducer->push_rebuilt_params_for_all_indices();
}

void GradientReducer::begin_join(const JoinOptions& options) {
  if (parts_->join) throw UsageError("this model is in a join() already");
  if (parts_->delays_reduction()) {
    throw UsageError(
        "with static_graph the first step needs all ranks: make it before join(), or leave "
        "static_graph off");
  }
  if (const auto recovery = parts_->recovery()) {
    recovery->refuse("the program trains in a join() of uneven inputs");
  }
  parts_->join = options;
}

void GradientReducer::finish_join() {
  Parts& parts = *parts_;
  bool is_last = true;
  while (parts.sum_over_ranks(0) != 0) {
    if (parts.join->throw_on_early_termination) {
      parts.sum_over_ranks(1);
      throw Failure(ErrorCode::kClosed,
                    "rank " + std::to_string(parts.group->getRank()) +
                        " has no inputs left, and the join was told to end then");
    }
    parts.shadow_step();
    is_last = false;
  }
  parts.broadcast_module(parts.greatest(is_last ? parts.group->getRank() : -1));
  abandon_join();
}

void GradientReducer::abandon_join() {
  parts_->join.reset();
  parts_->reducer->set_forward_pass_work_handle({}, /*useStaticWorldSize=*/true);
}

void GradientReducer::regroup(Group& group, const std::string& layout) {
  Parts& parts = *parts_;
  parts.take_group(group);
  parts.is_synchronizing = true;
  layout.empty() ? parts.make_reducer({}) : load_state_dict(layout);
}

bool GradientReducer::must_broadcast_buffers() const { return parts_->must_broadcast_buffers; }

void GradientReducer::set_must_broadcast_buffers(bool must) {
  parts_->must_broadcast_buffers = must;
}

bool GradientReducer::has_hook() const { return static_cast<bool>(parts_->options.comm_hook); }

std::string GradientReducer::state_dict() const {
  return text_of(parts_->reducer->next_layout(first_bucket_bytes_of(parts_->options)));
}

void GradientReducer::load_state_dict(const std::string& state) {
  Parts& parts = *parts_;
  const auto& [tensors, names, are_sparse] = parts.parameters;
  auto layout = bucket_layout_from(state, tensors.size());
  for (const auto& bucket : layout) {
    const torch::Tensor& first = tensors[bucket.front()];
    for (const std::size_t index : bucket) {
      const torch::Tensor& parameter = tensors[index];
      if (parameter.options().type_equal(first.options()) && parameter.device() == first.device() &&
          (bucket.size() == 1 || !are_sparse[index])) {
        continue;
      }
      throw UsageError("the saved bucket layout puts " + names.at(bucket.front()) + " and " +
                       names.at(index) +
                       " into one bucket, which do not go together in this model; load the state "
                       "that was saved with the same model");
    }
  }
  parts.make_reducer(std::move(layout));
}

}  // namespace ddprun
