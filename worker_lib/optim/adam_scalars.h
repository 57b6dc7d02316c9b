// The numbers of Adam's step that are the same for all elements of a parameter, computed as Python
// computes them: in double, rounded after every operation, `x ** 0.5` by pow(). Pure; nothing of Torch.
//
//   1 - beta1 ** step             what the first moment lacks yet
//   lr / (1 - beta1 ** step)      step_size
//   (1 - beta2 ** step) ** 0.5    bias_correction2_sqrt
//   1 - lr * weight_decay         what AdamW multiplies a parameter by
#pragma once

namespace ddprun::optim {

struct AdamScalars {
  double step_size;
  double bias_correction2_sqrt;
};

// `step` is 1 in the first step.
AdamScalars adam_scalars(double lr, double beta1, double beta2, double step);

double decay_factor(double lr, double weight_decay);

}  // namespace ddprun::optim
