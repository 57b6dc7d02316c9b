// StateText: the state of a Stateful part as a text: named values, written as one JSON object of
// strings. Numbers are hexadecimal floats there, since they must come back as the same doubles.
// A value; any thread. parse() and the readers throw UsageError: what they read comes from a file.
//
//   StateText state("a schedule");
//   state.put("step", 12).put("lr.0", 0.1);
//   return state.to_string();
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace ddprun {

class StateText {
 public:
  // `what` is named in errors.
  explicit StateText(std::string what) : what_(std::move(what)) {}
  static StateText parse(std::string what, const std::string& text);

  StateText& put(const std::string& name, std::int64_t value) {
    return put(name, std::to_string(value));
  }
  StateText& put(const std::string& name, double value);
  StateText& put(const std::string& name, std::string value);
  // A map under one name; its own names may be anything.
  StateText& put(const std::string& name, const std::map<std::string, double>& values);

  bool has(const std::string& name) const { return values_.contains(name); }
  std::int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  std::map<std::string, double> numbers(const std::string& name) const;

  std::string to_string() const;

 private:
  [[noreturn]] void refuse(const std::string& name, const char* kind) const;

  std::string what_;
  std::map<std::string, std::string> values_;
};

}  // namespace ddprun
