// Values as JSON and back: status, events, records, questions. The fields of a struct are listed
// once, in a function that runs with a JsonWriter or a JsonReader:
//
//   static void fields(auto& json, Is<LateNode> auto& node) {
//     json("id", node.id);
//     json("why", node.why);
//   }
//
// Texts are shortened. Durations are in microseconds (milliseconds as such), times in microseconds
// since the epoch of their clock; a value that is missing is null. Pure; for sources, not for
// headers. Reading throws what Boost.JSON throws; only parse_json() catches it.
#pragma once

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "agent/text/json_text.h"
#include "rendezvous/common/archive.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/worker_abi/worker_progress.h"

namespace ddprun::agent {

using rdzv::wire::Is;

// The names of an enumeration's values, which count from 0; a value beyond them is written as the
// first one. An enumeration without names is a number.
template <typename Enum>
inline constexpr std::nullptr_t kNames{};
// Later versions add values to it: a name that is unknown here is read as the first one.
template <typename Enum>
inline constexpr bool kMayGrow = false;
template <typename T>
inline constexpr bool kIsNamed = !std::is_same_v<decltype(kNames<T>), const std::nullptr_t>;
template <>
inline constexpr std::array<std::string_view, 6> kNames<WorkerPhase>{
    "unknown", "joining", "running", "collective", "saving", "leaving"};
template <>
inline constexpr std::array<std::string_view, 3> kNames<StepKind>{"program", "optimizer",
                                                                  "counted"};

// A text of any length.
template <typename T>
struct Whole {
  T& text;
};
template <typename T>
Whole(T&) -> Whole<T>;

// A field whose T{} is null.
template <typename T>
struct OrNull {
  T& value;
};
template <typename T>
OrNull(T&) -> OrNull<T>;

class JsonWriter {
 public:
  boost::json::object object;

  void operator()(std::string_view name, const auto& value) { object[name] = of(value); }
  // The same; other versions may lack the field.
  void may_lack(std::string_view name, const auto& value) { (*this)(name, value); }
  // Not read back.
  void constant(std::string_view name, const auto& value) { (*this)(name, value); }

  template <typename T>
  static boost::json::value of(const T& value) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      return json_text(value, kJsonTextBytesMax);
    } else if constexpr (std::is_arithmetic_v<T>) {
      return value;
    } else if constexpr (kIsNamed<T>) {
      const auto place = static_cast<std::size_t>(value);
      return of(kNames<T>[place < kNames<T>.size() ? place : 0]);
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<std::underlying_type_t<T>>(value);
    } else if constexpr (std::is_same_v<T, std::chrono::milliseconds>) {
      return value.count();
    } else if constexpr (requires { in_us(value); }) {
      return in_us(value);
    } else if constexpr (requires { value.time_since_epoch(); }) {
      return in_us(value.time_since_epoch());
    } else {
      JsonWriter writer;
      fields(writer, value);
      return std::move(writer.object);
    }
  }
  template <typename T>
  static boost::json::value of(const std::optional<T>& value) {
    return value ? of(*value) : nullptr;
  }
  template <typename T>
  static boost::json::value of(const OrNull<T>& field) {
    return field.value == std::remove_const_t<T>{} ? nullptr : of(field.value);
  }
  template <typename T>
  static boost::json::value of(const Whole<T>& whole) {
    return json_text(whole.text, SIZE_MAX / 2);
  }
  template <typename T>
  static boost::json::value of(const std::vector<T>& values) {
    boost::json::array array;
    array.reserve(values.size());
    for (const T& value : values) array.push_back(of(value));
    return array;
  }
  static boost::json::value of(const std::vector<NamedValue>& values) {
    boost::json::object object;
    for (const auto& [name, value] : values) {
      object[name] = std::isfinite(value) ? boost::json::value(value) : nullptr;  // JSON has no NaN
    }
    return object;
  }
  // Lines of JSON. One that is none would make the whole invalid.
  static boost::json::value of(const std::vector<std::string>& lines) {
    boost::json::array array;
    for (const std::string& line : lines) {
      boost::system::error_code ec;
      array.push_back(boost::json::parse(line, ec));
      if (ec) array.back() = nullptr;
    }
    return array;
  }
};

// Throws if a field is missing or has another type.
class JsonReader {
 public:
  const boost::json::object& object;

  explicit JsonReader(const boost::json::value& value) : object(value.as_object()) {}

