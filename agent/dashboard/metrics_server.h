// --metrics-port: /metrics for Prometheus and /healthz and /livez for probes (this node only), and at
// / a live page for people, which gets changes over /events. Other machines, which reach it with
// --metrics-address, do not get the page. While a page is open, all nodes are asked once a second and
// soon after an event; else it wakes up once a second, to continue the curve of the loss.
//
// Owned by QueryPort, event loop only. A failure here must not end the job.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

#include "agent/dashboard/dashboard_feed.h"
#include "agent/dashboard/http_server.h"
#include "agent/dashboard/metrics.h"
#include "agent/status/job_view.h"
#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

class MetricsServer {
 public:
  static Result<std::unique_ptr<MetricsServer>> start(boost::asio::io_context& io,
                                                      const rdzv::Endpoint& at, JobView& job,
                                                      JobIdentity labels,
                                                      HttpServerLimits limits = {});

  const rdzv::Endpoint& bound() const { return http_->bound(); }

  // Sends the last message to the open pages: how the job ended.
  void over(std::string_view sentence);

 private:
  using Clock = std::chrono::steady_clock;
  struct Viewer {
    std::shared_ptr<HttpExchange> exchange;
    bool needs_whole = true;
  };

  MetricsServer(boost::asio::io_context& io, JobView& job, JobIdentity labels);
  void serve(const std::shared_ptr<HttpExchange>& exchange);
  void serve_page(HttpExchange& exchange) const;
  bool is_watched();
  void something_happened();
  void await_tick(Clock::time_point at);
  void tick();
  void ask();
  void tell_viewers();

  JobView& job_;
  const JobIdentity labels_;
  std::unique_ptr<HttpServer> http_;
  Timer timer_;
  DashboardFeed feed_;
  std::vector<Viewer> viewers_;
  Clock::time_point asked_at_{};
  bool is_asking_ = false;
  bool is_over_ = false;
  std::shared_ptr<void> events_;  // the subscription to the job's events
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
