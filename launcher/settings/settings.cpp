#include "launcher/settings/settings.h"

#include <array>
#include <utility>

#include "launcher/settings/values.h"

namespace ddprun::cli {
namespace {

bool has_variable(const Environment& environment, std::string_view prefix) {
  const auto first = environment.lower_bound(prefix);
  return first != environment.end() && first->first.starts_with(prefix);
}

// `has_ours`: the environment has a variable of ours or of torchrun's. Most have none, and to make all
// names and to look for them takes a twentieth of a start.
Setting resolve_one(const OptionSpec& spec, const CommandLine& line, const Environment& environment,
                    bool has_ours, const FileValues& file) {
  if (const auto& given = line.value(spec.id)) {
    return {*given, {Source::kCommandLine, "--" + std::string(spec.name)}};
  }
  if (has_ours || !spec.more_variable.empty()) {
    for (const std::string& name : variables_of(spec)) {
      const auto found = environment.find(name);
      if (found != environment.end()) return {found->second, {Source::kEnvironment, name}};
    }
  }
  if (const auto found = file.find(spec.id); found != file.end()) return found->second;
  return {std::string(spec.default_text), {}};
}

// ---- the site

// The site's value of this option, if it has one that is known.
const SiteValue* known(const Site& site, OptionId id) {
  const auto found = site.values.find(id);
  return found == site.values.end() || !found->second ? nullptr : &*found->second;
}

constexpr std::array kAboutNodes{OptionId::kNnodes,     OptionId::kNodeRank,
                                 OptionId::kMasterAddr, OptionId::kMasterPort,
                                 OptionId::kRdzvId,     OptionId::kRdzvBackend};
constexpr std::array kAboutMeeting{OptionId::kNodeRank, OptionId::kMasterAddr,
                                   OptionId::kMasterPort, OptionId::kRdzvBackend};

// A job on one node has no use for them.
constexpr std::array kAboutSeveralNodes{
    OptionId::kNodeRank, OptionId::kMasterAddr, OptionId::kRdzvBackend, OptionId::kRdzvEndpoint,
    OptionId::kRdzvId,   OptionId::kRdzvConf,   OptionId::kLocalAddr,   OptionId::kTokenFile};

bool is_standalone(const Settings& settings) {
  return read_flag(resolved(settings, OptionId::kStandalone)).value_or(false);
}

// An invalid count is refused elsewhere.
std::optional<int> most_nodes(const ResolvedOption& nodes) {
  const auto count = read_node_count(nodes);
  return count ? std::optional(count->most) : std::nullopt;
}

std::string said(const ResolvedOption& option) {
  return option.setting.origin.name + (option.setting.origin.source == Source::kFile ? ": " : "=") +
         option.text();
}

// Sets the options that the user did not give to the site's values, and notes which values were
// dropped:
// - --standalone, or another number of nodes than the site's: this is another job than the site's,
//   so nothing about nodes is taken from it;
// - --rdzv-endpoint or --master-addr: the nodes meet there and not at the site's place;
// - a job on one node needs no meeting place;
// - in torchrun's place no number of workers or nodes: a line of torchrun's without --nnodes is a job of one node.
// One function for each rule; values that do not count are erased from the site.
class SiteRules {
 public:
  SiteRules(const Site& site, Settings& settings) : site_(site), settings_(settings) {
    settings_.site = {site.name, site.cpus, site.notes, {}, {}, {}};
  }

  void apply() {
    if (site_.is_for_torchrun) leave_counts_to_torchrun();
    if (!is_said(OptionId::kNnodes) && !is_standalone(settings_)) {
      settings_.site.warnings = site_.warnings;
      ask_whether_together();
    }
    refuse_too_many();
    drop_nodes_of_another_job();
    drop_other_endpoint();
    drop_what_was_said();
    take(OptionId::kNnodes);
    if (most_nodes(resolved(settings_, OptionId::kNnodes)) == 1) drop(kAboutMeeting);
    take(OptionId::kRdzvBackend);
    move_endpoint();
    while (!site_.values.empty()) take(site_.values.begin()->first);
  }

