#include "launcher/ctl/replay.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <variant>

#include "launcher/ctl/core_text.h"
#include "launcher/ctl/ddpctl.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::cli {
namespace {

using agent::in_words;
using agent::state_of;
using State = rdzv::LeaderView::State;

std::string nodes(int count) { return counted(count, "node"); }

// What a leader goes by that has begun to gather nodes or to open a round.
std::string facts_of(const rdzv::LeaderView& view) {
  if (view.state != State::kOpening && view.state != State::kGathering) return "";
  return ", " + nodes(view.ready) + " of " + std::to_string(view.min_nodes) + " to " +
         std::to_string(view.max_nodes) + " ready, " + std::to_string(view.restarts) + " of " +
         std::to_string(view.max_restarts) + " restarts used";
}

constexpr const char* kIndent = "              ";

std::string because(std::string_view why) {
  return why.empty() ? "" : kIndent + ("because " + std::string(why)) + "\n";
}

enum ReplayCode : int { kReplayed = 0, kNotRead = 1, kDamaged = 3, kDiffers = 4 };

}  // namespace

Replay::Told Replay::line(std::string_view line) {
  const auto step = agent::recorded_step_from(line);
  if (!step) return {step.error().message, /*is_damaged=*/true};
  if (!began_us_) began_us_ = step->unix_us;
  recorded_ = step->decisions;
  char at[32];
  std::snprintf(at, sizeof at, "%+10.6f s  ",
                static_cast<double>(step->unix_us - *began_us_) / 1e6);
  return {at + std::visit([this](const auto& what) { return on(what); }, step->what), false};
}

std::string Replay::on(const agent::NodeBegan& began) {
  group_.emplace(began.config);
  return "agent   begins with " + std::to_string(began.config.local_world_size) + " workers" +
         (began.config.hosts_leader ? ", and leads the job\n" : "\n");
}

std::string Replay::on(const agent::RoundBegan& began) {
  config_ = began.config;
  if (began.resumption) {
    round_.emplace(config_, *began.resumption);
  } else {
    round_.emplace(config_);
  }
  return "leader  begins: job " + printable(config_.run_id) + ", " +
         std::to_string(config_.min_nodes) + " to " + nodes(config_.max_nodes) + ", " +
         std::to_string(config_.restarts.max_restarts) + " restarts" +
         (began.resumption ? ", after another leader\n" : "\n");
}

std::string Replay::on(const agent::NodeInput& input) {
  if (!group_) return "agent   was recorded without its beginning; this line is skipped\n";
  inputs_ += 1;
  const std::string before = state_of(*group_);
  const auto actions = group_->step(input.event);
  const std::string after = state_of(*group_);
  std::string text = "agent   " + printable(in_words(input.event)) + "\n";
  if (before != after) text += kIndent + before + " -> " + after + "\n";
  text += because(group_->why());
  for (const agent::NodeAction& action : actions) {
    text += kIndent + printable(in_words(action)) + "\n";
  }
  if (actions.empty() && group_->why().empty())
    text += "              no action is needed in this state\n";
  return text + compare(actions.size());
}

std::string Replay::on(const rdzv::RoundInput& input) {
  if (!round_) return "leader  was recorded without its beginning; this line is skipped\n";
  inputs_ += 1;
  const rdzv::LeaderView before = round_->view(input.at);
  const auto messages = round_->step(input);
  const rdzv::LeaderView after = round_->view(input.at);
  std::string text = "leader  " + printable(in_words(input)) + "\n";
  if (state_of(before) != state_of(after)) {
    text += kIndent + state_of(before) + " -> " + state_of(after) + facts_of(after) + "\n";
  }
  for (const std::string_view why : round_->why()) text += because(why);
  for (const rdzv::ToNode& message : messages) {
    text += kIndent + printable(in_words(message)) + "\n";
  }
  return text + compare(messages.size());
}

std::string Replay::on(const agent::InputsLost& lost) {
  lost_ += lost.count;
  return "        " + std::to_string(lost.count) +
         " lines are missing in the recording: what follows may not be what happened\n";
}

// A line for each rank in the end of a round, and for each verdict.
std::string Replay::on(const agent::CallsSeen& seen) {
  constexpr std::size_t kRanksShown = 64;
  std::string text = "ranks   " +
                     (seen.is_end ? "of this node at the end of round " + to_string(seen.round)
                                  : counted(static_cast<std::int64_t>(seen.ranks.size()), "rank") +
                                        " of round " + to_string(seen.round)) +
                     "\n";
  for (std::size_t i = 0; i < std::min(seen.ranks.size(), kRanksShown); ++i) {
    text += kIndent + printable(agent::in_words(seen.ranks[i])) + "\n";
  }
  if (seen.ranks.size() > kRanksShown) {
    text += "              and " + std::to_string(seen.ranks.size() - kRanksShown) + " more\n";
  }
  if (seen.is_end) return text;
  inputs_ += 1;
  const auto found = rdzv::find_hangs(seen.ranks, seen.world_size, seen.rules);
  for (const rdzv::WaitingFor& wait : found.waits) {
    text += "              waiting: " + printable(sentence(wait)) + "\n";
  }
  for (const rdzv::Hung& hung : found.hung) {
    text += "              hung: " + printable(sentence(hung)) + "\n";
  }
  return text + compare(found.hung.size());
}

std::string Replay::on(const agent::ResponseBegan& began) {
  response_.emplace(began.ends);
  return "hangs   begins: ranks that hang are " +
         std::string(began.ends ? "killed\n" : "reported\n");
}

std::string Replay::on(const agent::ResponseInput& input) {
  if (!response_) return "hangs   was recorded without its beginning; this line is skipped\n";
  inputs_ += 1;
  const auto actions = response_->step(input.event);
  std::string text = "hangs   " + printable(in_words(input.event)) + "\n";
  for (const auto& action : actions) text += kIndent + printable(in_words(action)) + "\n";
  return text + compare(actions.size());
}

std::string Replay::compare(std::size_t decisions) {
  if (decisions == recorded_) return "";
  differences_ += 1;
  return "              DIFFERS: " + std::to_string(recorded_) + " decisions then, " +
         std::to_string(decisions) + " now\n";
}

std::string Replay::end() const {
  std::string text = std::to_string(inputs_) + " inputs were played again; ";
  if (differences_ > 0) {
    return text + "the decisions differ for " + std::to_string(differences_) +
           " of them: another version of ddprun made this recording" +
           (lost_ > 0 ? ", or the missing lines matter\n" : "\n");
  }
  return text + "all decisions were the same as in the recording\n";
}

int replay(const ReplayArguments& arguments) {
  const std::string& path = arguments.file;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return report(error_from_errno(errno, path), kNotRead);
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
  return job.has_differed() ? kDiffers : kReplayed;
}

}  // namespace ddprun::cli