  void operator()(std::string_view name, auto&& value) const { read(object.at(name), value); }
  void may_lack(std::string_view name, auto&& value) const {
    if (object.contains(name)) (*this)(name, value);
  }
  void constant(std::string_view, const auto&) const {}
  template <typename T>
  T get(std::string_view name) const {
    T value{};
    (*this)(name, value);
    return value;
  }

  template <typename T>
  static void read(const boost::json::value& from, T& to) {
    using namespace std::chrono;
    if constexpr (std::is_same_v<T, std::string>) {
      to = std::string_view(from.as_string());
    } else if constexpr (std::is_same_v<T, bool>) {
      to = from.as_bool();
    } else if constexpr (std::is_arithmetic_v<T>) {
      to = from.to_number<T>();
    } else if constexpr (kIsNamed<T>) {
      const auto name = std::ranges::find(kNames<T>, std::string_view(from.as_string()));
      const bool is_known = name != kNames<T>.end();
      if (!is_known && !kMayGrow<T>) throw std::out_of_range("an unknown name");
      to = static_cast<T>(is_known ? name - kNames<T>.begin() : 0);
    } else if constexpr (std::is_enum_v<T>) {
      to = static_cast<T>(from.to_number<std::underlying_type_t<T>>());
    } else if constexpr (requires { in_us(to); }) {
      const std::int64_t count = count_in(from);
      // Another node has sent it: sums and small multiples of durations must not overflow.
      constexpr microseconds kLongest = years(10);
      if constexpr (std::is_same_v<T, milliseconds>) {
        to = milliseconds(count);
      } else if constexpr (std::is_same_v<T, nanoseconds>) {
        to = std::clamp(microseconds(count), microseconds(0), kLongest);
      } else {
        to = std::clamp(microseconds(count), -kLongest, kLongest);
      }
    } else if constexpr (requires { to.time_since_epoch(); }) {
      to = T(microseconds(count_in(from)));
    } else {
      const JsonReader reader(from);
      fields(reader, to);
    }
  }
  // Refuses what does not fit into nanoseconds, to which times are converted.
  static std::int64_t count_in(const boost::json::value& from) {
    constexpr std::int64_t kMax = INT64_MAX / 1000;
    const auto count = from.to_number<std::int64_t>();
    if (count > kMax || count < -kMax) throw std::out_of_range("a time that is none");
    return count;
  }
  template <typename T>
  static void read(const boost::json::value& from, std::optional<T>& to) {
    to.reset();
    if (!from.is_null()) read(from, to.emplace());
  }
  template <typename T>
  static void read(const boost::json::value& from, OrNull<T>& to) {
    from.is_null() ? void(to.value = {}) : read(from, to.value);
  }
  template <typename T>
  static void read(const boost::json::value& from, Whole<T>& to) {
    read(from, to.text);
  }
  template <typename T>
  static void read(const boost::json::value& from, std::vector<T>& to) {
    for (const auto& each : from.as_array()) read(each, to.emplace_back());
  }
  static void read(const boost::json::value& from, std::vector<NamedValue>& to) {
    for (const auto& each : from.as_object()) {
      const bool is_none = each.value().is_null();
      to.push_back({each.key(), is_none ? std::nan("") : each.value().to_number<double>()});
    }
  }
  static void read(const boost::json::value& from, std::vector<std::string>& lines) {
    for (const auto& each : from.as_array()) lines.push_back(boost::json::serialize(each));
  }
};

template <typename T>
Result<T> parse_json(std::string_view text, std::string_view what) {
  try {
    T value{};
    JsonReader::read(boost::json::parse(text), value);
    return value;
  } catch (const boost::system::system_error& error) {  // without the source location in Boost
    return fail(ErrorCode::kProtocol,
                std::string(what) + " cannot be read: " + error.code().message());
  } catch (const std::exception& error) {
    return fail(ErrorCode::kProtocol, std::string(what) + " cannot be read: " + error.what());
  }
}

// As agent/README.md documents it in `worker_exited`.
void fields(auto& json, Is<WorkerProgress> auto& progress) {
  json("step", progress.step);
  json("total_steps", progress.total_steps);
  json("step_kind", progress.step_kind);
  json("since_step_us", progress.since_step);
  json("phase", progress.phase);
  json("since_phase_us", progress.since_phase);
  json("collectives", progress.collectives);
  json("values", progress.values);
}

}  // namespace ddprun::agent
