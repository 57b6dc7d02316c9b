#include "agent/supervisor/query_port.h"

#include <utility>

#include "agent/core/leader_config.h"

namespace ddprun::agent {

QueryPort::QueryPort(const AgentParts& parts, Access access)
    : parts_(parts),
      query_(parts.io, {parts.job.run_id, parts.job.program.name, parts.job.version, parts.host},
             std::move(access.job)),
      logs_(parts.io, parts.output,
            [&parts = parts_, first_rank = std::move(access.first_rank)] {
              return LogReader::Node{parts.host, first_rank(), parts.job.local_world_size};
            }),
      control_(parts.io, key_of(parts.job, parts.agent_id), parts.job.run_id, query_, logs_,
               std::move(access.requests)) {}

void QueryPort::open() {
  if (const auto opened = control_.open(parts_.job.environment)) {
    parts_.log.debug("ddpctl reaches this job at " + control_.path());
  } else {
    const bool is_wrong = opened.error().code == ErrorCode::kPermissionDenied;
    parts_.log.write(is_wrong ? Log::Level::kWarning : Log::Level::kInfo,
                     "ddpctl cannot reach this job: " + opened.error().to_string());
  }
  if (const auto port = parts_.job.metrics_port) open_metrics(*port);
}

// If the port is taken, warn and continue: the job can train without it.
void QueryPort::open_metrics(std::uint16_t port) {
  auto server = MetricsServer::start(parts_.io, port, query_, query_.identity());
  if (!server) {
    return parts_.log.warn("--metrics-port=" + std::to_string(port) + ": " +
                           server.error().to_string() + "; the job runs without metrics");
  }
  metrics_ = *std::move(server);
  const std::string own = "127.0.0.1:" + std::to_string(metrics_->port());
  parts_.log.warn("metrics and a live page: http://" + own +
                  "/ (from your own machine first: ssh -L " + std::to_string(metrics_->port()) +
                  ":" + own + " " + parts_.host + ")");
}

void QueryPort::over(std::string_view headline) {
  if (metrics_) metrics_->over(headline);
}

}  // namespace ddprun::agent
