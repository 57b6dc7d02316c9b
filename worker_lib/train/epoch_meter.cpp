#include "worker_lib/train/epoch_meter.h"

#include <string>
#include <utility>
#include <vector>

namespace ddprun {

BatchLoss::BatchLoss(const torch::Tensor& loss) {
  if (loss.device().is_cpu()) {
    value = loss.item<double>();
  } else {
    on_gpu = loss.detach();
  }
}

void EpochMeter::add(const BatchLoss& loss, const Metrics& metrics, std::int64_t count) {
  const auto weight = static_cast<double>(count);
  if (loss.on_gpu.defined()) {
    const torch::Tensor weighted = loss.on_gpu.to(torch::kFloat64) * weight;
    loss_on_gpu_ = loss_on_gpu_.defined() ? loss_on_gpu_ + weighted : weighted;
  } else {
    sums_.loss += loss.value * weight;
  }
  sums_.count += count;
  for (const auto& [name, value] : metrics) sums_.metrics[name] += value * weight;
}

EpochSums EpochMeter::over_ranks(Context& context) const {
  EpochSums all = sums_;
  if (loss_on_gpu_.defined()) all.loss += loss_on_gpu_.item<double>();
  std::vector<std::string> names;
  for (const auto& entry : all.metrics) names.push_back(entry.first);
  names = context.broadcast_object(std::move(names));

  std::vector<double> sums{static_cast<double>(all.count), all.loss};
  for (const std::string& name : names) sums.push_back(all.metrics[name]);
  context.all_reduce(
      torch::from_blob(sums.data(), {static_cast<std::int64_t>(sums.size())}, torch::kFloat64));
  all = {.loss = sums[1], .metrics = {}, .count = static_cast<std::int64_t>(sums[0])};
  for (std::size_t i = 0; i < names.size(); ++i) all.metrics[names[i]] = sums[i + 2];
  return all;
}

void EpochMeter::continue_from(EpochSums sums) {
  sums_ = std::move(sums);
  loss_on_gpu_.reset();
}

}  // namespace ddprun
