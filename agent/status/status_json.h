// Helpers that turn values into JSON and back: status, records, questions. Pure; for sources, not
// for headers. Reading throws what Boost.JSON throws; only parse_status() catches it.
#pragma once

#include <array>
#include <boost/json.hpp>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "agent/status/node_status.h"
#include "agent/text/json_text.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent::status_json {

namespace json = boost::json;

inline constexpr std::size_t kTextBytesMax = 4096;

inline json::value text(std::string_view bytes) { return json_text(bytes, kTextBytesMax); }

inline std::int64_t unix_us(std::chrono::system_clock::time_point time) {
  return in_us(time.time_since_epoch());
}

template <typename T>
json::value or_null(const std::optional<T>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

// Reads such an object. Throws if a field is missing or has another type.
struct Reader {
  const json::object& object;

  explicit Reader(const json::value& value) : object(value.as_object()) {}

  const json::value& at(std::string_view name) const {
    return object.at(json::string_view(name.data(), name.size()));
  }
  bool has(std::string_view name) const { return !at(name).is_null(); }
  template <typename T>
  T number(std::string_view name) const {
    return at(name).to_number<T>();
  }
  bool truth(std::string_view name) const { return at(name).as_bool(); }
  std::string text(std::string_view name) const {
    const json::string& found = at(name).as_string();
    return {found.data(), found.size()};
  }
  std::chrono::microseconds us(std::string_view name) const {
    // Refuse values that do not fit into nanoseconds, to which they are converted.
    constexpr std::int64_t kMax = INT64_MAX / 1000;
    const auto count = number<std::int64_t>(name);
    if (count > kMax || count < -kMax) throw std::out_of_range("a time that is none");
    return std::chrono::microseconds(count);
  }
  std::chrono::system_clock::time_point unix_us(std::string_view name) const {
    return std::chrono::system_clock::time_point(us(name));
  }
  const json::array& list(std::string_view name) const { return at(name).as_array(); }
  template <typename T>
  std::optional<T> maybe_number(std::string_view name) const {
    return has(name) ? std::optional<T>(number<T>(name)) : std::nullopt;
  }
  // A value of an enum whose values count from 0 and have these names.
  template <typename Enum, std::size_t kCount>
  Enum one_of(const std::array<std::string_view, kCount>& names, std::string_view name) const {
    const std::string found = text(name);
    for (std::size_t i = 0; i < kCount; ++i) {
      if (names[i] == found) return static_cast<Enum>(i);
    }
    throw std::out_of_range("an unknown name");
  }
};

template <typename Parse>
auto parse_status(std::string_view text, std::string_view what, Parse&& parse)
    -> Result<decltype(parse(json::value()))> {
  try {
    return parse(json::parse(json::string_view(text.data(), text.size())));
  } catch (const boost::system::system_error& error) {  // without the source location in Boost
    return fail(ErrorCode::kProtocol,
                std::string(what) + " cannot be read: " + error.code().message());
  } catch (const std::exception& error) {
    return fail(ErrorCode::kProtocol, std::string(what) + " cannot be read: " + error.what());
  }
}

json::value value_of(const NodeStatus& status);
NodeStatus node_status_from(const json::value& value);

}  // namespace ddprun::agent::status_json
