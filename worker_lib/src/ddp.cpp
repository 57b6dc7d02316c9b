#include "ddprun/ddp.h"

#include <algorithm>
#include <limits>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace ddprun {
namespace {

// As in Python: what is broadcast at once at the start, and per forward for buffers.
constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;

std::vector<std::vector<std::size_t>> first_buckets(const std::vector<torch::Tensor>& parameters,
                                                    const std::vector<bool>& expect_sparse,
                                                    const DdpOptions& options) {
  // One bucket for the first step: its backward tells the order in which gradients come, and the
  // reducer then builds the real buckets by that order. It does not when unused parameters are
  // looked for.
  std::vector<std::size_t> limits{std::numeric_limits<std::int64_t>::max()};
  if (options.find_unused_parameters) {
    limits = {static_cast<std::size_t>(options.first_bucket_bytes),
              static_cast<std::size_t>(options.bucket_cap_bytes)};
  }
  auto buckets =
      std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits, expect_sparse));
  // Backward meets the last parameters first.
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

}  // namespace

struct GradientReducer::Parts {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<torch::Tensor> buffers;
  DdpOptions options;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger>
      logger;  // the reducer asks it things without looking whether it is there
  bool is_synchronizing = true;
  // Buffers are as rank 0 has them until a synchronized forward may have changed them.
  bool must_broadcast_buffers = true;
};

GradientReducer::GradientReducer(const torch::nn::Module& module, Context& context,
                                 const DdpOptions& options)
    : parts_(std::make_unique<Parts>()) {
  parts_->group = context.process_group();
  parts_->options = options;

  std::vector<torch::Tensor> parameters;
  std::unordered_map<std::size_t, std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    names.emplace(parameters.size(), item.key());
    parameters.push_back(item.value());
  }
  if (parameters.empty()) {
    throw UsageError(
        "DistributedDataParallel needs a module with a parameter that requires a "
        "gradient; this one has none: use it as it is");
  }
  for (const auto& item : module.named_buffers()) parts_->buffers.push_back(item.value());

  c10d::verify_params_across_processes(parts_->group, parameters, std::nullopt);
  std::vector<torch::Tensor> state;
  for (const auto& item : module.named_parameters()) state.push_back(item.value().detach());
  for (const auto& buffer : parts_->buffers) state.push_back(buffer.detach());
  c10d::broadcast_coalesced(parts_->group, state, kBroadcastBytes);

  const std::vector<bool> expect_sparse(parameters.size(), false);
  auto buckets = first_buckets(parameters, expect_sparse, options);
  parts_->reducer = std::make_shared<c10d::Reducer>(
      parameters, std::move(buckets), parts_->group, expect_sparse, options.bucket_cap_bytes,
      options.find_unused_parameters, options.gradient_as_bucket_view, std::move(names),
      options.first_bucket_bytes, /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  parts_->logger = std::make_shared<c10d::Logger>(parts_->reducer);
  parts_->reducer->set_logger(parts_->logger);
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

}  // namespace ddprun
