// Mixed precision: Autocast makes matrix products and convolutions run in half precision while it
// lives; GradScaler keeps small gradients from vanishing in float16 (bfloat16 needs none: it has
// float32's range). Parameters stay in float32.
//
//   ddprun::GradScaler scaler;
//   for (...) {
//     torch::Tensor loss;
//     {
//       const ddprun::Autocast autocast(context.device(), torch::kHalf);
//       loss = criterion(model(inputs), targets);
//     }
//     scaler.scale(loss).backward();
//     scaler.unscale_(optimizer);                                   // only to clip before the step
//     ddprun::clip_grad_norm_(model.parameters(), 1.0);
//     scaler.step(optimizer);   // skipped when a gradient is infinite or not a number
//     scaler.update();          // which halves the scale; it doubles after 2000 good steps
//     optimizer.zero_grad();
//   }
//
// Under DistributedDataParallel gradients are the average before they are looked at: every rank
// skips the same steps and has the same scale, without speaking to the others. One thread.
//
// Follows torch/amp/autocast_mode.py and torch/amp/grad_scaler.py.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "ddprun/stateful.h"

namespace ddprun {

// For the calling thread, while it lives; nests. `dtype`: kHalf or kBFloat16, else a UsageError.
class Autocast {
 public:
  [[nodiscard("it lasts as long as this object: give it a name")]] explicit Autocast(
      torch::Device device, torch::ScalarType dtype = torch::kBFloat16, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool was_enabled_;
  torch::ScalarType type_before_;
};

// Defaults are Python's.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // steps without an infinite gradient before it grows
  bool enabled = true;                  // false: every call below is what it would be without
};

// Its state (stateful.h) has the fields of Python's state_dict(). Save it after update().
class GradScaler : public Stateful {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  // The loss times the scale.
  [[nodiscard("the scaled loss is returned: call backward() on it")]] torch::Tensor scale(
      const torch::Tensor& loss);
  // Divides the optimizer's gradients by the scale and notes whether one is not finite. step() does
  // it unless it was done; twice before update() is a UsageError, as are float16 gradients.
  void unscale_(torch::optim::Optimizer& optimizer);
  // The optimizer's step, unless a gradient is not finite. Returns whether it was made. Once for each
  // optimizer before update().
  bool step(torch::optim::Optimizer& optimizer);
  // Adjusts the scale after the steps of all optimizers.
  void update();

  double get_scale() const { return scale_; }
  bool is_enabled() const { return options_.enabled; }

  std::string state_dict() const override;
  void load_state_dict(const std::string& state) override;

 private:
  struct Seen {
    bool is_finite = true;
    bool has_stepped = false;
  };

  GradScalerOptions options_;
  double scale_;
  std::int64_t good_steps_ = 0;
  std::map<const torch::optim::Optimizer*, Seen> seen_;  // since the last update
};

}  // namespace ddprun
