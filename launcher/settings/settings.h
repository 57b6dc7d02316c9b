// The value of each option and where it came from: the command line, else the environment, else the
// configuration file, else the site (below), else the default. Pure: all of these are arguments.
// Values are texts here; plan.h reads them and checks that they fit together.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/command_line.h"
#include "launcher/cli/option_table.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

// ---- the site
//
// The system that started ddprun (Slurm, Open MPI, Kubernetes, ...), and what its variables say about the job. Each site is
// one function from the environment to a Site, in site_<name>.cpp; site_maker.h has what they share. They are pure, but
// for the hosts that PBS and Kubernetes write into files. Whether a site's value counts beside the user's is decided by
// resolve(), in the same way for all sites. Any thread. A site must be recognised only by a variable that a user's own
// shell does not have, and must not give a value that it does not know.

// The site's value of one option, as if typed.
struct SiteValue {
  std::string text;
  std::string from;  // "SLURM_NNODES", or in words; an origin of --dry-run
  // Proposed (a port, a run id) and not known: a user who gives another value contradicts nobody.
  bool is_proposal = false;
};

struct Site {
  std::string name;  // "Slurm"
  // ddprun is called as torchrun, whose defaults count more than the site: one worker, one node.
  bool is_for_torchrun = false;
  // A value, or why it cannot be known; that error counts only if the user does not give the value.
  // The meeting place is in kMasterAddr and kMasterPort; with c10d they become --rdzv-endpoint.
  std::map<OptionId, Result<SiteValue>> values;
  // The number of workers for the site's own --nproc-per-node=auto, if there is no GPU.
  std::optional<int> cpus;
  // The site has started several ddpruns on a node; the error says what to do. A user who wants this
  // gives --standalone, or as many nodes.
  struct TooMany {
    int started;
    Error error;
  };
  std::optional<TooMany> too_many;
  // The site has started several ddpruns, as many nodes or each for a job of its own, and does not say which. The user
  // says it by the number of nodes or by --standalone; else an option about several nodes says it.
  struct Uncounted {
    std::string sentence;  // a variable, and what it leaves open: "JOB_COMPLETION_INDEX=1, but ..."
    std::string together_by;  // what at the site says that they belong together; empty: nothing
  };
  std::optional<Uncounted> uncounted;
  std::vector<std::string> notes;     // for --dry-run and the log at info
  std::vector<std::string> warnings;  // printed unless the user gives the number of nodes
};

// Nothing outside of a site, and nothing inside a worker of another launcher, because that launcher
// has already used the variables. Where several sites are, the innermost counts: kSites in settings.cpp has the order.
// Files are looked for below `root`.
std::optional<Site> find_site(const Environment& environment, const std::string& root = "");

using FindSite = std::optional<Site>(const Environment& environment, const std::string& root);
FindSite flux_site, jsrun_site, open_mpi_site, pals_site, mpich_site;
FindSite skypilot_site, dstack_site, sagemaker_site, slurm_site;
FindSite leader_worker_set_site, kubernetes_site, pbs_shell_site, lsf_shell_site;

// Why no process here lives longer than the ddprun that started it: the begin of a sentence. Empty: one may.
std::string why_nothing_outlives(const Environment& environment);
bool is_slurm_step(const Environment& environment);
// Whatever has started ddprun inside of it: munge proves there whose a process is.
bool is_in_slurm_job(const Environment& environment);
bool is_pod(const Environment& environment);

// ---- the settings

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
  std::string
      of_many{};  // a warning: this is one of several jobs of one node each; empty: it is not
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
