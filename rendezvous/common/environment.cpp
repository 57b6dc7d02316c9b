#include "rendezvous/common/environment.h"

#include <cstring>

namespace ddprun {

Environment environment_from(const char* const* envp) {
  Environment environment;
  for (; envp != nullptr && *envp != nullptr; ++envp) {
    const char* equals = std::strchr(*envp, '=');
    if (equals == nullptr) continue;
    environment.emplace(std::string(*envp, equals), std::string(equals + 1));
  }
  return environment;
}

std::string value_or_empty(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

std::vector<std::string> to_lines(const Environment& environment) {
  std::vector<std::string> lines;
  lines.reserve(environment.size());
  for (const auto& [name, value] : environment) lines.push_back(name + "=" + value);
  return lines;
}

}  // namespace ddprun
