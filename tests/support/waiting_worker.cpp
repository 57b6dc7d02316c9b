// ddprun_waiting_worker BACKEND FAULT: ten steps with an all_reduce each, and then the last rank does not come to
// the next one as the others do, because it
//
//   waits      for a signal, as in a data loader that is stuck
//   loops      without end
//   stops      itself by SIGSTOP
//   differs    and makes a broadcast instead
//   evaluates  for three seconds, and comes then
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "ddprun/run.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string backend = argv[1];
  const std::string fault = argv[2];
  ddprun::ContextOptions options;
  options.backend = backend == "gloo" ? ddprun::Backend::kGloo : ddprun::Backend::kShm;
  return ddprun::run(
      argc, argv,
      [&](ddprun::Context& context) {
        for (int step = 1; step <= 10; ++step) {
          context.all_reduce(torch::ones({8}));
          context.progress(step);
        }
        if (context.rank() == context.world_size() - 1) {
          if (fault == "waits") ::pause();
          for (volatile bool goes_on = true; fault == "loops" && goes_on;) {
          }
          if (fault == "stops") ::raise(SIGSTOP);
          if (fault == "differs") context.broadcast(torch::ones({8}), 0);
          if (fault == "evaluates") std::this_thread::sleep_for(std::chrono::seconds(3));
        }
        context.all_reduce(torch::ones({8}));
      },
      options);
}
