// Serialises messages and reads them back. The layout of each message is written down once
// (round_wire.cpp), as a function `fields(archive, message)` that names its fields in order and
// runs with a Writer or a Reader.
//
// The Writer cuts texts that are too long; the Reader refuses what the Writer would not have
// written, so that every value has exactly one encoding. Values for one thread. Check the Reader's
// error() before you use what it filled in: after the first error it reads nothing more.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "rendezvous/common/bytes.h"
#include "rendezvous/common/ids.h"
#include "rendezvous/common/limits.h"

namespace ddprun::rdzv::wire {

template <typename T, typename Message>
concept Is = std::same_as<std::remove_const_t<T>, Message>;

// The numbers of a variant's alternatives on the wire: 1, 2, 3 …, unless this is specialised.
template <typename Variant>
inline constexpr auto kNumbers = [] {
  std::array<std::uint8_t, std::variant_size_v<Variant>> numbers{};
  std::iota(numbers.begin(), numbers.end(), std::uint8_t{1});
  return numbers;
}();

// `text`, or if it is longer than `bytes_max`, its beginning and "…" within that size. A UTF-8
// character is never cut in two.
inline std::string cut(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  static constexpr std::string_view kEllipsis = "…";
  static constexpr std::size_t kMostContinuationBytes = 3;
  std::size_t end = bytes_max - kEllipsis.size();
  for (std::size_t i = 0; i < kMostContinuationBytes && (text[end] & 0xC0) == 0x80; ++i) --end;
  return std::string(text.substr(0, end)).append(kEllipsis);
}

class Writer {
 public:
  template <typename... Fields>
  void operator()(const Fields&... each) {
    (field(each), ...);
  }
  void name(const auto&... values) { (string(values), ...); }
  void host(const auto&... values) { (string(values), ...); }
  void text(std::string_view value) { string(cut(value, limits::kMaxTextBytes)); }
  void path(std::string_view value) { string(cut(value, limits::kMaxPathBytes)); }
  void opaque(std::string_view value, std::size_t /*bytes_max*/) { string(value); }
  void within(int /*low*/, int /*high*/, auto... values) { (field(values), ...); }
  // An enumeration whose values are 0, 1 … last; any other is written as 0.
  template <typename T>
  void choice(T value, T last) {
    field(static_cast<std::uint8_t>(value <= last ? value : T{}));
  }

  // Writes the latest lines that fit.
  void lines(const std::vector<std::string>& lines) {
    std::vector<std::string> kept;
    std::size_t bytes = 0;
    for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
      std::string text = cut(*line, limits::kMaxLineBytes);
      bytes += sizeof(std::uint32_t) + text.size();
      if (bytes > limits::kMaxLinesBytes) break;
      kept.push_back(std::move(text));
    }
    field(static_cast<std::uint32_t>(kept.size()));
    for (auto line = kept.rbegin(); line != kept.rend(); ++line) string(*line);
  }

  std::string& bytes() { return bytes_; }

 private:
  template <std::integral T>
  void field(T value) {
    append(bytes_, value);
  }
  void field(bool value) { field(static_cast<std::uint8_t>(value)); }
  void field(Round value) { field(number(value)); }
  void field(NodeId value) { field(number(value)); }
  void field(std::chrono::nanoseconds value) { field(std::int64_t{value.count()}); }
  void field(std::chrono::seconds value) {
    using Limits = std::numeric_limits<std::int32_t>;
    const std::int64_t clamped = std::clamp<std::int64_t>(value.count(), 0, Limits::max());
    field(static_cast<std::int32_t>(clamped));
  }
  void field(std::chrono::system_clock::time_point value) {
    const auto since_epoch = value.time_since_epoch();
    field(std::int64_t{std::chrono::floor<std::chrono::microseconds>(since_epoch).count()});
  }
  template <typename T>
  void field(const std::optional<T>& value) {
    field(value.has_value());
    if (value) field(*value);
  }
  template <typename T>
  void field(const std::vector<T>& values) {
    field(static_cast<std::uint32_t>(values.size()));
    for (const T& value : values) field(value);
  }
  template <typename... Alternatives>
  void field(const std::variant<Alternatives...>& value) {
    field(kNumbers<std::variant<Alternatives...>>[value.index()]);
    std::visit([this](const auto& alternative) { this->field(alternative); }, value);
  }
  template <typename T>
  requires std::is_class_v<T>
  void field(const T& value) { fields(*this, value); }
  void string(std::string_view value) {
    field(static_cast<std::uint32_t>(value.size()));
    bytes_ += value;
  }

  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename... Fields>
  void operator()(Fields&... each) {
    (field(each), ...);
  }
  void name(auto&... values) { (string(values, limits::kMaxNameBytes, "a name is too long"), ...); }
  void host(auto&... values) { (string(values, limits::kMaxHostBytes, "a host is too long"), ...); }
  void text(std::string& value) { string(value, limits::kMaxTextBytes, "a text is too long"); }
  void path(std::string& value) { string(value, limits::kMaxPathBytes, "a path is too long"); }
  void opaque(std::string& value, std::size_t bytes_max) {
    string(value, bytes_max, "a field is too long");
  }
  void within(int low, int high, auto&... values) {
    const auto read = [&](int& value) {
      field(value);
      if (value < low || value > high) refuse("a number is out of range");
    };
    (read(values), ...);
  }
  template <typename T>
  void choice(T& value, T last) {
    const auto number = get<std::uint8_t>();
    if (number > static_cast<std::uint8_t>(last)) return refuse("it has an unknown value");
    value = static_cast<T>(number);
  }
  void lines(std::vector<std::string>& lines) {
    std::size_t bytes = 0;
    for (std::uint32_t left = count(); left > 0 && error_.empty(); --left) {
      string(lines.emplace_back(), limits::kMaxLineBytes, "a line is too long");
      bytes += sizeof(std::uint32_t) + lines.back().size();
      if (bytes > limits::kMaxLinesBytes) refuse("there are too many lines");
    }
  }

