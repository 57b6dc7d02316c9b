// What Recoverable adds to a step, measured by itself: the time that step() takes beyond what it calls, which is one
// all-reduce of a number. Run under ddprun with --standby on two ranks; rank 0 prints {"step_us": 2.1}, a median. Fails where
// its ranks cannot be replaced in place, since a step does nothing of what is measured then.
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "ddprun/ddp.h"
#include "ddprun/error.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"
#include "tests/bench/timing.h"
#include "worker_lib/examples/fashion_net.h"
#include "worker_lib/group/context_access.h"
#include "worker_lib/group/recovery.h"

namespace {

using ddprun::bench::median;

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 10'000;

double us(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

void measure(ddprun::Context& context) {
  ddprun::DistributedDataParallel<Net> model(std::make_shared<Net>(), context);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  ddprun::Recoverable recoverable(context, model, optimizer);
  std::int64_t epoch = 0;
  std::int64_t done = 0;
  double loss = 0;
  recoverable.keep(epoch, done, loss);
  recoverable.join();
  const torch::Tensor number = torch::zeros({1});
  Clock::duration inside{};
  std::vector<double> added;
  for (int i = 0; i < kSteps; ++i) {
    const auto begun = Clock::now();
    recoverable.step([&] {
      const auto called = Clock::now();
      loss += 1;
      context.all_reduce(number);
      inside = Clock::now() - called;
    });
    added.push_back(us(Clock::now() - begun - inside));
  }
  const auto recovery = ddprun::detail::ContextAccess::recovery(context);
  if (!recovery || !recovery->may_recover()) throw ddprun::UsageError("it cannot be replaced");
  if (context.is_main_process()) std::printf("{\"step_us\": %.3f}\n", median(added));
}

}  // namespace

int main(int argc, char** argv) {
  return ddprun::run(argc, argv, measure, {.backend = ddprun::Backend::kShm});
}
