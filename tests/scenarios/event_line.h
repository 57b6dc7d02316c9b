// A line of a scenario: "worker_ended 1 exit=3: no such file" is a name, words, fields and a text. A part that is not
// asked for is an error, so that a misspelled one is.
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/ids.h"

namespace ddprun::test {

class EventLine {
 public:
  explicit EventLine(std::string_view line) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string_view::npos) text_ = line.substr(colon + 2);
    std::istringstream parts{std::string(line.substr(0, colon))};
    parts >> name_;
    for (std::string part; parts >> part;) {
      const std::size_t equals = part.find('=');
      if (equals == std::string::npos) {
        words_.push_back(part);
      } else {
        fields_[part.substr(0, equals)] = part.substr(equals + 1);
      }
    }
  }

  const std::string& name() const { return name_; }
  // The next word becomes the name.
  EventLine without_name() && {
    if (words_.empty()) throw std::invalid_argument("an event is missing");
    name_ = words_.front();
    words_.erase(words_.begin());
    return std::move(*this);
  }

  bool has(std::string_view word) { return std::erase(words_, word) > 0; }
  std::string word() {
    if (words_.empty()) throw std::invalid_argument("a word is missing");
    const std::string word = words_.front();
    words_.erase(words_.begin());
    return word;
  }
  std::optional<std::string> field(const std::string& name) {
    auto field = fields_.extract(name);
    return field ? std::optional(field.mapped()) : std::nullopt;
  }
  std::optional<int> number(const std::string& name) {
    const auto value = field(name);
    return value ? std::optional(number_in(*value)) : std::nullopt;
  }
  int number(const std::string& name, int otherwise) { return number(name).value_or(otherwise); }
  std::vector<int> numbers(const std::string& name) {
    const auto value = field(name);
    return value ? numbers_in(*value) : std::vector<int>();
  }
  template <typename Duration>
  Duration time(const std::string& name, Duration otherwise) {
    const auto value = field(name);
    return value ? std::chrono::duration_cast<Duration>(time_in(*value)) : otherwise;
  }
  std::string text() { return std::exchange(text_, {}); }

  // ---- what several kinds of events have

  void set_round(Round round) { round_ = round; }  // that it is about, if it names none
  Round round() {
    const auto named = number("round");
    return named ? Round{static_cast<std::uint32_t>(*named)} : round_;
  }
  std::uint32_t generation() { return static_cast<std::uint32_t>(number("generation", 0)); }
  std::uint16_t port(int otherwise) {
    return static_cast<std::uint16_t>(number("port", otherwise));
  }
  int rank() { return number_in(word()); }
  int signal() {
    const std::string name = word();
    const int signal = signal_number(name);
    return signal > 0 ? signal : throw std::invalid_argument("'" + name + "' is no signal");
  }

  void end() const {
    if (!words_.empty()) throw std::invalid_argument("'" + words_.front() + "' means nothing here");
    if (!fields_.empty()) {
      throw std::invalid_argument("'" + fields_.begin()->first + "=' means nothing here");
    }
    if (!text_.empty()) throw std::invalid_argument("a text means nothing here");
  }

  static int number_in(std::string_view text) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return number;
    throw std::invalid_argument("'" + std::string(text) + "' is no number");
  }
  static std::vector<int> numbers_in(const std::string& text) {
    std::vector<int> numbers;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) numbers.push_back(number_in(part));
    return numbers;
  }
  // "30s", "300ms"
  static std::chrono::milliseconds time_in(std::string_view text) {
    if (text.ends_with("ms")) {
      return std::chrono::milliseconds(number_in(text.substr(0, text.size() - 2)));
    }
    if (!text.ends_with("s")) throw std::invalid_argument("a time is 30s or 300ms");
    return std::chrono::seconds(number_in(text.substr(0, text.size() - 1)));
  }

 private:
  std::string name_;
  std::vector<std::string> words_;
  std::map<std::string, std::string> fields_;
  std::string text_;
  Round round_{};
};

}  // namespace ddprun::test
