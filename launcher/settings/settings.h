// The value of each option and where it came from: the command line, else the environment, else the
// configuration file, else the site (site.h), else the default. Pure: all of these are arguments.
// Values are texts here; plan.h reads them and checks that they fit together.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/command_line.h"
#include "launcher/cli/option_table.h"
#include "launcher/settings/site.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

enum class Source { kDefault, kSite, kFile, kEnvironment, kCommandLine };

struct Origin {
  Source source = Source::kDefault;
  std::string name;  // "--tee", "PET_TEE", "job.toml:3", "SLURM_NODEID"; empty for a default

  bool operator==(const Origin&) const = default;
};

// "default", or the origin's name.
std::string to_string(const Origin& origin);

struct Setting {
  std::string text;
  Origin origin;

  bool is_default() const { return origin.source == Source::kDefault; }
  bool operator==(const Setting&) const = default;
};

// Of a configuration file, each text in the option's own syntax.
using FileValues = std::map<OptionId, Setting>;

// What the site has changed in the settings.
struct SiteReport {
  std::string name;           // empty: there is none
  std::optional<int> cpus{};  // see Site
  std::vector<std::string> notes{};
  std::vector<std::string> warnings{};
  std::optional<Error> error{};  // a value that only the site could give is not known
};

class Settings {
 public:
  SiteReport site;

  const Setting& operator[](OptionId id) const { return settings_[static_cast<std::size_t>(id)]; }
  Setting& operator[](OptionId id) { return settings_[static_cast<std::size_t>(id)]; }

 private:
  std::array<Setting, kOptionCount> settings_;
};

// One option with its value: the argument of the readers in values.h.
struct ResolvedOption {
  const OptionSpec& spec;
  const Setting& setting;

  const std::string& text() const { return setting.text; }
  bool is_default() const { return setting.is_default(); }
};
inline ResolvedOption resolved(const Settings& settings, OptionId id) {
  return {spec_of(id), settings[id]};
}

Settings resolve(const CommandLine& line, const Environment& environment, const FileValues& file,
                 const std::optional<Site>& site = std::nullopt);

}  // namespace ddprun::cli
