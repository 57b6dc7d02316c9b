#include "ddprun/callbacks.h"

#include <utility>

#include "ddprun/error.h"

namespace ddprun {

TensorBoard::TensorBoard(std::string folder, const TensorBoardOptions& options)
    : folder_(std::move(folder)), options_(options) {
  if (options.every_steps < 1) throw UsageError("TensorBoard: every_steps must be at least 1");
}

void TensorBoard::on_train_begin(const TrainingView& training) {
  SummaryWriterOptions options;
  if (training.step() > 0) options.purge_step = training.step() + 1;
  events_.emplace(folder_, options);
}

void TensorBoard::on_step_end(const TrainingView& training) {
  if (training.step() % options_.every_steps != 0) return;
  events_->add_scalar("loss/step", training.loss(), training.step());
  events_->add_scalar("learning_rate", training.learning_rate(), training.step());
}

void TensorBoard::on_evaluation_end(const TrainingView& training) {
  const EvaluationRecord& record = training.history().evaluations.back();
  for (const auto& [name, value] : record.metrics) {
    events_->add_scalar("evaluation/" + name, value, record.step);
  }
}

void TensorBoard::on_epoch_end(const TrainingView& training) {
  const EpochRecord& record = training.history().epochs.back();
  events_->add_scalar("loss/epoch", record.loss, record.step);
  for (const auto& [name, value] : record.metrics) {
    events_->add_scalar("train/" + name, value, record.step);
  }
}

}  // namespace ddprun