 private:
  bool is_said(OptionId id) const { return !settings_[id].is_default(); }
  template <typename Ids>
  void drop(const Ids& ids) {
    for (const OptionId id : ids) site_.values.erase(id);
  }
  const SiteValue* value(OptionId id) const { return known(site_, id); }

  void leave_counts_to_torchrun() {
    site_.values.erase(OptionId::kNprocPerNode);
    if (is_said(OptionId::kNnodes)) return;
    drop(kAboutNodes);
    site_.too_many.reset();
    site_.uncounted.reset();
    site_.warnings.clear();
  }

  void ask_whether_together() {
    if (!site_.uncounted) return;
    std::string by = site_.uncounted->together_by;
    for (const OptionId id : kAboutSeveralNodes) {
      if (by.empty() && is_said(id)) by = settings_[id].origin.name;
    }
    const std::string& sentence = site_.uncounted->sentence;
    if (by.empty()) {
      settings_.site.of_many =
          sentence + ": each is a job of its own; --nnodes (or PET_NNODES) makes them one, " +
          "--nnodes=1 silences this";
      return;
    }
    settings_.site.error =
        Error{ErrorCode::kInvalidArgument,
              sentence + ", and " + by + " says that they belong together; give --nnodes (or " +
                  "PET_NNODES), which is 1 if each is a job of its own",
              {}};
  }

  void refuse_too_many() {
    if (!site_.too_many || is_standalone(settings_)) return;
    const ResolvedOption nodes = resolved(settings_, OptionId::kNnodes);
    const int most = most_nodes(nodes).value_or(1);
    const bool is_meant = !nodes.is_default() && (most == 1 || most >= site_.too_many->started);
    if (!is_meant) settings_.site.error = site_.too_many->error;
  }

  void drop_nodes_of_another_job() {
    if (is_standalone(settings_)) return drop(kAboutNodes);
    const SiteValue* const nodes = value(OptionId::kNnodes);
    const ResolvedOption option = resolved(settings_, OptionId::kNnodes);
    if (nodes == nullptr || option.is_default()) return;
    const Setting of_site{nodes->text, {Source::kSite, nodes->from}};
    if (most_nodes(option) == most_nodes({option.spec, of_site})) return;
    settings_.site.warnings.push_back(said(option) + " goes before " + nodes->from + "=" +
                                      nodes->text + ": nothing about nodes is taken from " +
                                      site_.name);
    drop(kAboutNodes);
  }

  void drop_other_endpoint() {
    for (const OptionId id : {OptionId::kRdzvEndpoint, OptionId::kMasterAddr}) {
      if (!is_said(id)) continue;
      if (const SiteValue* const host = value(OptionId::kMasterAddr)) {
        settings_.site.notes.push_back(said(resolved(settings_, id)) + " goes before " +
                                       host->text + " (" + host->from + ")");
      }
      drop(std::array{OptionId::kMasterAddr, OptionId::kMasterPort});
    }
  }

  void drop_what_was_said() {
    std::erase_if(site_.values, [this](const auto& entry) {
      const auto& [id, of_site] = entry;
      if (!is_said(id)) return false;
      if (of_site && of_site->text != settings_[id].text && id != OptionId::kNnodes) {
        auto& log = of_site->is_proposal ? settings_.site.notes : settings_.site.warnings;
        log.push_back(said(resolved(settings_, id)) + " goes before " + of_site->from +
                      ", which gives " + of_site->text);
      }
      return true;
    });
  }

  // c10d and etcd do not use --master-addr and --master-port; etcd's endpoint is not a node.
  void move_endpoint() {
    const std::string& backend = settings_[OptionId::kRdzvBackend].text;
    if (backend == "static") return;
    const auto host = site_.values.find(OptionId::kMasterAddr);
    if (backend == "c10d" && host != site_.values.end()) {
      Result<SiteValue> endpoint = host->second;
      const SiteValue* const port = value(OptionId::kMasterPort);
      if (endpoint && port != nullptr) endpoint->text += ":" + port->text;
      site_.values.insert_or_assign(OptionId::kRdzvEndpoint, std::move(endpoint));
    }
    drop(std::array{OptionId::kMasterAddr, OptionId::kMasterPort});
  }

