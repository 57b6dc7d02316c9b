#include "ddprun/mixed_precision.h"

#include <ATen/autocast_mode.h>

#include <boost/json.hpp>
#include <cmath>

#include "ddprun/error.h"

namespace ddprun {

Autocast::Autocast(torch::Device device, torch::ScalarType dtype, bool enabled)
    : device_(device.type()),
      was_enabled_(at::autocast::is_autocast_enabled(device_)),
      type_before_(at::autocast::get_autocast_dtype(device_)) {
  if (dtype != torch::kHalf && dtype != torch::kBFloat16) {
    throw UsageError(std::string("autocast computes in half precision, not in ") +
                     c10::toString(dtype) + ": use torch::kHalf or torch::kBFloat16");
  }
  at::autocast::set_autocast_enabled(device_, enabled);
  at::autocast::set_autocast_dtype(device_, dtype);
  // The weights' copies in half precision are kept without a word on which half it is.
  if (dtype != type_before_) at::autocast::clear_cache();
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  // The copies are good for one step only.
  const bool is_outermost = at::autocast::decrement_nesting() == 0;
  if (is_outermost || at::autocast::get_autocast_dtype(device_) != type_before_) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, type_before_);
}

namespace {

void check(const GradScalerOptions& options, double scale) {
  if (options.growth_factor > 1 && options.backoff_factor > 0 && options.backoff_factor < 1 &&
      options.growth_interval > 0 && scale > 0 && std::isfinite(scale)) {
    return;
  }
  throw UsageError(
      "a GradScaler needs a positive scale, a growth factor above 1, a backoff factor between 0 "
      "and 1, and a positive growth interval");
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(static_cast<float>(options.init_scale)) {
  check(options_, scale_);
}

torch::Tensor GradScaler::scale(const torch::Tensor& loss) {
  if (!options_.enabled) return loss;
  if (!c10::isReducedFloatingType(loss.scalar_type())) return loss * scale_;
  // Of a half precision number the product is a float, which has room for it; as in Python.
  return loss * torch::full({}, scale_, loss.options().dtype(torch::kFloat32));
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  const auto [at, is_new] = seen_.try_emplace(&optimizer);
  if (!is_new) {
    throw UsageError(at->second.has_stepped
                         ? "GradScaler: unscale_() after step(); call update() in between"
                         : "GradScaler: unscale_() was called already for this optimizer since the "
                           "last update()");
  }
  const torch::NoGradGuard no_grad;
  std::map<std::pair<std::string, torch::ScalarType>, std::vector<torch::Tensor>> by_kind;
  for (auto& group : optimizer.param_groups()) {
    for (torch::Tensor& parameter : group.params()) {
      torch::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (gradient.scalar_type() == torch::kHalf) {
        seen_.erase(at);
        throw UsageError(
            "GradScaler: a gradient is in float16; keep the parameters in float32 and compute "
            "under Autocast");
      }
      const torch::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
      by_kind[{values.device().str(), values.scalar_type()}].push_back(values);
    }
  }
  // In float32, as Python's scale is; its reciprocal is made in float64.
  const auto inverse = static_cast<float>(1.0 / scale_);
  for (const auto& [kind, gradients] : by_kind) {
    const auto options = torch::TensorOptions(gradients.front().device());
    torch::Tensor found = torch::zeros({}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found,
                                                   torch::full({}, inverse, options));
    if (found.item<float>() != 0) at->second.is_finite = false;
  }
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (options_.enabled) {
    if (!seen_.contains(&optimizer)) unscale_(optimizer);
    Seen& seen = seen_.at(&optimizer);
    if (seen.has_stepped) {
      throw UsageError("GradScaler: step() was called already since the last update()");
    }
    seen.has_stepped = true;
    if (!seen.is_finite) return false;
  }
  optimizer.step();
  return true;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  bool is_finite = true;
  for (const auto& [optimizer, seen] : seen_) is_finite = is_finite && seen.is_finite;
  if (seen_.empty()) throw UsageError("GradScaler: update() without a step() before it");
  seen_.clear();
  if (!is_finite) {
    scale_ = static_cast<float>(scale_ * options_.backoff_factor);
    good_steps_ = 0;
  } else if (++good_steps_ == options_.growth_interval) {
    const auto grown = static_cast<float>(scale_ * options_.growth_factor);
    if (std::isfinite(grown)) scale_ = grown;  // else it stays
    good_steps_ = 0;
  }
}

std::string GradScaler::state_dict() const {
  return boost::json::serialize(boost::json::object{{"scale", scale_},
                                                    {"growth_factor", options_.growth_factor},
                                                    {"backoff_factor", options_.backoff_factor},
                                                    {"growth_interval", options_.growth_interval},
                                                    {"_growth_tracker", good_steps_}});
}

void GradScaler::load_state_dict(const std::string& state) {
  GradScalerOptions options = options_;
  double scale = 0;
  std::int64_t good_steps = 0;
  try {
    const auto value = boost::json::parse(state);
    const auto number = [&](const char* name) { return value.at(name).to_number<double>(); };
    scale = number("scale");
    options.growth_factor = number("growth_factor");
    options.backoff_factor = number("backoff_factor");
    options.growth_interval = value.at("growth_interval").to_number<std::int64_t>();
    good_steps = value.at("_growth_tracker").to_number<std::int64_t>();
  } catch (const std::exception&) {
    throw UsageError("this is not the state of a GradScaler: " + state.substr(0, 100));
  }
  check(options, scale);
  options_ = options;
  scale_ = scale;
  good_steps_ = good_steps;
  seen_.clear();
}

}  // namespace ddprun
