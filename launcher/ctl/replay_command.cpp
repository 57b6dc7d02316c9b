// ddpctl replay: a recorded job, step by step, with the decisions and their reasons.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "launcher/ctl/ddpctl.h"
#include "launcher/ctl/replay.h"
#include "launcher/ctl/subcommand.h"

namespace ddprun::cli {
namespace {

enum ExitCode : int { kDone = 0, kFailed = 1, kDamaged = 3, kDiffers = 4 };

constexpr const char* kExitCodes = R"(Exit codes:
  0  played to its end, or to where the file is cut off
  1  the file cannot be read
  2  wrong usage
  3  a line of it is damaged, or it is no recording
  4  this version decides otherwise than the one that recorded it
)";

int run(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return report(error_from_errno(errno, path), kFailed);
  }
  Replay replay;
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    // The agent was killed, or the disk was full: the last line is incomplete.
    const bool is_cut_off = file.eof();
    const Replay::Told told = replay.line(line);
    if (told.is_damaged && is_cut_off && number > 1) {
      std::printf("line %zu is cut off: the recording ends here\n", number);
      break;
    }
    if (told.is_damaged) {
      std::fflush(stdout);
      return report({ErrorCode::kDataLoss,
                     path + ", line " + std::to_string(number) + ": " + told.text +
                         "; give a file that ddprun --record has written",
                     {}},
                    kDamaged);
    }
    std::fputs(told.text.c_str(), stdout);
  }
  if (number == 0) {
    return report({ErrorCode::kDataLoss, path + " is empty; give a file of ddprun --record", {}},
                  kDamaged);
  }
  std::fputs(replay.end().c_str(), stdout);
  return replay.has_differed() ? kDiffers : kDone;
}

}  // namespace

std::function<int()> add_replay_command(CLI::App& app) {
  Subcommand replay(
      app, "replay",
      "Replay what ddprun --record has written: the same decisions, step by step, with the reason "
      "of each. Nothing is started.");
  replay.footer(kExitCodes);
  const auto held = std::make_shared<std::string>();
  replay.option("FILE", *held, "the recording of one node").required();
  return [held] { return run(*held); };
}

}  // namespace ddprun::cli
