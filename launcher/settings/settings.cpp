#include "launcher/settings/settings.h"

#include <optional>

namespace ddprun::cli {
namespace {

std::optional<Setting> from_environment(const OptionSpec& spec, const Environment& environment) {
  for (const std::string& name : variables_of(spec)) {
    if (const auto found = environment.find(name); found != environment.end()) {
      return Setting{found->second, {Source::kEnvironment, name}};
    }
  }
  return std::nullopt;
}

Setting resolve_one(const OptionSpec& spec, const CommandLine& line, const Environment& environment,
                    const FileValues& file) {
  if (const auto& given = line.value(spec.id)) {
    return {*given, {Source::kCommandLine, "--" + std::string(spec.name)}};
  }
  if (auto set = from_environment(spec, environment)) return *std::move(set);
  if (const auto found = file.find(spec.id); found != file.end()) {
    return {found->second.text, {Source::kFile, found->second.where}};
  }
  return {std::string(spec.default_text), {}};
}

}  // namespace

std::string to_string(const Origin& origin) {
  return origin.source == Source::kDefault ? "default" : origin.name;
}

Settings resolve(const CommandLine& line, const Environment& environment, const FileValues& file,
                 const std::optional<Site>& site) {
  Settings settings;
  for (const OptionSpec& spec : option_table()) {
    settings[spec.id] = resolve_one(spec, line, environment, file);
  }
  if (site) apply_site(*site, settings);
  return settings;
}

}  // namespace ddprun::cli
