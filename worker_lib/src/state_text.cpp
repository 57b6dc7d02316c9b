#include "worker_lib/src/state_text.h"

#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "ddprun/error.h"
#include "rendezvous/base/parse_number.h"

namespace ddprun {
namespace {

namespace json = boost::json;

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

StateText& StateText::put(const std::string& name, std::int64_t value) {
  return put(name, std::to_string(value));
}

StateText& StateText::put(const std::string& name, double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", value);
  return put(name, std::string(text));
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
  const std::string& value = text(name);
  const auto result = parse_number<std::int64_t>(value);
  if (!result) {
    throw UsageError("the state of " + what_ + " has " + name + " = '" + value +
                     "', which is no whole number");
  }
  return *result;
}

double StateText::number(const std::string& name) const {
  const std::string& value = text(name);
  char* end = nullptr;
  const double result = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0') {
    throw UsageError("the state of " + what_ + " has " + name + " = '" + value +
                     "', which is no number");
  }
  return result;
}

std::string StateText::to_string() const {
  json::object object;
  for (const auto& [name, value] : values_) object[name] = value;
  return json::serialize(object);
}

}  // namespace ddprun
