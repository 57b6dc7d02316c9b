// Our text beside that of prometheus-cpp, Prometheus' own C++ library: byte by byte the same.
#include "agent/dashboard/prometheus_text.h"

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

namespace ddprun::agent {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

prometheus::MetricFamily family(const std::string& name, prometheus::MetricType type,
                                const std::string& help,
                                const std::vector<std::pair<Labels, double>>& samples) {
  prometheus::MetricFamily family{name, help, type, {}};
  for (const auto& [labels, value] : samples) {
    prometheus::ClientMetric metric;
    for (const auto& [label, text] : labels) metric.label.push_back({label, text});
    metric.counter.value = metric.gauge.value = value;
    family.metric.push_back(std::move(metric));
  }
  return family;
}

TEST(PrometheusText, IsWhatPrometheusOwnLibraryWrites) {
  const std::string odd = "a\"b\\c\nd \xC3\xA4";
  PrometheusText text;
  text.family("ddprun_restarts_total", PrometheusText::Type::kCounter, "Restarts.");
  text.sample(2, {{"reason", "worker_failed"}});
  text.sample(0, {{"reason", odd}, {"rank", "3"}});
  text.family("ddprun_goodput_ratio", PrometheusText::Type::kGauge, "Goodput.");
  text.sample(0.25);
  text.sample(-1.5e-7);
  text.sample(1e12);

  using Type = prometheus::MetricType;
  const std::string theirs = prometheus::TextSerializer().Serialize(
      {family("ddprun_restarts_total", Type::Counter, "Restarts.",
              {{{{"reason", "worker_failed"}}, 2}, {{{"reason", odd}, {"rank", "3"}}, 0}}),
       family("ddprun_goodput_ratio", Type::Gauge, "Goodput.",
              {{{}, 0.25}, {{}, -1.5e-7}, {{}, 1e12}})});
  EXPECT_EQ(text.take(), theirs);
}

}  // namespace
}  // namespace ddprun::agent
