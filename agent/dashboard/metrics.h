// The text of /metrics: the status of this node in Prometheus' format; values of the whole job are
// the same on all nodes. Names and meanings stay compatible: agent/README.md lists them. Pure.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "agent/status/job_view.h"

namespace ddprun::agent {

inline constexpr std::string_view kPrometheusContentType =
    "text/plain; version=0.0.4; charset=utf-8";

// Prometheus' text exposition format, version 0.0.4, written family by family; each name once.
// (prometheus-cpp, to which a test compares it, keeps counters that are updated all the time, and
// Debian has it only as a shared library.)
class PrometheusText {
 public:
  enum class Type { kCounter, kGauge };
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // The family of all following samples.
  void family(std::string_view name, Type type, std::string_view help);
  void sample(double value, Labels labels = {});

  // A family with one sample.
  void gauge(std::string_view name, std::string_view help, double value, Labels labels = {}) {
    family(name, Type::kGauge, help);
    sample(value, labels);
  }
  void counter(std::string_view name, std::string_view help, double value, Labels labels = {}) {
    family(name, Type::kCounter, help);
    sample(value, labels);
  }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::string name_;
};

std::string metrics_text(const NodeStatus& status, const JobIdentity& job);

}  // namespace ddprun::agent
