// Mean: a weighted mean over all ranks with the true number of samples as its denominator, so that
// a rank with a short or an empty last batch does not bend it. Accumulates locally and cheaply;
// value() is collective. Sums are kept in double: 1 and N ranks agree to its precision. One thread.
//
//   ddprun::Mean loss, accuracy;
//   loss.add(batch_loss.item<double>() * n, n);
//   accuracy.add(correct, n);
//   ddprun::log::info("loss ", loss.value(context), ", accuracy ", accuracy.value(context));
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <limits>

#include "ddprun/context.h"

namespace ddprun {

class Mean {
 public:
  // The sum of a quantity over `count` samples.
  void add(double sum, std::int64_t count) {
    sum_ += sum;
    count_ += count;
  }

  struct Total {
    double sum = 0;
    std::int64_t count = 0;
  };
  // Over all ranks; collective.
  Total total(Context& context) const {
    torch::Tensor both =
        torch::tensor({sum_, static_cast<double>(count_)}, torch::dtype(torch::kFloat64));
    context.all_reduce(both);
    const double* values = both.const_data_ptr<double>();
    return {values[0], static_cast<std::int64_t>(values[1])};
  }
  // NaN when no rank has a sample; collective.
  double value(Context& context) const {
    const Total all = total(context);
    if (all.count == 0) return std::numeric_limits<double>::quiet_NaN();
    return all.sum / static_cast<double>(all.count);
  }

 private:
  double sum_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace ddprun