  void end() {
    if (!rest_.empty()) refuse("it has extra bytes at its end");
  }
  // The first error; empty if there is none so far.
  std::string_view error() const { return error_; }

 private:
  template <std::integral T>
  void field(T& value) {
    if (rest_.size() < sizeof value) return refuse("it ends too early");
    value = load<T>(rest_.data());
    rest_.remove_prefix(sizeof value);
  }
  void field(bool& value) {
    const auto byte = get<std::uint8_t>();
    if (byte > 1) refuse("a boolean is neither 0 nor 1");
    value = byte == 1;
  }
  void field(Round& value) { value = Round{get<std::uint32_t>()}; }
  void field(NodeId& value) { value = NodeId{get<std::uint32_t>()}; }
  void field(std::chrono::nanoseconds& value) {
    value = std::chrono::nanoseconds(get<std::int64_t>());
  }
  void field(std::chrono::seconds& value) {
    int count = 0;
    within(0, std::numeric_limits<std::int32_t>::max(), count);
    value = std::chrono::seconds(count);
  }
  void field(std::chrono::system_clock::time_point& value) {
    using std::chrono::microseconds;
    using Clock = std::chrono::system_clock;
    const microseconds since_epoch(get<std::int64_t>());
    if (since_epoch < std::chrono::ceil<microseconds>(Clock::duration::min()) ||
        since_epoch > std::chrono::floor<microseconds>(Clock::duration::max()))
      return refuse("a time is out of range");
    value = Clock::time_point(since_epoch);
  }
  template <typename T>
  void field(std::optional<T>& value) {
    if (get<bool>()) field(value.emplace());
  }
  // The vector grows with the elements that really arrive, whatever the count says.
  template <typename T>
  void field(std::vector<T>& values) {
    for (std::uint32_t left = count(); left > 0 && error_.empty(); --left)
      field(values.emplace_back());
  }
  template <typename... Alternatives>
  void field(std::variant<Alternatives...>& value) {
    const auto wanted = get<std::uint8_t>();
    auto number = kNumbers<std::variant<Alternatives...>>.begin();
    const auto is_read = [&]<typename T>(std::type_identity<T>) {
      const bool is_it = *number++ == wanted;
      if (is_it) field(value.template emplace<T>());
      return is_it;
    };
    if (!(is_read(std::type_identity<Alternatives>{}) || ...)) refuse("its kind is unknown");
  }
  template <typename T>
  requires std::is_class_v<T>
  void field(T& value) { fields(*this, value); }

  template <typename T>
  T get() {
    T value{};
    field(value);
    return value;
  }
  // A count of elements, each of which takes at least one byte.
  std::uint32_t count() {
    const auto count = get<std::uint32_t>();
    if (count > rest_.size()) refuse("it ends too early");
    return count;
  }
  void string(std::string& value, std::size_t bytes_max, std::string_view too_long) {
    const auto size = get<std::uint32_t>();
    if (size > bytes_max) return refuse(too_long);
    if (size > rest_.size()) return refuse("it ends too early");
    value = rest_.substr(0, size);
    rest_.remove_prefix(size);
  }
  void refuse(std::string_view why) {
    if (error_.empty()) error_ = why;
    rest_ = {};
  }

  std::string_view rest_;
  std::string_view error_;
};

}  // namespace ddprun::rdzv::wire
