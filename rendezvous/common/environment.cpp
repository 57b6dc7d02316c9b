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
  return ChildEnvironment(environment).lines();
}

void ChildEnvironment::set_default(std::string name, std::string value) {
  if (!has(name)) set(std::move(name), std::move(value));
}

void ChildEnvironment::unset(std::string name) {
  if (inherited_->contains(name)) {
    own_[std::move(name)].reset();
  } else {
    own_.erase(name);
  }
}

bool ChildEnvironment::has(std::string_view name) const {
  const auto own = own_.find(name);
  return own == own_.end() ? inherited_->contains(name) : own->second.has_value();
}

std::string ChildEnvironment::value_or_empty(std::string_view name) const {
  const auto own = own_.find(name);
  return own == own_.end() ? ddprun::value_or_empty(*inherited_, name) : own->second.value_or("");
}

Environment ChildEnvironment::own() const {
  Environment own;
  for (const auto& [name, value] : own_) {
    const auto before = inherited_->find(name);
    if (value && (before == inherited_->end() || before->second != *value)) own[name] = *value;
  }
  return own;
}

std::vector<std::string> ChildEnvironment::lines() const {
  std::vector<std::string> lines;
  lines.reserve(inherited_->size() + own_.size());
  const auto add = [&lines](const std::string& name, const std::string& value) {
    std::string& line = lines.emplace_back();
    line.reserve(name.size() + 1 + value.size());
    line.append(name).append(1, '=').append(value);
  };
  auto inherited = inherited_->begin();
  for (const auto& [name, value] : own_) {
    for (; inherited != inherited_->end() && inherited->first < name; ++inherited) {
      add(inherited->first, inherited->second);
    }
    if (inherited != inherited_->end() && inherited->first == name) ++inherited;
    if (value) add(name, *value);
  }
  for (; inherited != inherited_->end(); ++inherited) add(inherited->first, inherited->second);
  return lines;
}

}  // namespace ddprun
