#include "worker_lib/optim/adam_scalars.h"

#include <cmath>

namespace ddprun::optim {

AdamScalars adam_scalars(double lr, double beta1, double beta2, double step) {
  const double bias_correction1 = 1 - std::pow(beta1, step);
  const double bias_correction2 = 1 - std::pow(beta2, step);
  return {lr / bias_correction1, std::pow(bias_correction2, 0.5)};
}

double decay_factor(double lr, double weight_decay) { return 1 - lr * weight_decay; }

}  // namespace ddprun::optim
