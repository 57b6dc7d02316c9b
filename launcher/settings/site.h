// The site: the system that started ddprun (Slurm, Kubernetes), and what its variables say about
// the job. Each site is one file, site_<name>.cpp, with one pure function from the environment to a
// Site. Whether a site's value counts beside the user's is decided by resolve(), in the same way for
// all sites. Pure; any thread. A site must be recognised only by a variable that a user's own shell
// does not have, and must not give a value that it does not know.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/option_table.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

// The site's value of one option, as if typed.
struct SiteValue {
  std::string text;
  std::string from;  // "SLURM_NNODES", or in words; an origin of --dry-run
  // Proposed (a port, a run id) and not known: a user who gives another value contradicts nobody.
  bool is_proposal = false;

  bool operator==(const SiteValue&) const = default;
};

struct Site {
  std::string name;  // "Slurm"
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
  std::vector<std::string> notes;     // for --dry-run and the log at info
  std::vector<std::string> warnings;  // printed unless the user gives the number of nodes
};

// Nothing outside of a site, and nothing inside a worker of another launcher, because that launcher
// has already used the variables.
std::optional<Site> find_site(const Environment& environment);

// --- the sites, each in a file of its own

std::optional<Site> slurm_site(const Environment& environment);
std::optional<Site> kubernetes_site(const Environment& environment);

}  // namespace ddprun::cli
