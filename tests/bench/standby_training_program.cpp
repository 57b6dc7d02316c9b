// standby_training.py as a program of worker_lib: a training with the set-up of examples/train, data and
// checkpoint, that never ends. Prints when each process reached its first line after joining, the end of
// its set-up, and its first step, and then how long a later one took:
//
//   round rank pid "line" | "setup" | "step" nanoseconds of CLOCK_MONOTONIC
//   round rank pid "later" nanoseconds
//
//   ddprun … standby_training_program FOLDER
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/ddp.h"
#include "ddprun/optim.h"
#include "ddprun/run.h"
#include "ddprun/sampler.h"
#include "worker_lib/examples/fashion_mnist.h"
#include "worker_lib/examples/fashion_net.h"

namespace {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

constexpr int kLater = 5;

void say(const ddprun::Context& context, const char* what, Clock::duration when) {
  const std::string line = std::to_string(context.environment().restart_count) + " " +
                           std::to_string(context.rank()) + " " + std::to_string(::getpid()) + " " +
                           what + " " + std::to_string(when.count()) + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::perror("stdout");
}

void train(ddprun::Context& context, const std::string& folder) {
  const auto begun = Clock::now();
  const std::string data_folder = "/usr/share/datasets/fashion-mnist";
  const FashionMnist data = read_fashion_mnist(data_folder, Split::kTrain);
  const FashionMnist test = read_fashion_mnist(data_folder, Split::kTest);
  torch::manual_seed(1);
  ddprun::DistributedSampler sampler(data.size(), context);
  ddprun::DistributedDataParallel model(std::make_shared<Net>(), context);
  ddprun::optim::SGD optimizer(model.parameters(), ddprun::optim::SGDOptions(0.01).momentum(0.9));
  ddprun::Checkpointer checkpoints(context, folder + "/checkpoints");
  auto at = checkpoints.resume(model, optimizer).value_or(ddprun::TrainingPosition{});
  const auto is_set_up = Clock::now();
  for (int made = 0;; ++made) {
    const auto step_begun = Clock::now();
    sampler.set_epoch(at.epoch);
    const auto batch = as_tensor(*sampler.next(64));
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model(data.pixels(batch)), data.targets(batch)).backward();
    optimizer.step();
    context.progress(++at.step);
    const auto stepped = Clock::now();
    if (made == 0) {
      say(context, "line", begun.time_since_epoch());
      say(context, "setup", is_set_up.time_since_epoch());
      say(context, "step", stepped.time_since_epoch());
      checkpoints.save(model, optimizer, at);
    }
    if (made == kLater) say(context, "later", stepped - step_begun);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { train(context, argv[1]); },
                     {.keep_freed_memory = true});
}
