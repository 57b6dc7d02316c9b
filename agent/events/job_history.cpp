#include "agent/events/job_history.h"

#include <algorithm>
#include <string>

#include "agent/failure/failure_report.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kSentenceBytesMax = 1024;  // the report has the whole message

// Why, and the same as a sentence.
std::pair<RestartReason, std::string> reason_of(const Restarted& restarted) {
  if (restarted.failure) return {RestartReason::kWorkerFailed, describe(*restarted.failure)};
  if (restarted.lost_node) {
    const bool has_left = restarted.lost_node->how == rdzv::NodeGone::How::kLeft;
    return {has_left ? RestartReason::kNodeLeft : RestartReason::kNodeLost,
            rdzv::describe(*restarted.lost_node)};
  }
  if (restarted.was_asked_for) return {RestartReason::kRequested, "a restart was asked for"};
  if (restarted.nodes_joined > 0) {
    return {RestartReason::kNodeJoined,
            std::to_string(restarted.nodes_joined) +
                (restarted.nodes_joined == 1 ? " node joined" : " nodes joined")};
  }
  return {RestartReason::kOther, "the previous round ended; the leader gave no reason"};
}

template <typename T>
void keep_latest(std::deque<T>& list, T value, std::size_t count) {
  if (list.size() == count) list.pop_front();
  list.push_back(std::move(value));
}

}  // namespace

JobHistory::JobHistory(int local_world_size) {
  status_.local_world_size = local_world_size;
  for (std::size_t i = 0; i < totals_.size(); ++i) {
    totals_[i].reason = static_cast<RestartReason>(i);
  }
}

void JobHistory::note(const EventHead& head, const JobEvent& event) {
  std::visit([&](const auto& each) { on(head, each); }, event);
  keep_latest(events_, {head, without_what_no_line_shows(event)}, kEventsKept);
}

void JobHistory::on(const EventHead&, const JobStarted& started) {
  status_.max_restarts = started.max_restarts;
}

void JobHistory::on(const EventHead& head, const RoundStarted& started) {
  if (!status_.round) status_.until_run = started.since_cause;
  status_.round = started.round;
  status_.node_rank = started.node_rank;
  status_.node_count = started.node_count;
  status_.world_size = started.world_size;
  status_.rank_offset = started.workers.empty() ? 0 : started.workers.front().rank;
  status_.master_addr = started.master_addr;
  status_.master_port = started.master_port;
  round_since_ = head.monotonic;
  status_.workers.clear();
  for (const RoundStarted::Worker& each : started.workers) {
    const auto state = each.pid == 0 ? WorkerState::kNotStarted : WorkerState::kRunning;
    status_.workers.push_back({each.rank, each.local_rank, each.pid, "", state, {}, {}});
  }
}

void JobHistory::on(const EventHead&, const WorkerExited& exited) {
  const auto local_rank = static_cast<std::size_t>(exited.worker.local_rank);
  if (local_rank >= status_.workers.size() || exited.worker.pid == 0) return;
  WorkerStatus& worker = status_.workers[local_rank];
  worker.exit = exited.status;
  worker.progress = exited.progress;
  worker.state = exited.status.is_success() ? WorkerState::kSucceeded
                 : exited.was_told_to_stop  ? WorkerState::kStopped
                                            : WorkerState::kFailed;
}

void JobHistory::on(const EventHead& head, const Restarted& restarted) {
  status_.restarts = restarted.restart;
  status_.max_restarts = restarted.max_restarts;
  const auto& [reason, sentence] = reason_of(restarted);
  RestartTotal& total = totals_[static_cast<std::size_t>(reason)];
  total.count += 1;
  total.lost += restarted.lost;
  RestartRecord record;
  record.when = head.time;
  record.round = restarted.round;
  record.reason = reason;
  if (restarted.failure) record.rank = restarted.failure->rank;
  record.host = restarted.failure     ? restarted.failure->host
                : restarted.lost_node ? restarted.lost_node->host
                                      : "";
  record.sentence = as_utf8(sentence, kSentenceBytesMax);
  record.lost = restarted.lost;
  keep_latest(records_, std::move(record), kRestartsKept);
}

NodeStatus JobHistory::status(std::chrono::steady_clock::time_point now,
                              std::size_t events_max) const {
  NodeStatus status = status_;
  if (status.round) {
    status.round_age = std::chrono::duration_cast<std::chrono::microseconds>(now - round_since_);
  }
  for (const RestartTotal& total : totals_) {
    if (total.count == 0) continue;
    status.restart_totals.push_back(total);
    status.lost += total.lost;
  }
  status.recent_restarts.assign(records_.begin(), records_.end());
  for (std::size_t i = events_.size() - std::min(events_max, events_.size()); i < events_.size();
       ++i) {
    std::string line = event_line(events_[i].first, events_[i].second);
    line.pop_back();
    status.events.push_back(std::move(line));
  }
  return status;
}

}  // namespace ddprun::agent
