#include "launcher/settings/settings.h"

namespace ddprun::cli {
namespace {

Setting resolve_one(const OptionSpec& spec, const CommandLine& line, const Environment& environment,
                    const FileValues& file) {
  if (const auto& given = line.value(spec.id)) {
    return {*given, {Source::kCommandLine, "--" + std::string(spec.name)}};
  }
  for (const std::string& name : variables_of(spec)) {
    const auto found = environment.find(name);
    if (found != environment.end()) return {found->second, {Source::kEnvironment, name}};
  }
  if (const auto found = file.find(spec.id); found != file.end()) return found->second;
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
