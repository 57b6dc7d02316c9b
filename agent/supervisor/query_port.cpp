#include "agent/supervisor/query_port.h"

#include <utility>

#include "agent/core/leader_config.h"
#include "rendezvous/net/socket_address.h"

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
  if (parts_.job.metrics) open_metrics(*parts_.job.metrics);
}

// If the port is taken, warn and continue: the job can train without it.
void QueryPort::open_metrics(const rdzv::Endpoint& at) {
  auto server = MetricsServer::start(parts_.io, at, query_, query_.identity());
  if (!server) {
    return parts_.log.warn("--metrics-port=" + std::to_string(at.port) + ": " +
                           server.error().to_string() + "; the job runs without metrics");
  }
  metrics_ = *std::move(server);
  const rdzv::Endpoint& bound = metrics_->bound();
  if (!rdzv::is_loopback(bound.host)) {
    const bool is_any = bound.host == "0.0.0.0" || bound.host == "::";
    const rdzv::Endpoint shown{is_any ? parts_.host : bound.host, bound.port};
    return parts_.log.warn("metrics: http://" + shown.to_string() +
                           "/metrics, with /healthz and /livez, for every machine that reaches "
                           "this address");
  }
  const std::string own = bound.to_string();
  parts_.log.warn("metrics and a live page: http://" + own +
                  "/ (from your own machine first: ssh -L " + std::to_string(bound.port) + ":" +
                  own + " " + parts_.host + ")");
}

void QueryPort::over(std::string_view headline) {
  if (metrics_) metrics_->over(headline);
}

}  // namespace ddprun::agent
