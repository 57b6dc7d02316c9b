// ddpctl replay: a recorded job, step by step, with the decisions and their reasons.
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>

#include "launcher/ctl/ddpctl.h"
#include "launcher/ctl/replay.h"

namespace ddprun::cli {
namespace {

enum ExitCode : int { kDone = 0, kFailed = 1, kDamaged = 3, kDiffers = 4 };

}  // namespace

int replay(const ReplayArguments& arguments) {
  const std::string& path = arguments.file;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return report(error_from_errno(errno, path), kFailed);
  }
  Replay job;
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    // The agent was killed, or the disk was full: the last line is incomplete.
    const bool is_cut_off = file.eof();
    const Replay::Told told = job.line(line);
    if (told.is_damaged && is_cut_off && number > 1) {
      std::printf("line %zu is cut off: the recording ends here\n", number);
      break;
    }
    if (told.is_damaged) {
      std::fflush(stdout);
      return report(path + ", line " + std::to_string(number) + ": " + told.text +
                        "; give a file that ddprun --record has written",
                    kDamaged);
    }
    std::fputs(told.text.c_str(), stdout);
  }
  if (number == 0) {
    return report(path + " is empty; give a file of ddprun --record", kDamaged);
  }
  std::fputs(job.end().c_str(), stdout);
  return job.has_differed() ? kDiffers : kDone;
}

}  // namespace ddprun::cli
