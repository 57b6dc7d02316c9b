// Metrics over all ranks: each adds up locally and cheaply, and is reduced with the true numbers of
// samples, so that a rank with a short or an empty last batch does not bend it. Counts are exact: 1 and
// N ranks that have seen the same samples give the same accuracy; a mean differs by the rounding of a
// sum of doubles. One thread.
//
//   ddprun::Mean loss;
//   ddprun::Accuracy top1, top5(5);
//   for (auto& batch : loader) {
//     auto scores = model(batch.data);
//     loss.update(cross_entropy(scores, batch.target, Options().reduction(torch::kNone)));
//     top1.update(scores, batch.target);
//   }
//   ddprun::log::info("loss ", loss.compute(context), ", accuracy ", top1.compute(context));
//
// update() is local. Everything that takes a Context is collective: call it on every rank, also on
// one that has seen nothing. For data without duplicates see
// DistributedSamplerOptions::allow_duplicates. Tensors may be on any device. On a GPU update() adds up
// there and does not wait; reading does, and finds a target there that is no class.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "ddprun/context.h"

namespace ddprun {

namespace detail {

// What was added up here and on a device, which is waited for when it is read. Copies count for
// themselves.
class DeferredSum {
 public:
  void add(double number) { here_ += number; }
  void add(const torch::Tensor& number);  // of one element
  double value() const;

 private:
  double here_ = 0;
  torch::Tensor there_;  // none: nothing so far
};

// Whether all classes that came were some: on the CPU checked at once, else when it is asked for. Throws
// UsageError.
class ClassCheck {
 public:
  // `what`: "targets". Gives them as int64, on a device those outside as one that is a class.
  torch::Tensor checked(const torch::Tensor& values, std::int64_t classes, const char* what);
  void check() const;

 private:
  torch::Tensor range_;  // on the device: the lowest and the highest so far
  std::int64_t classes_ = 0;
  const char* what_ = "";
};

}  // namespace detail

// A mean, weighted by numbers of samples: of a loss, or of anything else.
class Mean {
 public:
  // The sum of a quantity over `count` samples.
  void update(double sum, std::int64_t count) {
    sum_.add(sum);
    count_ += count;
  }
  // One value per sample, of any shape.
  void update(const torch::Tensor& values);
  // The mean of a batch, as a loss is by default: a tensor of one element.
  void update_mean(const torch::Tensor& mean, std::int64_t count);
  void reset() { *this = {}; }

  struct Total {
    double sum = 0;
    std::int64_t count = 0;
  };
  Total total(Context& context) const;
  // NaN when no rank has a sample.
  double compute(Context& context) const;

 private:
  detail::DeferredSum sum_;
  std::int64_t count_ = 0;
};

// The part of the samples whose class is among the k highest scores. Of equal scores that with the
// lower number is the higher one, as argmax() has it; a NaN is higher than any number, and a sample
// whose own score is NaN is wrong.
class Accuracy {
 public:
  explicit Accuracy(int k = 1);

  // Scores [n, classes], targets [n] of an integer type below `classes`. n may be 0.
  void update(const torch::Tensor& scores, const torch::Tensor& target);
  void reset() { *this = Accuracy(static_cast<int>(k_)); }

  // 0 to 1; NaN when no rank has a sample.
  double compute(Context& context) const {
    targets_.check();
    return correct_.compute(context);
  }

 private:
  std::int64_t k_;
  detail::ClassCheck targets_;
  Mean correct_;
};

struct Scores {
  double precision = 0;
  double recall = 0;
  double f1 = 0;
};

// As scikit-learn's precision_recall_fscore_support: a ratio without a denominator is 0; a class
// that is neither among the targets nor among the predictions does not count in an average.
struct ClassScores {
  std::vector<Scores> of_class;
  std::vector<std::int64_t> support;  // samples of each class
  Scores macro;                       // the mean over classes
  Scores weighted;                    // the same by support
  double accuracy = 0;                // NaN without samples; also each of the micro averages
};

// How often a sample of one class was taken for another.
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(std::int64_t classes);

  // Predicted classes [n] of an integer type, or scores [n, classes] of which the highest counts;
  // targets [n]. Throws UsageError for one that is no class.
  void update(const torch::Tensor& predicted, const torch::Tensor& target);
  void reset() { *this = ConfusionMatrix(classes_); }

  // [classes, classes] int64 on the CPU: row by target, column by prediction.
  torch::Tensor compute(Context& context) const;
  // Precision, recall and F1.
  ClassScores scores(Context& context) const;

 private:
  std::int64_t classes_;
  torch::Tensor counts_;  // where the predictions are
  detail::ClassCheck predictions_, targets_;
};

}  // namespace ddprun
