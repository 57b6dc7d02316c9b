#include "agent/dashboard/prometheus_text.h"

#include <charconv>
#include <cmath>
#include <cstdint>

namespace ddprun::agent {
namespace {

constexpr double kExactBelow = 1e15;  // below this, whole numbers are written without exponent

void append_number(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "NaN";
  } else if (std::isinf(value)) {
    text += value > 0 ? "+Inf" : "-Inf";
  } else if (std::abs(value) < kExactBelow &&
             value == static_cast<double>(static_cast<std::int64_t>(value))) {
    text += std::to_string(static_cast<std::int64_t>(value));
  } else {
    char digits[32];
    text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
}

void append_escaped(std::string& text, std::string_view value) {
  for (const char c : value) {
    if (c == '\\' || c == '"' || c == '\n') text += '\\';
    text += c == '\n' ? 'n' : c;
  }
}

}  // namespace

void PrometheusText::family(std::string_view name, Type type, std::string_view help) {
  name_ = name;
  text_.append("# HELP ").append(name_).append(" ").append(help);
  text_.append("\n# TYPE ").append(name_);
  text_.append(type == Type::kCounter ? " counter\n" : " gauge\n");
}

void PrometheusText::sample(double value, Labels labels) {
  text_ += name_;
  char before = '{';
  for (const auto& [name, label] : labels) {
    text_ += before;
    text_.append(name).append("=\"");
    append_escaped(text_, label);
    text_ += '"';
    before = ',';
  }
  if (before == ',') text_ += '}';
  text_ += ' ';
  append_number(text_, value);
  text_ += '\n';
}

}  // namespace ddprun::agent
