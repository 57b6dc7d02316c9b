#include "agent/events/job_history.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "agent/failure/failure_report.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kSentenceBytesMax = 1024;  // the report has the whole message

// Why, and the same as a sentence.
std::pair<RestartReason, std::string> reason_of(const Restarted& restarted) {
  if (restarted.failure) return {RestartReason::kWorkerFailed, describe(*restarted.failure)};
  if (restarted.lost_node) {
    using How = rdzv::NodeGone::How;
    const How how = restarted.lost_node->how;
    const bool has_left = how == How::kLeft || how == How::kLeftOut;
    return {has_left ? RestartReason::kNodeLeft : RestartReason::kNodeLost,
            rdzv::describe(*restarted.lost_node)};
  }
  if (restarted.was_asked_for) {
    return {RestartReason::kRequested, describe_request(restarted.asked_by)};
  }
  if (restarted.nodes_joined > 0) {
    return {RestartReason::kNodeJoined, counted(restarted.nodes_joined, "node") + " joined"};
  }
  return {RestartReason::kOther, "the previous round ended; the leader gave no reason"};
}

template <typename T>
void keep_latest(std::deque<T>& list, T value, std::size_t count) {
  if (list.size() == count) list.pop_front();
  list.push_back(std::move(value));
}

}  // namespace

JobHistory::JobHistory(int local_world_size) : local_world_size_(local_world_size) {
  for (std::size_t i = 0; i < totals_.size(); ++i) {
    totals_[i].reason = static_cast<RestartReason>(i);
  }
}

void JobHistory::note(const EventHead& head, const JobEvent& event) {
  std::visit([&](const auto& each) { on(head, each); }, event);
  keep_latest(events_, {head, without_what_no_line_shows(event)}, kEventsKept);
}

void JobHistory::on(const EventHead&, const JobStarted& started) {
  max_restarts_ = started.max_restarts;
}

void JobHistory::on(const EventHead& head, const RoundStarted& started) {
  if (!round_) until_run_ = started.since_cause;
  round_ = started;
  round_since_ = head.monotonic;
  workers_.clear();
  for (const RoundStarted::Worker& each : started.workers) {
    const auto state = each.pid == 0 ? WorkerState::kNotStarted : WorkerState::kRunning;
    workers_.push_back({each.rank, each.local_rank, each.pid, "", state, {}, {}});
  }
}

void JobHistory::on(const EventHead&, const WorkerExited& exited) {
  const auto local_rank = static_cast<std::size_t>(exited.worker.local_rank);
  if (local_rank >= workers_.size() || exited.worker.pid == 0) return;
  WorkerStatus& worker = workers_[local_rank];
  worker.exit = exited.status;
  worker.progress = exited.progress;
  worker.state = exited.status.is_success() ? WorkerState::kSucceeded
                 : exited.was_told_to_stop  ? WorkerState::kStopped
                                            : WorkerState::kFailed;
}

void JobHistory::on(const EventHead& head, const Restarted& restarted) {
  restarts_ = restarted.restart;
  max_restarts_ = restarted.max_restarts;
  if (restarted.in_place && restarted.in_place->newcomer) take_place(*restarted.in_place->newcomer);
  const auto& [reason, sentence] = reason_of(restarted);
  if (!records_.empty()) {  // its downtime is over now
    RestartRecord& before = records_.back();
    before.downtime = restarted.downtime_before;
    total_of(before.reason).downtime += before.downtime.total();
  }
  total_of(reason).count += 1;
  RestartRecord record;
  record.when = head.time;
  record.round = restarted.round;
  record.reason = reason;
  if (restarted.failure) record.rank = restarted.failure->rank;
  record.host = restarted.failure     ? restarted.failure->host
                : restarted.lost_node ? restarted.lost_node->host
                                      : "";
  record.sentence = as_utf8(sentence, kSentenceBytesMax);
  if (restarted.in_place) record.generation = restarted.in_place->generation;
  keep_latest(records_, std::move(record), kRestartsKept);
}

void JobHistory::take_place(const RoundStarted::Worker& newcomer) {
  const auto local_rank = static_cast<std::size_t>(newcomer.local_rank);
  if (local_rank >= workers_.size()) return;
  workers_[local_rank] = {
      newcomer.rank, newcomer.local_rank, newcomer.pid, "", WorkerState::kRunning, {}, {}};
}

void JobHistory::fill(NodeStatus& status, const DowntimeClock& times,
                      std::chrono::steady_clock::time_point now, std::size_t events_max) const {
  status.local_world_size = local_world_size_;
  status.restarts = restarts_;
  status.max_restarts = max_restarts_;
  if (round_) {
    status.round = round_->round;
    status.node_rank = round_->node_rank;
    status.node_count = round_->node_count;
    status.world_size = round_->world_size;
    status.rank_offset = round_->workers.empty() ? 0 : round_->workers.front().rank;
    status.master_addr = round_->master_addr;
    status.master_port = round_->master_port;
    status.round_age = std::chrono::duration_cast<std::chrono::microseconds>(now - round_since_);
    status.until_run = until_run_;
  }
  status.workers = workers_;
  status.recent_restarts.assign(records_.begin(), records_.end());
  std::array<RestartTotal, 6> totals = totals_;
  if (!records_.empty()) {
    RestartRecord& latest = status.recent_restarts.back();
    latest.downtime = times.latest(now);
    totals[static_cast<std::size_t>(latest.reason)].downtime += latest.downtime.total();
  }
  std::ranges::copy_if(totals, std::back_inserter(status.restart_totals),
                       [](const RestartTotal& total) { return total.count > 0; });
  status.until_first_step =
      std::chrono::duration_cast<std::chrono::microseconds>(times.until_first_step(now));
  status.restarts_in_place = times.in_place();
  status.downtime = times.all(now);
  status.goodput = times.goodput(now);
  for (std::size_t i = events_.size() - std::min(events_max, events_.size()); i < events_.size();
       ++i) {
    std::string line = event_line(events_[i].first, events_[i].second);
    line.pop_back();
    status.events.push_back(std::move(line));
  }
}

}  // namespace ddprun::agent
