// What Recoverable adds to a step, measured by itself: steps that make one all-reduce of a number, as they are and
// in step(), in turns. Run under ddprun on two ranks; rank 0 prints {"step_us": 2.1}: the difference of the medians.
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "ddprun/ddp.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"
#include "tests/bench/timing.h"
#include "worker_lib/examples/fashion_net.h"

namespace {

using ddprun::bench::median;

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 200;
constexpr int kSteps = 50;  // of a round

template <typename Step>
double us_per_step(const Step& step) {
  const auto begun = Clock::now();
  for (int i = 0; i < kSteps; ++i) step();
  return std::chrono::duration<double, std::micro>(Clock::now() - begun).count() / kSteps;
}

void measure(ddprun::Context& context) {
  ddprun::DistributedDataParallel<Net> model(std::make_shared<Net>(), context);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  ddprun::Recoverable recoverable(context, model, optimizer);
  std::int64_t epoch = 0;
  std::int64_t done = 0;
  double loss = 0;
  recoverable.keep(epoch, done, loss);
  recoverable.join();
  std::vector<torch::Tensor> number{torch::zeros({1})};
  const auto reduce = [&] {
    loss += 1;
    context.process_group()->allreduce(number)->wait();
  };
  std::vector<double> plain;
  std::vector<double> recovered;
  for (int round = 0; round < kRounds; ++round) {
    plain.push_back(us_per_step(reduce));
    recovered.push_back(us_per_step([&] { recoverable.step(reduce); }));
  }
  if (context.is_main_process()) {
    std::printf("{\"step_us\": %.3f, \"plain_us\": %.3f}\n", median(recovered) - median(plain),
                median(plain));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return ddprun::run(argc, argv, measure, {.backend = ddprun::Backend::kShm});
}
