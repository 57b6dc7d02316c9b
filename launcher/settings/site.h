// The site: the engine that started ddprun (Slurm, Kubernetes), and what its variables say about the
// job. Each site is one file, site_<name>.cpp, with one pure function from the environment to a
// Site; which of it counts beside what the user said is decided here, the same way for all of them.
// Pure; any thread. The mistake to avoid: a site that is recognised by a variable which a user's own
// shell may have too, or that claims a value it does not know.
//
//   flag, DDPRUN_*, PET_*, file    said on purpose: always wins
//   site                           what is left unsaid
//   default
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/option_table.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

class Settings;

// One option as the site has it, as if typed.
struct SiteValue {
  std::string text;
  std::string from;  // "SLURM_NNODES", or in words; an origin of --dry-run
  // Made for the occasion (a port, a run id) rather than known: whoever says something else
  // contradicts nobody.
  bool is_proposal = false;

  bool operator==(const SiteValue&) const = default;
};

struct Site {
  std::string name;  // "Slurm"
  // A value, or why it cannot be known, which is said only if nobody else says the value. Where the
  // nodes meet is kMasterAddr and kMasterPort; with c10d the two become the --rdzv-endpoint.
  std::map<OptionId, Result<SiteValue>> values;
  // For --nproc-per-node=auto of the site's own, where there is no GPU.
  std::optional<int> cpus;
  // The site has started so many of us that nodes have several; the error says what to do. Who
  // means it says --standalone, or as many nodes.
  struct TooMany {
    int started;
    Error error;
  };
  std::optional<TooMany> too_many;
  std::vector<std::string> notes;     // for --dry-run and the log at info
  std::vector<std::string> warnings;  // said unless the user says how many nodes there are
};

// Nothing on a machine of one's own, and nothing inside a worker of another launcher: that one has
// used what the variables say already.
std::optional<Site> find_site(const Environment& environment);

// Puts what the site says where nobody said anything, and notes whose value was dropped:
// - --standalone, or another number of nodes than the site's: this job is not the site's, and
//   nothing about nodes is taken from it;
// - --rdzv-endpoint or --master-addr: the nodes meet there and not where the site says;
// - a job on one node needs no meeting place at all.
void apply_site(const Site& site, Settings& settings);

// --- the sites, each in a file of its own

std::optional<Site> slurm_site(const Environment& environment);
std::optional<Site> kubernetes_site(const Environment& environment);

}  // namespace ddprun::cli
