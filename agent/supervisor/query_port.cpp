#include "agent/supervisor/query_port.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "agent/core/leader_config.h"

namespace ddprun::agent {

QueryPort::QueryPort(const Parts& parts, Access access)
    : io_(parts.io),
      log_(parts.log),
      job_(parts.job),
      query_(io_, {job_.run_id, job_.program.name, job_.version, parts.host},
             std::move(access.job)),
      logs_(io_, parts.output,
            [host = parts.host, first_rank = std::move(access.first_rank),
             workers = job_.local_world_size] {
              return LogReader::Node{host, first_rank(), workers};
            }),
      control_(io_, key_of(job_, parts.agent_id), job_.run_id,
               {query_, logs_, std::move(access.stop), std::move(access.restart)}) {}

void QueryPort::open() {
  if (const auto opened = control_.open(job_.environment)) {
    log_->debug("ddpctl reaches this job at {}", control_.path());
  } else {
    const bool is_wrong = opened.error().code == ErrorCode::kPermissionDenied;
    log_->log(is_wrong ? spdlog::level::warn : spdlog::level::info,
              "ddpctl cannot reach this job: {}", opened.error().to_string());
  }
  if (job_.metrics_port) open_metrics();
}

// If the port is taken, warn and continue: the job can train without it.
void QueryPort::open_metrics() {
  auto server = MetricsServer::start(io_, *job_.metrics_port, query_,
                                     {job_.run_id, job_.program.name, job_.version});
  if (!server) {
    return log_->warn("--metrics-port={}: {}; the job runs without metrics", *job_.metrics_port,
                      server.error().to_string());
  }
  metrics_ = *std::move(server);
  // A warning only if the kernel chose the port: a port that was given is known.
  log_->log(*job_.metrics_port == 0 ? spdlog::level::warn : spdlog::level::info,
            "metrics and a live page: http://127.0.0.1:{}/", metrics_->port());
}

void QueryPort::over(std::string_view headline) {
  if (metrics_) metrics_->over(headline);
}

}  // namespace ddprun::agent