  void take(OptionId id) {
    auto node = site_.values.extract(id);
    if (node.empty()) return;
    Result<SiteValue>& value = node.mapped();
    if (value) {
      settings_[id] = {std::move(value->text), {Source::kSite, std::move(value->from)}};
    } else if (!settings_.site.error) {
      settings_.site.error = std::move(value.error());
    }
  }

  Site site_;
  Settings& settings_;
};

bool is_of_one_node(const Site& site) {
  const SiteValue* const nodes = known(site, OptionId::kNnodes);
  return nodes != nullptr && nodes->text == "1";
}

// srun in a shell that mpirun has started: its variables are further out in kSites, and yet it is the innermost.
void warn_of_hidden_nodes(Site& chosen, const Site& other) {
  const SiteValue* const nodes = known(chosen, OptionId::kNnodes);
  const SiteValue* const more = known(other, OptionId::kNnodes);
  if (more == nullptr || more->text == "1" || known(other, OptionId::kNodeRank) == nullptr) return;
  chosen.warnings.push_back(
      nodes->from + "=1 (" + chosen.name + ") makes this a job of one node, though " + more->from +
      "=" + more->text + " (" + other.name + ") counts more; --nnodes=1 silences this; if " +
      other.name + " has started ddprun, unset the variables of " + chosen.name);
}

// The order in which sites are looked for; the first that is there counts. A process has the variables of all that it runs
// inside of, so the innermost comes first: what gives it a rank before what only says that a job is there.
constexpr FindSite* kSites[] = {
    // Launchers inside of a job of a batch system, a cloud or a pod.
    flux_site,  // mpirun, jsrun or srun may have started Flux; it also sets variables of PALS and Hydra
    jsrun_site,     // sets Open MPI's variables, too
    open_mpi_site,  // starts its daemons by srun, PALS or ssh, and Hydra's variables may be around it
    pals_site,      // sets variables of Hydra, too
    mpich_site,     // Hydra starts its proxies by srun or ssh
    // What starts the same command on every node. SkyPilot does it also on Slurm, it and dstack in pods.
    skypilot_site,
    dstack_site,
    sagemaker_site,
    slurm_site,              // srun's, and the shells of sbatch and salloc
    leader_worker_set_site,  // its pods may be of a Job, too
    kubernetes_site,
    // Batch scripts and shells that give no rank.
    pbs_shell_site,
    lsf_shell_site,
};

}  // namespace

std::string to_string(const Origin& origin) {
  return origin.source == Source::kDefault ? "default" : origin.name;
}

Settings resolve(const CommandLine& line, const Environment& environment, const FileValues& file,
                 const std::optional<Site>& site) {
  Settings settings;
  const bool has_ours = has_variable(environment, "DDPRUN_") || has_variable(environment, "PET_");
  for (const OptionSpec& spec : option_table()) {
    settings[spec.id] = resolve_one(spec, line, environment, has_ours, file);
  }
  if (site) SiteRules(*site, settings).apply();
  return settings;
}

std::string why_nothing_outlives(const Environment& environment) {
  if (is_slurm_step(environment)) return "Slurm ends all processes of a step with its ddprun";
  if (is_pod(environment)) return "Kubernetes ends all processes of a pod with its ddprun";
  return "";
}

std::optional<Site> find_site(const Environment& environment, const std::string& root) {
  if (environment.contains("TORCHELASTIC_RUN_ID")) return std::nullopt;
  std::optional<Site> found;
  for (FindSite* const find : kSites) {
    auto site = find(environment, root);
    if (site && found) warn_of_hidden_nodes(*found, *site);
    if (!found) found = std::move(site);
    if (found && !is_of_one_node(*found)) break;
  }
  return found;
}

bool is_in_slurm_job(const Environment& environment) {
  return !environment.contains("TORCHELASTIC_RUN_ID") &&
         !value_or_empty(environment, "SLURM_JOB_ID").empty();
}

}  // namespace ddprun::cli
