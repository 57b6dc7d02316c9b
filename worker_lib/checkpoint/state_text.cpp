#include "worker_lib/checkpoint/state_text.h"

#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "ddprun/error.h"
#include "rendezvous/common/parse_number.h"

namespace ddprun {
namespace {

namespace json = boost::json;

// All bits, as printf's %a has them, but with a point whatever the locale is.
std::string hexadecimal(double value) {
  char digits[40];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, std::abs(value), std::chars_format::hex).ptr;
  return (std::signbit(value) ? "-" : "") + std::string(std::isfinite(value) ? "0x" : "") +
         std::string(digits, end);
}

std::optional<double> from_hexadecimal(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  const bool has_prefix = text.starts_with("0x");
  if (has_prefix) text.remove_prefix(2);
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(
      text.data(), end, value, has_prefix ? std::chars_format::hex : std::chars_format::general);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return is_negative ? -value : value;
}

}  // namespace

StateText StateText::parse(std::string what, const std::string& text) {
  StateText state(std::move(what));
  json::error_code error;
  const json::value parsed = json::parse(text, error);
  if (error || !parsed.is_object()) {
    throw UsageError("this is not the state of " + state.what_ + ": " + text.substr(0, 100));
  }
  for (const auto& [name, value] : parsed.get_object()) {
    if (!value.is_string()) {
      throw UsageError("the state of " + state.what_ + " has a '" + std::string(name) +
                       "' that is no string");
    }
    state.values_.emplace(name, value.get_string());
  }
  return state;
}

StateText& StateText::put(const std::string& name, double value) {
  return put(name, hexadecimal(value));
}

StateText& StateText::put(const std::string& name, std::string value) {
  values_[name] = std::move(value);
  return *this;
}

StateText& StateText::put(const std::string& name, const std::map<std::string, double>& values) {
  StateText inner(what_);
  for (const auto& [key, value] : values) inner.put(key, value);
  return put(name, inner.to_string());
}

std::map<std::string, double> StateText::numbers(const std::string& name) const {
  const StateText inner = parse(what_, text(name));
  std::map<std::string, double> values;
  for (const auto& entry : inner.values_) values[entry.first] = inner.number(entry.first);
  return values;
}

const std::string& StateText::text(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    throw UsageError("the state of " + what_ + " lacks '" + name +
                     "': it was saved by another version, or by another part");
  }
  return found->second;
}

std::int64_t StateText::integer(const std::string& name) const {
  if (const auto value = parse_number<std::int64_t>(text(name))) return *value;
  refuse(name, "whole number");
}

double StateText::number(const std::string& name) const {
  if (const auto value = from_hexadecimal(text(name))) return *value;
  refuse(name, "number");
}

void StateText::refuse(const std::string& name, const char* kind) const {
  throw UsageError("the state of " + what_ + " has " + name + " = '" + text(name) +
                   "', which is no " + kind);
}

std::string StateText::to_string() const {
  json::object object;
  for (const auto& [name, value] : values_) object[name] = value;
  return json::serialize(object);
}

}  // namespace ddprun
