// A process environment as a value, so that a test can call the functions that depend on it with a
// map of its own. Read once, in main; nothing else in the project calls getenv or setenv.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun {

using Environment = std::map<std::string, std::string, std::less<>>;

// Entries without '=' are dropped; of two entries with one name the first wins, as for getenv.
Environment environment_from(const char* const* envp);

// Empty if there is no such variable.
std::string value_or_empty(const Environment& environment, std::string_view name);

// "NAME=value" lines in the order of the map, as execve wants them.
std::vector<std::string> to_lines(const Environment& environment);

// The environment of a child process that inherits most of another one, which must outlive this. Only the difference
// is kept, so that the rest is not copied for each worker.
class ChildEnvironment {
 public:
  explicit ChildEnvironment(const Environment& inherited) : inherited_(&inherited) {}

  void set(std::string name, std::string value) { own_[std::move(name)] = std::move(value); }
  void set_default(std::string name, std::string value);  // unless it has one already
  void unset(std::string name);
  bool has(std::string_view name) const;
  std::string value_or_empty(std::string_view name) const;
  // What was set, without those that are inherited with the same value.
  Environment own() const;
  std::vector<std::string> lines() const;  // as to_lines()

 private:
  const Environment* inherited_;
  std::map<std::string, std::optional<std::string>, std::less<>> own_;  // std::nullopt: unset
};

}  // namespace ddprun
