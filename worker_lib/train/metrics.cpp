#include "ddprun/metrics.h"

#include <algorithm>
#include <limits>
#include <string>

namespace ddprun {
namespace {

void check_one_target_each(std::int64_t samples, const torch::Tensor& target) {
  if (target.dim() == 1 && target.size(0) == samples) return;
  throw UsageError("a metric got " + std::to_string(samples) +
                   " predictions and targets of shape " + c10::str(target.sizes()) +
                   ": it needs one target for each");
}

void check_classes(const torch::Tensor& values, std::int64_t classes, const char* what) {
  if (!c10::isIntegralType(values.scalar_type(), /*includeBool=*/false)) {
    throw UsageError(std::string("the ") + what + " of a metric are classes, of an integer type");
  }
  if (values.numel() == 0) return;
  const torch::Tensor numbers = values.to(torch::kInt64);
  const auto low = numbers.min().item<std::int64_t>();
  const auto high = numbers.max().item<std::int64_t>();
  if (low >= 0 && high < classes) return;
  throw UsageError("among the " + std::string(what) + " of a metric is " +
                   std::to_string(low < 0 ? low : high) + ", and its classes are 0 to " +
                   std::to_string(classes - 1));
}

double ratio(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

Scores scores_of(std::int64_t hits, std::int64_t predicted, std::int64_t actual) {
  return {.precision = ratio(hits, predicted),
          .recall = ratio(hits, actual),
          .f1 = ratio(2 * hits, predicted + actual)};
}

void add_weighted(Scores& sum, const Scores& scores, double weight) {
  sum.precision += weight * scores.precision;
  sum.recall += weight * scores.recall;
  sum.f1 += weight * scores.f1;
}

void divide(Scores& scores, double by) {
  if (by == 0) return;
  scores.precision /= by;
  scores.recall /= by;
  scores.f1 /= by;
}

}  // namespace

void Mean::add(const torch::Tensor& values) {
  add(values.detach().sum(torch::kFloat64).item<double>(), values.numel());
}

Mean::Total Mean::total(Context& context) const {
  const torch::Tensor all = torch::tensor({sum_, static_cast<double>(count_)}, torch::kFloat64);
  context.all_reduce(all);
  return {all[0].item<double>(), all[1].item<std::int64_t>()};
}

double Mean::value(Context& context) const {
  const Total all = total(context);
  if (all.count == 0) return std::numeric_limits<double>::quiet_NaN();
  return all.sum / static_cast<double>(all.count);
}

Accuracy::Accuracy(int k) : k_(k) {
  if (k < 1) throw UsageError("an accuracy is over the k highest scores, k at least 1");
}

void Accuracy::add(const torch::Tensor& scores, const torch::Tensor& target) {
  if (scores.dim() != 2) {
    throw UsageError("an accuracy needs scores of shape [n, classes], not " +
                     c10::str(scores.sizes()));
  }
  check_one_target_each(scores.size(0), target);
  check_classes(target, scores.size(1), "targets");
  const torch::NoGradGuard no_grad;
  const torch::Tensor column = target.to(torch::kInt64).unsqueeze(1);
  const torch::Tensor own = scores.gather(1, column);
  const torch::Tensor number = torch::arange(scores.size(1), column.options());
  // What stands before the own score. Not "greater": a NaN is neither greater nor less.
  const torch::Tensor is_before =
      (scores <= own).logical_not_().logical_or_((scores == own).logical_and_(number < column));
  const torch::Tensor is_correct = is_before.sum(1) < k_;
  correct_.add(static_cast<double>(is_correct.sum().item<std::int64_t>()), is_correct.numel());
}

ConfusionMatrix::ConfusionMatrix(std::int64_t classes)
    : classes_(classes), counts_(torch::zeros({classes, classes}, torch::kInt64)) {
  if (classes < 1) throw UsageError("a confusion matrix needs at least one class");
}

void ConfusionMatrix::add(const torch::Tensor& predicted, const torch::Tensor& target) {
  const bool are_scores = predicted.dim() == 2;
  if (are_scores && predicted.size(1) != classes_) {
    throw UsageError("a confusion matrix of " + std::to_string(classes_) +
                     " classes got scores of shape " + c10::str(predicted.sizes()));
  }
  const torch::Tensor chosen = are_scores ? predicted.argmax(1) : predicted;
  if (chosen.dim() != 1) throw UsageError("predictions are of shape [n] or [n, classes]");
  check_one_target_each(chosen.size(0), target);
  check_classes(chosen, classes_, "predictions");
  check_classes(target, classes_, "targets");
  const torch::Tensor cells = target.to(torch::kInt64) * classes_ + chosen.to(torch::kInt64);
  // A new tensor: a copy of this matrix counts for itself.
  counts_ =
      counts_ + torch::bincount(cells, {}, classes_ * classes_).cpu().view({classes_, classes_});
}

torch::Tensor ConfusionMatrix::counts(Context& context) const {
  torch::Tensor all = counts_.clone();
  context.all_reduce(all);
  return all;
}

ClassScores ConfusionMatrix::scores(Context& context) const {
  const torch::Tensor all = counts(context);
  const auto* const first = all.const_data_ptr<std::int64_t>();
  return scores_from({first, first + all.numel()}, classes_);
}

ClassScores scores_from(const std::vector<std::int64_t>& counts, std::int64_t classes) {
  const auto cell = [&](std::int64_t target, std::int64_t predicted) {
    return counts[static_cast<std::size_t>(target * classes + predicted)];
  };
  ClassScores result;
  std::int64_t samples = 0, hits = 0, present = 0;
  for (std::int64_t c = 0; c < classes; ++c) {
    std::int64_t actual = 0, predicted = 0;
    for (std::int64_t other = 0; other < classes; ++other) {
      actual += cell(c, other);
      predicted += cell(other, c);
    }
    const Scores scores = scores_of(cell(c, c), predicted, actual);
    result.of_class.push_back(scores);
    result.support.push_back(actual);
    samples += actual;
    hits += cell(c, c);
    if (actual + predicted > 0) ++present;
    add_weighted(result.macro, scores, 1);
    add_weighted(result.weighted, scores, static_cast<double>(actual));
  }
  divide(result.macro, static_cast<double>(present));
  divide(result.weighted, static_cast<double>(samples));
  result.micro = scores_of(hits, samples, samples);
  result.accuracy = samples == 0 ? std::numeric_limits<double>::quiet_NaN() : ratio(hits, samples);
  return result;
}

}  // namespace ddprun
