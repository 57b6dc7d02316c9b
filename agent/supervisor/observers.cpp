#include "agent/supervisor/observers.h"

#include <unistd.h>

#include <utility>

#include "agent/failure/failure_report.h"

namespace ddprun::agent {

Observers::Observers(const AgentParts& parts, std::function<NodeSnapshot()> snapshot)
    : parts_(parts),
      snapshot_(std::move(snapshot)),
      events(parts.io.get_executor(), parts.console, parts.job, parts.host),
      command(parts.io, parts.job.events.command, parts.job.environment,
              [log = parts.log](std::string_view sentence) { log.warn(sentence); }),
      systemd(
          parts.io.get_executor(), parts.job.environment,
          [this] { return situation_text(snapshot_()); },
          [log = parts.log](std::string_view sentence) { log.warn(sentence); }),
      kubeflow(
          parts.io, parts.job.environment, [this] { return job_progress_of(snapshot_()); },
          [log = parts.log](std::string_view sentence) { log.warn(sentence); }) {
  if (parts.job.events.command.empty()) return;  // without it no lines are made
  told_ = events.on_line([this](const std::string& line) { command.take(line); });
}

void Observers::job_started(bool has_status_line) {
  if (has_status_line) {
    status_line.emplace(parts_.io.get_executor(), parts_.console, snapshot_);
    status_line->start();
  }
  const Job& job = parts_.job;
  events.write(
      JobStarted{job.program.name, job.local_world_size, job.restarts.max_restarts, ::getpid()});
}

void Observers::on(const WorkerEvent& event, const WorkerView& workers) {
  std::visit([&](const auto& what) { on(what, workers); }, event.what);
}

void Observers::on(const worker_event::Started& started, const WorkerView& workers) {
  command.round_began(workers.round().node_rank);
  events.round_started(workers.round(), started.pids);
  systemd.status_may_have_changed();
  kubeflow.round_began();
}

void Observers::on(const worker_event::Ending& ending, const WorkerView& workers) {
  if (workers.rank_of(ending.local_rank) == 0) kubeflow.look();
  events.worker_ending(ending.local_rank, workers.progress(ending.local_rank),
                       workers.marks(ending.local_rank), ending.status, ending.was_told_to_stop);
}

void Observers::on(const worker_event::Ended& ended, const WorkerView&) {
  events.worker_exited(ended.end);
}

void Observers::on(const worker_event::Killed& killed, const WorkerView& workers) {
  events.write(
      WorkerKilledAfterGrace{workers.round().round,
                             {workers.rank_of(killed.local_rank), killed.local_rank, killed.pid},
                             killed.grace});
}

void Observers::on(const worker_event::Stepped& stepped, const WorkerView&) {
  events.stepped(stepped.local_rank, stepped.marks);
}

void Observers::on(const worker_event::ReplicasDiffer& differ, const WorkerView& workers) {
  events.write(
      ReplicasDiffer{workers.round().round, differ.step, differ.rank, differ.other, differ.what});
}

void Observers::on(const worker_event::Replaced& replaced, const WorkerView&) {
  const Replace& what = replaced.what;
  parts_.log.warn(
      describe_replacement(what.failure, what.restarts, what.max_restarts, parts_.host));
  events.replaced(what, replaced.newcomer);
}

void Observers::on(const worker_event::Regrouped& regrouped, const WorkerView&) {
  events.regrouped(regrouped.local_rank, regrouped.generation);
}

void Observers::on(const worker_event::Committed& committed, const WorkerView&) {
  events.committed(committed.local_rank, committed.generation);
}

void Observers::on(const worker_event::KeeperReplaced& replaced, const WorkerView&) {
  events.write(KeeperReplaced{replaced.pid});
}

void Observers::over(const std::string& headline) {
  status_line.reset();
  systemd.over(headline);
}

}  // namespace ddprun::agent
