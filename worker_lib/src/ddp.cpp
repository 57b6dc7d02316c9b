#include "ddprun/ddp.h"

#include <algorithm>
#include <limits>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "worker_lib/src/bucket_layout.h"

namespace ddprun {
namespace {

// As in Python: what is broadcast at once at the start, and per forward for buffers.
constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;

// c10d's reducer, and what it keeps to itself about its buckets.
class Reducer : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;

  // The layout that it was made with is the one that a first step found out.
  void keep_buckets() { has_rebuilt_bucket_ = true; }

  // Empty as long as the first step is to come. After it the new buckets are made by the next
  // forward only, in common with all ranks, by rank 0's order of gradients: told in advance here, so
  // that a state can be saved after the first step, and by one rank alone.
  BucketLayout next_layout(std::int64_t first_bucket_bytes) const {
    BucketLayout layout;
    if (!should_rebuild_buckets()) {
      for (const auto& bucket : buckets_) layout.push_back(bucket.variable_indices);
    } else if (rebuilt_params_.size() == params_.size()) {
      layout = std::get<0>(c10d::compute_bucket_assignment_by_size(
          rebuilt_params_,
          {static_cast<std::size_t>(first_bucket_bytes),
           static_cast<std::size_t>(bucket_bytes_cap_)},
          expect_sparse_gradients_, rebuilt_param_indices_));
    }
    return layout;
  }
};

}  // namespace

struct GradientReducer::Parts {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<torch::Tensor> parameters;
  std::unordered_map<std::size_t, std::string> names;  // of the parameters, by index
  std::vector<bool> expect_sparse;
  std::vector<torch::Tensor> buffers;
  DdpOptions options;
  std::shared_ptr<Reducer> reducer;
  // The reducer asks it things without looking whether it is there.
  std::shared_ptr<c10d::Logger> logger;
  bool is_synchronizing = true;
  // Buffers are as rank 0 has them until a synchronized forward may have changed them.
  bool must_broadcast_buffers = true;

  BucketLayout first_layout() const;
  void make_reducer(BucketLayout layout);
};

BucketLayout GradientReducer::Parts::first_layout() const {
  // One bucket for the first step: its backward tells the order in which gradients come, and the
  // reducer then builds the real buckets by that order. It does not when unused parameters are
  // looked for.
  std::vector<std::size_t> limits{std::numeric_limits<std::int64_t>::max()};
  if (options.find_unused_parameters) {
    limits = {static_cast<std::size_t>(options.first_bucket_bytes),
              static_cast<std::size_t>(options.bucket_cap_bytes)};
  }
  auto layout =
      std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits, expect_sparse));
  // Backward meets the last parameters first.
  std::reverse(layout.begin(), layout.end());
  return layout;
}

void GradientReducer::Parts::make_reducer(BucketLayout layout) {
  logger.reset();
  reducer.reset();  // takes its hooks off the parameters
  const bool is_known = !layout.empty();
  reducer = std::make_shared<Reducer>(
      parameters, is_known ? std::move(layout) : first_layout(), group, expect_sparse,
      options.bucket_cap_bytes, options.find_unused_parameters, options.gradient_as_bucket_view,
      names, options.first_bucket_bytes, /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  if (is_known) reducer->keep_buckets();
  logger = std::make_shared<c10d::Logger>(reducer);
  reducer->set_logger(logger);
}

GradientReducer::GradientReducer(const torch::nn::Module& module, Context& context,
                                 const DdpOptions& options)
    : parts_(std::make_unique<Parts>()) {
  Parts& parts = *parts_;
  parts.group = context.process_group();
  parts.options = options;

  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    parts.names.emplace(parts.parameters.size(), item.key());
    parts.parameters.push_back(item.value());
  }
  if (parts.parameters.empty()) {
    throw UsageError(
        "DistributedDataParallel needs a module with a parameter that requires a "
        "gradient; this one has none: use it as it is");
  }
  parts.expect_sparse.assign(parts.parameters.size(), false);
  for (const auto& item : module.named_buffers()) parts.buffers.push_back(item.value());

  c10d::verify_params_across_processes(parts.group, parts.parameters, std::nullopt);
  std::vector<torch::Tensor> state;
  for (const auto& item : module.named_parameters()) state.push_back(item.value().detach());
  for (const auto& buffer : parts.buffers) state.push_back(buffer.detach());
  c10d::broadcast_coalesced(parts.group, state, kBroadcastBytes);

  parts.make_reducer({});
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::before_forward() {
  Parts& parts = *parts_;
  const bool is_grad_enabled = torch::GradMode::is_enabled();
  if (is_grad_enabled && parts.is_synchronizing) parts.reducer->prepare_for_forward();
  if (is_grad_enabled) parts.reducer->rebuild_buckets();
  if (parts.must_broadcast_buffers && parts.options.broadcast_buffers && !parts.buffers.empty()) {
    c10d::broadcast_coalesced(parts.group, parts.buffers, kBroadcastBytes);
  }
}

void GradientReducer::after_forward(const std::vector<torch::Tensor>& outputs) {
  Parts& parts = *parts_;
  parts.must_broadcast_buffers = torch::GradMode::is_enabled() && parts.is_synchronizing;
  if (parts.must_broadcast_buffers) parts.reducer->prepare_for_backward(outputs);
}

bool GradientReducer::finds_unused_parameters() const {
  return parts_->options.find_unused_parameters;
}

bool GradientReducer::set_synchronizing(bool is_on) {
  return std::exchange(parts_->is_synchronizing, is_on);
}

std::string GradientReducer::save_state() const {
  return text_of(parts_->reducer->next_layout(parts_->options.first_bucket_bytes));
}

void GradientReducer::load_state(const std::string& state) {
  Parts& parts = *parts_;
  auto layout = bucket_layout_from(state, parts.parameters.size());
  for (const auto& bucket : layout) {
    const torch::Tensor& first = parts.parameters[bucket.front()];
    for (const std::size_t index : bucket) {
      const torch::Tensor& parameter = parts.parameters[index];
      if (parameter.options().type_equal(first.options()) && parameter.device() == first.device() &&
          (bucket.size() == 1 || !parts.expect_sparse[index])) {
        continue;
      }
      throw UsageError("the saved bucket layout puts " + parts.names[bucket.front()] + " and " +
                       parts.names[index] +
                       " into one bucket, which do not go together in this model; load the state "
                       "that was saved with the same model");
    }
  }
  parts.make_reducer(std::move(layout));
}

}  // namespace ddprun
