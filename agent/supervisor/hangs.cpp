#include "agent/supervisor/hangs.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "agent/failure/hang_report.h"
#include "agent/process/socket_owners.h"
#include "agent/query/hang_query.h"
#include "agent/supervisor/minute.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/ranks.h"

namespace ddprun::agent {
Hangs::Hangs(const AgentParts& parts, const Others& others, HangResponse::OnVerdict on_verdict)
    : parts_(parts),
      others_(others),
      watch_(parts.io, parts.job.hangs.timeout, rdzv::WaitLines(minute_of(parts.job.environment)),
             {others.node, others.store, others.job},
             [this](const HangFinding& finding) { on_finding(finding); }),
      response_(parts, {others.node, others.workers, others.job, others.events, watch_},
                std::move(on_verdict)),
      sockets_(parts.io.get_executor(), "ddprun-sockets") {
  // What other nodes ask.
  others.job.answer_with(
      "waits", [this](std::string_view, const JobQuery::Reply&) { watch_.others_wait(); });
  others.job.answer_with("end_hung",
                         [this](std::string_view question, const JobQuery::Reply& reply) {
                           const auto read = end_hung_from(question);
                           reply(to_json(read ? response_.end_here(*read) : EndHungAnswer{}));
                         });
}

void Hangs::record_with(CoreRecorder* recorder) {
  recorder_ = recorder;
  response_.record_with(recorder);
}

void Hangs::on(const WorkerEvent& event) {
  if (std::holds_alternative<worker_event::Started>(event.what)) {
    watch_.round_began();
    response_.forget();
  } else if (const auto* ending = std::get_if<worker_event::Ending>(&event.what)) {
    keep_calls(ending->local_rank);
  } else if (std::holds_alternative<worker_event::Closed>(event.what)) {
    response_.forget();
    note_last_calls();
  }
}

void Hangs::fill(NodeStatus& status) const {
  status.longest_wait = watch_.longest_wait();
  status.hung = watch_.hung();
}

// ---- what was found

void Hangs::on_finding(const HangFinding& finding) {
  std::visit([this](const auto& found) { on(found); }, finding);
}

void Hangs::on(const hang_finding::Waits& found) {
  parts_.log.write(Log::Level::kInfo, sentence(found.wait));
  others_.events.write(WaitSeen{others_.workers.view().round().round, found.wait});
}

void Hangs::on(const hang_finding::Hung& found) {
  note_calls(found);
  if (found.hung.is_verdict()) {
    parts_.log.warn(ranks_in_words(found.hung.ranks) + " hung: " + sentence(found.hung));
    others_.events.write(HangSeen{others_.workers.view().round().round, found.hung});
  } else {
    parts_.log.warn(sentence(found.hung) + "; --hang-timeout=auto reports it and kills nothing");
  }
  response_.respond(found.hung, found.status);
}

// The store does not know which rank a client is, so the sockets of this node's workers are looked up. Clients of other
// nodes are left out.
void Hangs::on(const hang_finding::StillWaitsInStore& found) {
  const WorkerView& workers = others_.workers.view();
  std::map<pid_t, int> ranks;
  std::vector<pid_t> pids;
  for (int local_rank = 0; local_rank < workers.count(); ++local_rank) {
    const pid_t pid = workers.pid(local_rank);
    if (pid == 0) continue;
    pids.push_back(pid);
    ranks[pid] = workers.rank_of(local_rank);
  }
  using Owners = std::map<std::uint16_t, pid_t>;
  sockets_.run<Owners>(
      [port = workers.round().master_port, pids] { return connections_to(port, pids); },
      [this, ranks, waits = found.waits, round = workers.round().round](const Owners& owners) {
        const rdzv::RoundStart* const running = others_.node.running_round();
        if (running == nullptr || running->round != round) return;
        std::map<std::uint16_t, int> rank_of_port;
        for (const auto& [port, pid] : owners) rank_of_port[port] = ranks.at(pid);
        tell_of_store(waits, rank_of_port);
      });
}

void Hangs::tell_of_store(const std::vector<rdzv::StoreWait>& waits,
                          const std::map<std::uint16_t, int>& rank_of_port) {
  rdzv::WaitingFor told;
  std::set<int> waiting;
  const auto now = std::chrono::steady_clock::now();
  for (const rdzv::StoreWait& each : waits) {
    const auto rank = rank_of_port.find(each.client.port);
    if (rank == rank_of_port.end()) continue;
    waiting.insert(rank->second);
    if (now - each.since < told.waited) continue;
    told.waited = now - each.since;
    told.group = each.key;
  }
  if (waiting.empty()) return;
  told.waiting.assign(waiting.begin(), waiting.end());
  for (const WorkerStatus& each : others_.node.status(/*events_max=*/0).workers) {
    const bool is_missing = each.state == WorkerState::kRunning && !waiting.contains(each.rank);
    if (is_missing) told.missing.push_back(each.rank);
  }
  response_.tell(told);
}

// The leader waits a while longer, and then stops the round. Without this line the next round would begin without a
// reason.
void Hangs::show_late(const std::vector<int>& local_ranks, std::chrono::seconds after) {
  StackQuery question{.is_brief = true};
  for (const int local_rank : local_ranks) {
    question.ranks.push_back(others_.workers.view().rank_of(local_rank));
  }
  const auto show = [this, after,
                     ranks = question.ranks](const std::vector<WorkerStacks>& workers) {
    if (others_.node.running_round() == nullptr) return;
    std::map<int, RankStack> stacks;
    for (const WorkerStacks& each : workers) stacks[each.rank] = stack_of(each);
    JobStatus status;
    status.nodes.push_back(others_.node.status(/*events_max=*/0));
    const std::string late_ranks = printable(ranks_in_words(ranks));
    rdzv::Hung late;
    late.ranks = ranks;
    parts_.console.say(Stream::kStderr,
                       "ddprun: a worker was replaced " + duration_text(after) + " ago, and " +
                           late_ranks + (ranks.size() == 1 ? " has" : " have") +
                           " not come together with the others since; what they do\n" +
                           to_text(make_hang_report(late, status, stacks)));
  };
  others_.workers.stacks().show(question, show);
}

// ---- the recording has what the records of the ranks said, when a verdict was given and at the end

void Hangs::note_calls(const hang_finding::Hung& found) {
  if (recorder_ == nullptr) return;
  const rdzv::RoundStart& round = others_.workers.view().round();
  CallsSeen seen{round.round, /*is_end=*/false, round.world_size, found.rules,
                 calls_of(found.status)};
  const std::size_t verdicts = find_hangs(seen.ranks, seen.world_size, seen.rules).hung.size();
  recorder_->note(std::move(seen), verdicts);
}

void Hangs::keep_calls(int local_rank) {
  if (recorder_ == nullptr) return;
  WorkerView& workers = others_.workers.view();
  const auto progress = workers.progress(local_rank);
  const auto [state, held_for] = workers.held(local_rank);
  last_calls_.push_back(
      {workers.rank_of(local_rank), state, held_for,
       progress && progress->step ? std::optional(progress->since_step) : std::nullopt,
       workers.calls(local_rank), workers.threads(local_rank).count > 0,
       workers.threads(local_rank).all_wait()});
}

void Hangs::note_last_calls() {
  if (recorder_ == nullptr || last_calls_.empty()) return;
  std::ranges::sort(last_calls_, {}, &rdzv::RankCalls::rank);
  const rdzv::RoundStart& round = others_.workers.view().round();
  CallsSeen seen;
  seen.round = round.round;
  seen.is_end = true;
  seen.world_size = round.world_size;
  seen.ranks = std::exchange(last_calls_, {});
  recorder_->note(std::move(seen));
}

}  // namespace ddprun::agent
