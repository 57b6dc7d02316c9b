#include "agent/supervisor/observers.h"

#include <spdlog/spdlog.h>

namespace ddprun::agent {

Observers::Observers(const Parts& parts, std::function<NodeSnapshot()> snapshot)
    : io_(parts.io),
      console_(parts.console),
      snapshot_(std::move(snapshot)),
      events_(io_.get_executor(), console_, parts.job, parts.host),
      systemd_(
          io_.get_executor(), parts.job.environment,
          [this] { return situation_text(status_of(snapshot_())); },
          [log = parts.log](std::string_view sentence) { log->warn("{}", sentence); }),
      kubeflow_(
          io_, parts.job.environment, [this] { return job_progress_of(snapshot_()); },
          [log = parts.log](std::string_view sentence) { log->warn("{}", sentence); }) {}

Result<void> Observers::open() { return events_.open(); }

void Observers::job_started(bool has_status_line) {
  if (has_status_line) {
    status_line_.emplace(io_.get_executor(), console_, [this] { return status_of(snapshot_()); });
    status_line_->start();
  }
  events_.job_started();
}

void Observers::ready() { systemd_.ready(); }

void Observers::round_started(const rdzv::RoundStart& start, std::span<const pid_t> pids) {
  events_.round_started(start, pids);
  systemd_.status_may_have_changed();
  kubeflow_.round_began();
}

void Observers::round_stopping(Round round, const NodeEvent& cause) {
  events_.round_stopping(round, cause);
}

void Observers::worker_ending(int rank) {
  if (rank == 0) kubeflow_.look();
}

void Observers::worker_exited(const rdzv::WorkerFailure& ended, bool was_told_to_stop) {
  events_.worker_exited(ended, was_told_to_stop);
}

void Observers::worker_killed_after_grace(Round round, int local_rank, pid_t pid,
                                          std::chrono::milliseconds grace) {
  events_.worker_killed_after_grace(round, local_rank, pid, grace);
}

void Observers::pause() {
  if (status_line_) status_line_->hide();
}

void Observers::resume() {
  if (status_line_) status_line_->start();
}

void Observers::finished(const rdzv::JobOutcome& outcome, int exit_code) {
  events_.finished(outcome, exit_code);
}

void Observers::over(const std::string& headline) {
  status_line_.reset();
  systemd_.over(headline);
}

}  // namespace ddprun::agent
