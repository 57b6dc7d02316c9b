// Callbacks: what a program adds to the Trainer's loop (trainer.h). Called on the training thread,
// in the order in which they were added, on every rank or on the main process alone. Nothing of
// Torch here.
//
//   struct Print : ddprun::Callback {
//     void on_evaluation_end(const ddprun::TrainingView& training) override {
//       std::printf("%.4f\n", training.history().evaluations.back().metrics.at("accuracy"));
//     }
//   };
//   trainer.add_callback(std::make_shared<Print>(), ddprun::Callback::On::kMainProcess);
//
// One on every rank may use collectives; what it throws leaves fit() on that rank as it is. One on the
// main process must not, since the others are not there; what it throws ends all ranks together,
// within about half a second and before the next evaluation or checkpoint: the main process with what
// was thrown, the others with a Failure that has its words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ddprun/history.h"
#include "ddprun/tensorboard.h"

namespace ddprun {

// What a callback can look at. Valid during the call.
class TrainingView {
 public:
  virtual bool is_main_process() const = 0;
  // From 0: the one that is running or has just ended; before and after all: the next one.
  virtual std::int64_t epoch() const = 0;
  // There will be at most so many; 0: as many as TrainerOptions::max_steps take.
  virtual std::int64_t epochs() const = 0;
  virtual std::int64_t step() const = 0;  // optimizer steps done
  // This rank's, of the last step: the mean over its window of batches; before the first step of a
  // resumed run rank 0's, of the step that it goes on after; before all NaN. On a GPU reading it waits
  // for the GPU: not after every step.
  virtual double loss() const = 0;
  virtual double learning_rate() const = 0;  // of the first parameter group, in the next step
  // With the epoch or the evaluation that has just ended as the last one.
  virtual const History& history() const = 0;

 protected:
  ~TrainingView() = default;
};

class Callback {
 public:
  virtual ~Callback() = default;

  virtual void on_train_begin(const TrainingView&) {}  // after resuming
  virtual void on_epoch_begin(const TrainingView&) {}  // also when resumed in its middle
  virtual void on_step_end(const TrainingView&) {}     // after the optimizer's step and schedules
  virtual void on_evaluation_end(const TrainingView&) {}
  virtual void on_epoch_end(const TrainingView&) {}  // of complete epochs, after the evaluation
  virtual void on_train_end(const TrainingView&) {}  // however fit() ends, but for a throw

  // Where it is called.
  enum class On { kAllRanks, kMainProcess };
};

// Scalars for TensorBoard (tensorboard.h): "loss/step" and "learning_rate" every so many steps,
// "loss/epoch" and "train/<metric>" after each epoch, "evaluation/<metric>" after each evaluation.
//
//   trainer.add_callback(std::make_shared<ddprun::TensorBoard>("runs/first"),
//                        ddprun::Callback::On::kMainProcess);
struct TensorBoardOptions {
  std::int64_t every_steps = 10;
};
class TensorBoard : public Callback {
 public:
  explicit TensorBoard(std::string folder, const TensorBoardOptions& options = {});

  void on_train_begin(const TrainingView& training) override;
  void on_step_end(const TrainingView& training) override;
  void on_evaluation_end(const TrainingView& training) override;
  void on_epoch_end(const TrainingView& training) override;

 private:
  std::string folder_;
  TensorBoardOptions options_;
  std::optional<SummaryWriter> events_;
};

}  // namespace ddprun
