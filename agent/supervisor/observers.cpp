#include "agent/supervisor/observers.h"

#include <unistd.h>

namespace ddprun::agent {

Observers::Observers(const AgentParts& parts, std::function<NodeSnapshot()> snapshot)
    : parts_(parts),
      snapshot_(std::move(snapshot)),
      events(parts.io.get_executor(), parts.console, parts.job, parts.host),
      systemd(
          parts.io.get_executor(), parts.job.environment,
          [this] { return situation_text(snapshot_()); },
          [log = parts.log](std::string_view sentence) { log.warn(sentence); }),
      kubeflow(
          parts.io, parts.job.environment, [this] { return job_progress_of(snapshot_()); },
          [log = parts.log](std::string_view sentence) { log.warn(sentence); }) {}

void Observers::job_started(bool has_status_line) {
  if (has_status_line) {
    status_line.emplace(parts_.io.get_executor(), parts_.console, snapshot_);
    status_line->start();
  }
  const Job& job = parts_.job;
  events.write(
      JobStarted{job.program.name, job.local_world_size, job.restarts.max_restarts, ::getpid()});
}

void Observers::round_started(const rdzv::RoundStart& start, std::span<const pid_t> pids) {
  events.round_started(start, pids);
  systemd.status_may_have_changed();
  kubeflow.round_began();
}

void Observers::over(const std::string& headline) {
  status_line.reset();
  systemd.over(headline);
}

}  // namespace ddprun::agent
