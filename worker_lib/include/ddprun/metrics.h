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

  double local_sum() const { return sum_; }
  std::int64_t local_count() const { return count_; }

  // Over all ranks; NaN when no rank has a sample.
  double value(Context& context) const {
    torch::Tensor both =
        torch::tensor({sum_, static_cast<double>(count_)}, torch::dtype(torch::kFloat64));
    context.all_reduce(both);
    const double* values = both.const_data_ptr<double>();
    return values[1] > 0 ? values[0] / values[1] : std::numeric_limits<double>::quiet_NaN();
  }

 private:
  double sum_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace ddprun
