// Metrics over all ranks: each adds up locally and cheaply, and is reduced with the true numbers of
// samples, so that a rank with a short or an empty last batch does not bend it. Counts are exact: 1 and
// N ranks that have seen the same samples give the same accuracy; a mean differs by the rounding of a
// sum of doubles. One thread.
//
//   ddprun::Mean loss;
//   ddprun::Accuracy top1, top5(5);
//   for (auto& batch : loader) {
//     auto scores = model(batch.data);
//     loss.add(cross_entropy(scores, batch.target, Options().reduction(torch::kNone)));
//     top1.add(scores, batch.target);
//   }
//   ddprun::log::info("loss ", loss.value(context), ", accuracy ", top1.value(context));
//
// Adding is local. Everything that takes a Context is collective: call it on every rank, also on
// one that has seen nothing. For data without duplicates see SamplerOptions::pad. Tensors may be on
// any device; adding waits for it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "ddprun/context.h"

namespace ddprun {

// A mean, weighted by numbers of samples: of a loss, or of anything else.
class Mean {
 public:
  // The sum of a quantity over `count` samples.
  void add(double sum, std::int64_t count) {
    sum_ += sum;
    count_ += count;
  }
  // One value per sample, of any shape.
  void add(const torch::Tensor& values);
  // The mean of a batch, as a loss is by default: a tensor of one element.
  void add_mean(const torch::Tensor& mean, std::int64_t count) {
    add(mean.item<double>() * static_cast<double>(count), count);
  }
  void reset() { *this = {}; }

  struct Total {
    double sum = 0;
    std::int64_t count = 0;
  };
  Total total(Context& context) const;
  // NaN when no rank has a sample.
  double value(Context& context) const;

 private:
  double sum_ = 0;
  std::int64_t count_ = 0;
};

// The part of the samples whose class is among the k highest scores. Of equal scores that with the
// lower number is the higher one, as argmax() has it; a NaN is higher than any number, and a sample
// whose own score is NaN is wrong.
class Accuracy {
 public:
  explicit Accuracy(int k = 1);

  // Scores [n, classes], targets [n] of an integer type below `classes`. n may be 0.
  void add(const torch::Tensor& scores, const torch::Tensor& target);
  void reset() { correct_ = {}; }

  // 0 to 1; NaN when no rank has a sample.
  double value(Context& context) const { return correct_.value(context); }

 private:
  std::int64_t k_;
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
  Scores micro;                       // of all decisions together: each is the accuracy
  Scores macro;                       // the mean over classes
  Scores weighted;                    // the same by support
  double accuracy = 0;                // NaN without samples
};

// From counts[target * classes + predicted].
ClassScores scores_from(const std::vector<std::int64_t>& counts, std::int64_t classes);

// How often a sample of one class was taken for another.
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(std::int64_t classes);

  // Predicted classes [n] of an integer type, or scores [n, classes] of which the highest counts;
  // targets [n]. Throws UsageError for one that is no class.
  void add(const torch::Tensor& predicted, const torch::Tensor& target);
  void reset() { counts_ = torch::zeros_like(counts_); }

  // [classes, classes] int64 on the CPU: row by target, column by prediction.
  torch::Tensor counts(Context& context) const;
  // Precision, recall and F1.
  ClassScores scores(Context& context) const;

 private:
  std::int64_t classes_;
  torch::Tensor counts_;
};

}  // namespace ddprun
