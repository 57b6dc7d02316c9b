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

Scores scores_of(const torch::Tensor& three) {
  return {three[0].item<double>(), three[1].item<double>(), three[2].item<double>()};
}

}  // namespace

namespace detail {

void DeferredSum::add(const torch::Tensor& number) {
  if (number.is_cpu()) return add(number.item<double>());
  const torch::Tensor more = number.detach().to(torch::kFloat64).reshape({});
  if (there_.defined() && there_.device() != more.device()) {
    here_ += there_.item<double>();
    there_.reset();
  }
  there_ = there_.defined() ? there_ + more : more;
}

double DeferredSum::value() const {
  return there_.defined() ? here_ + there_.item<double>() : here_;
}

torch::Tensor ClassCheck::checked(const torch::Tensor& values, std::int64_t classes,
                                  const char* what) {
  if (!c10::isIntegralType(values.scalar_type(), /*includeBool=*/false)) {
    throw UsageError(std::string("the ") + what + " of a metric are classes, of an integer type");
  }
  const torch::Tensor numbers = values.to(torch::kInt64);
  if (numbers.numel() == 0) return numbers;
  ClassCheck now;
  now.range_ = torch::stack({numbers.min(), numbers.max()});
  now.classes_ = classes;
  now.what_ = what;
  if (numbers.is_cpu()) {
    now.check();
    return numbers;
  }
  if (range_.defined() && (range_.device() != now.range_.device() || classes_ != classes)) {
    check();
  } else if (range_.defined()) {
    now.range_ = torch::stack(
        {torch::minimum(range_[0], now.range_[0]), torch::maximum(range_[1], now.range_[1])});
  }
  *this = now;
  return numbers.clamp(0, classes - 1);
}

void ClassCheck::check() const {
  if (!range_.defined()) return;
  const torch::Tensor range = range_.cpu();
  const auto low = range[0].item<std::int64_t>();
  const auto high = range[1].item<std::int64_t>();
  if (low >= 0 && high < classes_) return;
  throw UsageError("among the " + std::string(what_) + " of a metric is " +
                   std::to_string(low < 0 ? low : high) + ", and its classes are 0 to " +
                   std::to_string(classes_ - 1));
}

}  // namespace detail

void Mean::update(const torch::Tensor& values) {
  sum_.add(values.detach().sum(torch::kFloat64));
  count_ += values.numel();
}

void Mean::update_mean(const torch::Tensor& mean, std::int64_t count) {
  sum_.add(mean.detach().to(torch::kFloat64) * static_cast<double>(count));
  count_ += count;
}

Mean::Total Mean::total(Context& context) const {
  const torch::Tensor all =
      torch::tensor({sum_.value(), static_cast<double>(count_)}, torch::kFloat64);
  context.all_reduce(all);
  return {all[0].item<double>(), all[1].item<std::int64_t>()};
}

double Mean::compute(Context& context) const {
  const Total all = total(context);
  if (all.count == 0) return std::numeric_limits<double>::quiet_NaN();
  return all.sum / static_cast<double>(all.count);
}

Accuracy::Accuracy(int k) : k_(k) {
  if (k < 1) throw UsageError("an accuracy is over the k highest scores, k at least 1");
}

void Accuracy::update(const torch::Tensor& scores, const torch::Tensor& target) {
  if (scores.dim() != 2) {
    throw UsageError("an accuracy needs scores of shape [n, classes], not " +
                     c10::str(scores.sizes()));
  }
  check_one_target_each(scores.size(0), target);
  const torch::NoGradGuard no_grad;
  const torch::Tensor column = targets_.checked(target, scores.size(1), "targets").unsqueeze(1);
  const torch::Tensor own = scores.gather(1, column);
  const torch::Tensor number = torch::arange(scores.size(1), column.options());
  // What stands before the own score. Not "greater": a NaN is neither greater nor less.
  const torch::Tensor is_before =
      (scores <= own).logical_not_().logical_or_((scores == own).logical_and_(number < column));
  const torch::Tensor is_correct = is_before.sum(1) < k_;
  correct_.update(is_correct);
}

ConfusionMatrix::ConfusionMatrix(std::int64_t classes)
    : classes_(classes), counts_(torch::zeros({classes, classes}, torch::kInt64)) {
  if (classes < 1) throw UsageError("a confusion matrix needs at least one class");
}

void ConfusionMatrix::update(const torch::Tensor& predicted, const torch::Tensor& target) {
  const bool are_scores = predicted.dim() == 2;
  if (are_scores && predicted.size(1) != classes_) {
    throw UsageError("a confusion matrix of " + std::to_string(classes_) +
                     " classes got scores of shape " + c10::str(predicted.sizes()));
  }
  torch::Tensor chosen = are_scores ? predicted.argmax(1) : predicted;
  if (chosen.dim() != 1) throw UsageError("predictions are of shape [n] or [n, classes]");
  check_one_target_each(chosen.size(0), target);
  chosen = predictions_.checked(chosen, classes_, "predictions");
  const torch::Tensor wanted = targets_.checked(target, classes_, "targets");
  const torch::Tensor cells = wanted * classes_ + chosen;
  // Not bincount(), for whose size the host waits for a GPU. A new tensor: a copy of this matrix counts
  // for itself.
  counts_ = counts_.to(cells.device())
                .view(-1)
                .scatter_add(0, cells, torch::ones_like(cells))
                .view({classes_, classes_});
}

torch::Tensor ConfusionMatrix::compute(Context& context) const {
  predictions_.check();
  targets_.check();
  torch::Tensor all = counts_.cpu().clone();
  context.all_reduce(all);
  return all;
}

ClassScores ConfusionMatrix::scores(Context& context) const {
  const torch::Tensor counts = compute(context).to(torch::kFloat64);
  const torch::Tensor hits = counts.diag();
  const torch::Tensor actual = counts.sum(1);
  const torch::Tensor predicted = counts.sum(0);
  // A ratio without a denominator is 0: so is its numerator.
  const torch::Tensor ratios =
      torch::stack({hits / predicted.clamp_min(1), hits / actual.clamp_min(1),
                    2 * hits / (predicted + actual).clamp_min(1)});
  const torch::Tensor samples = actual.sum();
  const torch::Tensor present = (actual + predicted > 0).sum().clamp_min(1);
  ClassScores result;
  for (const torch::Tensor& of_one : ratios.unbind(1)) result.of_class.push_back(scores_of(of_one));
  const torch::Tensor support = actual.to(torch::kInt64);
  const auto* const first = support.const_data_ptr<std::int64_t>();
  result.support.assign(first, first + classes_);
  result.macro = scores_of(ratios.sum(1) / present);
  result.weighted = scores_of((ratios * actual).sum(1) / samples.clamp_min(1));
  result.accuracy = (hits.sum() / samples).item<double>();
  return result;
}

}  // namespace ddprun
