#include "agent/supervisor/worker_view.h"

#include <algorithm>

#include "agent/process/process_hold.h"
#include "agent/process/worker_facts.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/ranks.h"

namespace ddprun::agent {

int WorkerView::running() const {
  return static_cast<int>(
      std::ranges::count_if(workers_, [](const Worker& each) { return each.process != nullptr; }));
}

pid_t WorkerView::pid(int local_rank) const {
  const auto& process = worker(local_rank).process;
  return process ? process->pid() : 0;
}

std::optional<WorkerProgress> WorkerView::progress(int local_rank) const {
  const auto& link = worker(local_rank).link;
  return link ? link->progress() : std::nullopt;
}

StepMarks WorkerView::marks(int local_rank) const {
  const auto& link = worker(local_rank).link;
  return link ? link->marks() : StepMarks{};
}

std::vector<GroupCalls> WorkerView::calls(int local_rank) const {
  const auto& link = worker(local_rank).link;
  if (!link) return {};
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return group_calls(link->groups(), std::chrono::nanoseconds(now).count(), record::kGroupsMax);
}

record::RecordedThreads WorkerView::threads(int local_rank) const {
  const auto& link = worker(local_rank).link;
  return link ? link->threads() : record::RecordedThreads{};
}

std::vector<rdzv::RankArrivals> WorkerView::arrivals(std::size_t most) const {
  std::vector<rdzv::RankArrivals> ranks;
  for (int local_rank = 0; local_rank < count(); ++local_rank) {
    const Worker& each = worker(local_rank);
    if (!each.process || !each.link) continue;
    const auto progress = each.link->progress();
    ranks.push_back(
        {rank_of(local_rank), progress ? progress->step : std::nullopt, each.link->arrivals(most)});
  }
  return ranks;
}

std::pair<RankState, std::chrono::nanoseconds> WorkerView::held(int local_rank) {
  const Worker& each = worker(local_rank);
  if (!each.process) return {};
  const pid_t pid = each.process->pid();
  Hold& hold = holds_.at(static_cast<std::size_t>(local_rank));
  if (hold.number != each.number) hold = {.number = each.number};
  auto [state, switches] = hold_of(pid);
  const bool has_run = std::exchange(hold.switches, switches) != switches;
  const bool may_be_frozen =
      !has_run && (state == RankState::kRuns || state == RankState::kUninterruptible);
  if (may_be_frozen && is_frozen(pid)) state = RankState::kFrozen;
  return {state, hold.held_for.looked(state, switches, std::chrono::steady_clock::now())};
}

std::vector<WorkerSeen> WorkerView::look(int signal) const {
  std::vector<WorkerSeen> seen(workers_.size());
  for (int local_rank = 0; local_rank < count(); ++local_rank) {
    const auto& process = worker(local_rank).process;
    if (!process) continue;
    const std::vector<GroupCalls> groups = calls(local_rank);  // the one that it is in is the first
    WorkerSeen& its = seen[static_cast<std::size_t>(local_rank)];
    its.handles_stop = handles(process->pid(), signal);
    its.has_gpu = has_gpu(process->pid());
    its.leaves = worker(local_rank).link && worker(local_rank).link->has_left();
    its.has_record = !groups.empty();
    if (!groups.empty() && groups.front().at && !groups.front().at->is_over) {
      its.in_call = std::chrono::duration_cast<std::chrono::milliseconds>(groups.front().at->since);
    }
  }
  return seen;
}

std::string WorkerView::what_starts(const std::vector<int>& local_ranks) const {
  std::vector<int> ranks;
  for (const int local_rank : local_ranks) {
    if (worker(local_rank).is_starting) ranks.push_back(rank_of(local_rank));
  }
  if (ranks.empty()) return "";  // their log files are awaited, or standbys
  return printable(ranks_in_words(ranks)) + (ranks.size() == 1 ? " waits" : " wait") +
         " for the kernel to execute " + printable(job_.program.path) +
         ": the file system that has the program does not answer";
}

}  // namespace ddprun::agent
