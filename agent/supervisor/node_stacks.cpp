#include "agent/supervisor/node_stacks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kTextBytes = 4096;  // the limit for each text that is printed

}  // namespace

NodeStacks::NodeStacks(const AgentParts& parts, const WorkerView& workers)
    : parts_(parts),
      workers_(workers),
      request_(parts.io, parts.job.environment, parts.host),
      samples_(parts.io) {}

void NodeStacks::round_begins() {
  dump_.reset();
  if (!text_.empty()) parts_.console.say(Stream::kStderr, std::exchange(text_, {}));
}

void NodeStacks::round_closes() {
  dump_.reset();
  request_.finish();
  samples_.finish();
}

void NodeStacks::take(std::function<void()> taken) {
  samples_.finish();
  std::vector<StackDump::Worker> doomed;
  for (int local_rank = 0; local_rank < workers_.count(); ++local_rank) {
    if (const pid_t pid = workers_.pid(local_rank); pid != 0) {
      doomed.push_back(
          {workers_.rank_of(local_rank), pid, parts_.output.log_directory_of(local_rank)});
    }
  }
  dump_ = std::make_unique<StackDump>(parts_.io, std::move(doomed), StackDump::Threads::kAllAtEnd,
                                      parts_.job.environment, [this, taken = std::move(taken)] {
                                        finish();
                                        taken();
                                      });
}

void NodeStacks::finish() {
  if (!dump_) return;
  for (const StackDump::Account& account : dump_->so_far(kTextBytes)) {
    const std::string what =
        "the stacks of rank " + std::to_string(account.rank) + " before it was killed";
    if (!account.file.empty()) parts_.log.warn(what + ": " + account.file);
    const std::string text = account.text + account.debugger_text;
    if (!text.empty()) text_ += "ddprun: " + what + "\n" + printable_lines(text);
  }
  dump_.reset();
}

void NodeStacks::show(const StackQuery& question, StackRequest::Done done) {
  samples_.finish();
  std::vector<StackDump::Worker> asked;
  for (int local_rank = 0; local_rank < workers_.count(); ++local_rank) {
    const int rank = workers_.rank_of(local_rank);
    if (!question.ranks.empty() && std::ranges::count(question.ranks, rank) == 0) continue;
    if (std::ranges::count(question.without, rank) > 0) continue;
    asked.push_back({rank, workers_.pid(local_rank), {}});
  }
  if (question.is_brief) {
    done = [done = std::move(done)](std::vector<WorkerStacks> stacks) {
      std::ranges::for_each(stacks, &make_brief);
      done(std::move(stacks));
    };
  }
  const auto threads =
      question.has_all_threads ? StackDump::Threads::kAll : StackDump::Threads::kMain;
  request_.take(std::move(asked), threads, std::move(done));
}

void NodeStacks::sample(const std::vector<int>& ranks, StackSamples::Done done) {
  std::vector<StackSamples::Worker> asked;
  const bool is_busy = dump_ != nullptr || request_.is_busy();
  for (int local_rank = 0; local_rank < workers_.count(); ++local_rank) {
    const int rank = workers_.rank_of(local_rank);
    const pid_t pid = workers_.pid(local_rank);
    const bool is_asked = !is_busy && std::ranges::count(ranks, rank) > 0;
    if (pid != 0 && is_asked) asked.push_back({rank, pid});
  }
  samples_.take(std::move(asked), std::move(done));
}

bool NodeStacks::owns(pid_t child) const {
  return (dump_ && dump_->owns(child)) || request_.owns(child);
}

}  // namespace ddprun::agent
