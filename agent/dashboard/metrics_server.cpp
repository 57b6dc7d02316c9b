#include "agent/dashboard/metrics_server.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/hex.hpp>
#include <boost/algorithm/string/replace.hpp>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "agent/dashboard/health.h"
#include "agent/dashboard/page.h"
#include "agent/dashboard/prometheus_text.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kInterval = 1s;
constexpr auto kSoon = 200ms;  // also the minimum time between two requests to all nodes

// 128 random bits, in hex. If the kernel has none yet, the page is not served.
std::optional<std::string> make_nonce() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), GRND_NONBLOCK) !=
      static_cast<ssize_t>(bytes.size())) {
    return std::nullopt;
  }
  std::string nonce;
  boost::algorithm::hex_lower(bytes, std::back_inserter(nonce));
  return nonce;
}

std::shared_ptr<const std::string> event_of(const std::string& json) {
  return std::make_shared<const std::string>("data: " + json + "\n\n");
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(boost::asio::io_context& io,
                                                            const rdzv::Endpoint& at, JobView& job,
                                                            JobIdentity labels,
                                                            HttpServerLimits limits) {
  std::unique_ptr<MetricsServer> made(new MetricsServer(io, job, std::move(labels)));
  auto http = HttpServer::start(
      io, at,
      [server = made.get()](std::shared_ptr<HttpExchange> exchange) { server->serve(exchange); },
      limits);
  if (!http) return fail(std::move(http.error()));
  made->http_ = *std::move(http);
  made->events_ =
      job.on_event([server = made.get()](const std::string&) { server->something_happened(); });
  made->await_tick(Clock::now() + kInterval);
  return made;
}

MetricsServer::MetricsServer(boost::asio::io_context& io, JobView& job, JobIdentity labels)
    : job_(job), labels_(std::move(labels)), timer_(io) {}

void MetricsServer::serve(const std::shared_ptr<HttpExchange>& exchange) {
  const std::string& path = exchange->path();
  if (path == "/metrics") {
    return job_.refresh(lifetime_.guard([this, exchange] {
      exchange->reply({.content_type = std::string(kPrometheusContentType),
                       .body = metrics_text(job_.node_status(), labels_)});
    }));
  }
  if (path == "/healthz" || path == "/livez") {
    const Health health = health_of(job_.node_status());
    const bool is_well = path == "/livez" ? health.is_alive : health.is_well;
    return exchange->reply({.status = is_well ? 200U : 503U, .body = health.sentence + "\n"});
  }
  if (!exchange->is_over_loopback()) {
    return exchange->reply({.status = path == "/" || path == "/events" ? 403U : 404U,
                            .body =
                                "other machines get /metrics, /healthz and /livez here; the live "
                                "page is for this machine only, also through ssh -L\n"});
  }
  if (path == "/") return serve_page(*exchange);
  if (path == "/events") {
    if (!exchange->begin_events()) return;
    viewers_.push_back({exchange});
    return something_happened();
  }
  exchange->reply(
      {.status = 404,
       .body = "there is / for people, /metrics for Prometheus, /healthz and /livez for probes\n"});
}

void MetricsServer::serve_page(HttpExchange& exchange) const {
  const auto nonce = make_nonce();
  if (!nonce) return exchange.reply({.status = 503, .body = "no random numbers yet\n"});
  const std::string policy = "default-src 'none'; script-src 'nonce-" + *nonce +
                             "'; style-src 'nonce-" + *nonce +
                             "'; connect-src 'self'; img-src data:; base-uri 'none'; "
                             "form-action 'none'; frame-ancestors 'none'; "
                             "require-trusted-types-for 'script'";
  exchange.reply({.content_type = "text/html; charset=utf-8",
                  .body = boost::replace_all_copy(std::string(kPage), kPageNonce, *nonce),
                  .headers = {{"Content-Security-Policy", policy},
                              {"Cross-Origin-Resource-Policy", "same-origin"},
                              {"Referrer-Policy", "no-referrer"}}});
}

// ---- what pages hear ----------------------------------------------------------------------------

// Asks soon, but only once for many events.
void MetricsServer::something_happened() {
  if (is_watched()) await_tick(std::max(Clock::now(), asked_at_ + kSoon));
}

bool MetricsServer::is_watched() {
  std::erase_if(viewers_, [](const Viewer& each) { return !each.exchange->is_open(); });
  return !viewers_.empty();
}

void MetricsServer::await_tick(Clock::time_point at) {
  if (is_over_) return;
  timer_.arm_at(at, [this] { tick(); });
}

void MetricsServer::tick() {
  await_tick(Clock::now() + kInterval);
  if (is_watched()) return ask();
  feed_.sample(job_.node_status());
}

void MetricsServer::ask() {
  if (std::exchange(is_asking_, true)) return;
  asked_at_ = Clock::now();
  job_.job_status(lifetime_.guard([this](const JobStatus& status) {
    is_asking_ = false;
    if (is_over_) return;
    feed_.look(status, Clock::now());
    tell_viewers();
  }));
}

// One text for all pages that have the previous state. A page that has not taken the last event yet
// misses this one, and gets whole() later.
void MetricsServer::tell_viewers() {
  std::shared_ptr<const std::string> whole;
  std::shared_ptr<const std::string> change;
  for (Viewer& viewer : viewers_) {
    if (viewer.exchange->is_busy()) {
      viewer.needs_whole = true;
      continue;
    }
    auto& text = viewer.needs_whole ? whole : change;
    if (!text) text = event_of(viewer.needs_whole ? feed_.whole() : feed_.change());
    viewer.needs_whole = false;
    viewer.exchange->send_event(text);
  }
}

void MetricsServer::over(std::string_view sentence) {
  is_over_ = true;
  timer_.cancel();
  JobStatus own;
  own.when = std::chrono::system_clock::now();
  own.nodes.push_back(job_.node_status());
  feed_.end(sentence, own, Clock::now());
  if (!is_watched()) return;
  for (const Viewer& viewer : viewers_) {
    viewer.exchange->end_events(event_of(viewer.needs_whole ? feed_.whole() : feed_.change()));
  }
}

}  // namespace ddprun::agent
