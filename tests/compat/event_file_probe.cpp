// Writes TensorBoard event files for tensorboard_test.py.
//
//   event_file_probe FOLDER            scalars of steps 1 to 100, and ends by SIGKILL
//   event_file_probe FOLDER STEP       the same run resumed at STEP: to step 200
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

#include "ddprun/tensorboard.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  ddprun::SummaryWriterOptions options;
  if (argc > 2) options.purge_step = std::atoll(argv[2]);
  const std::int64_t first = options.purge_step.value_or(1);
  const std::int64_t last = options.purge_step ? 200 : 100;
  ddprun::SummaryWriter events(argv[1], options);
  for (std::int64_t step = first; step <= last; ++step) {
    // The runs differ, so that the reader sees whose value it has.
    const double sign = options.purge_step ? -1 : 1;
    events.add_scalar("loss/train", sign / static_cast<double>(step), step);
    if (step % 10 == 0) events.add_scalar("größe \"x\"", sign * static_cast<double>(step), step);
  }
  events.add_scalar("not a number", std::nan(""), last);
  events.add_scalar("large step", 1, std::int64_t{1} << 40);
  if (!options.purge_step) ::kill(::getpid(), SIGKILL);
}
