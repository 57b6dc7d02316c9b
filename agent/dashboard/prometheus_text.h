// Prometheus' text exposition format, version 0.0.4, written family by family. Pure.
//
// Not prometheus-cpp's, although a test holds both side by side: its registry of counters that
// somebody keeps up to date is not wanted where a status is turned into text when it is asked for,
// and Debian has it as a shared library only, which every node would need to have.
//
// The mistake to avoid: two families of one name, or a sample before its family.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun::agent {

inline constexpr std::string_view kPrometheusContentType =
    "text/plain; version=0.0.4; charset=utf-8";

class PrometheusText {
 public:
  enum class Type { kCounter, kGauge };
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // What all samples from here on are of.
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

}  // namespace ddprun::agent
