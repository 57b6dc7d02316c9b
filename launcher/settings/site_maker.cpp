#include "launcher/settings/site_maker.h"

#include <fcntl.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "rendezvous/common/file_text.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/slurm.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::cli {
namespace {

constexpr const char* kSayYourself = "say --nnodes, --node-rank and --master-addr yourself";

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(std::move(word));
  return words;
}

// A host for each slot, one a line; the slots of a host may be apart.
void read_pbs(const Variable& list, const std::string& root, Allocation& allocation) {
  constexpr std::size_t kFileMax = 1 << 24;
  const rdzv::UniqueFd file(::open((root + list.text).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto text = file ? read_from(file.get(), kFileMax) : std::nullopt;
  for (const std::string& host : words_of(text.value_or(""))) {
    const auto found = std::ranges::find(allocation.hosts, host);
    if (found == allocation.hosts.end()) {
      allocation.hosts.push_back(host);
      allocation.slots.push_back(1);
    } else {
      ++allocation.slots[static_cast<std::size_t>(found - allocation.hosts.begin())];
    }
  }
  if (allocation.hosts.empty()) {
    allocation.why_unknown =
        list.said() + ": this node cannot read it, PBS has it on the first node";
    allocation.may_be_elsewhere = true;
  }
}

// "host1 4 host2 4"
void read_lsf(const std::string& text, Allocation& allocation) {
  const std::vector<std::string> words = words_of(text);
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    allocation.hosts.push_back(words[i]);
    allocation.slots.push_back(parse_number<int>(words[i + 1]).value_or(0));
  }
  if (words.size() % 2 == 0 && std::ranges::all_of(allocation.slots, [](int n) { return n > 0; })) {
    return;
  }
  allocation.hosts.clear();
  allocation.why_unknown =
      allocation.from + "=" + text + ": it should be hosts, each with its number of slots";
}

void read_slurm(const std::string& text, Allocation& allocation) {
  auto hosts = expand_host_list(text);
  if (hosts) {
    allocation.hosts = *std::move(hosts);
  } else {
    allocation.why_unknown = allocation.from + "=" + text +
                             ": it cannot be read as a list of nodes, " + hosts.error().message;
  }
}

}  // namespace

std::optional<Variable> first_of(const Environment& environment, VariableNames names) {
  for (const std::string_view name : names) {
    const auto found = environment.find(name);
    if (found != environment.end() && !found->second.empty()) {
      return Variable{found->first, found->second};
    }
  }
  return std::nullopt;
}

std::optional<Allocation> find_allocation(const Environment& environment, const std::string& root) {
  const auto list = first_of(environment, {"PBS_NODEFILE", "LSB_MCPU_HOSTS", "SLURM_JOB_NODELIST"});
  if (!list) return std::nullopt;
  Allocation allocation;
  allocation.from = list->name;
  if (list->name == "PBS_NODEFILE") read_pbs(*list, root, allocation);
  if (list->name == "LSB_MCPU_HOSTS") read_lsf(list->text, allocation);
  if (list->name == "SLURM_JOB_NODELIST") read_slurm(list->text, allocation);
  return allocation;
}

SiteMaker::SiteMaker(const Environment& environment, std::string name, std::string launch)
    : environment_(environment), launch_(std::move(launch)) {
  site_.name = std::move(name);
}

std::optional<Count> SiteMaker::count(OptionId id, VariableNames names, int least) {
  auto variable = first_of(names);
  if (!variable) return std::nullopt;
  const auto number = parse_number<int>(variable->text);
  if (number && *number >= least) return Count{*number, *std::move(variable)};
  const std::string remedy = id == OptionId::kNprocPerNode ? "say --nproc-per-node"
                             : launch_.empty()             ? kSayYourself
                                                           : launch_;
  refuse(id, variable->said() + ": it should be a whole number from " + std::to_string(least) +
                 "; " + remedy);
  return std::nullopt;
}

void SiteMaker::set(OptionId id, std::string text, std::string from) {
  site_.values.insert_or_assign(id, SiteValue{std::move(text), std::move(from)});
}

void SiteMaker::propose(OptionId id, std::string text, std::string from) {
  site_.values.insert_or_assign(id,
                                SiteValue{std::move(text), std::move(from), /*is_proposal=*/true});
}

void SiteMaker::refuse(OptionId id, std::string sentence) {
  site_.values.insert_or_assign(id, fail(ErrorCode::kInvalidArgument, std::move(sentence)));
}

void SiteMaker::refuse_address(const std::string& why) {
  refuse(OptionId::kMasterAddr, why + "; say --master-addr, the first node's name, on every node");
}

bool SiteMaker::is_refused(OptionId id) const {
  const auto found = site_.values.find(id);
  return found != site_.values.end() && !found->second;
}

std::string SiteMaker::contradiction(const Variable& one, const Variable& other,
                                     const std::string& why) const {
  return one.said() + " contradicts " + other.said() + ": " + why + "; " +
         (launch_.empty() ? "" : launch_ + ", or ") + kSayYourself;
}

std::optional<Count> SiteMaker::read_nodes(VariableNames counts, VariableNames ranks) {
  const auto nodes = count(OptionId::kNnodes, counts, 1);
  if (nodes) {
    set(OptionId::kNnodes, std::to_string(nodes->number), nodes->from.name);
    read_node_rank(*nodes, ranks);
    return nodes;
  }
  const auto rank = count(OptionId::kNodeRank, ranks, 0);
  if (rank) set(OptionId::kNodeRank, rank->from.text, rank->from.name);
  if (!is_refused(OptionId::kNnodes)) {
    refuse(OptionId::kNnodes, site_.name + " is here" +
                                  (rank ? " (" + rank->from.said() + ")" : "") + ", but " +
                                  std::string(*counts.begin()) +
                                  " is not set, so the number of nodes is not known; say --nnodes");
  }
  return std::nullopt;
}

void SiteMaker::read_node_rank(const Count& nodes, VariableNames ranks) {
  const auto rank = count(OptionId::kNodeRank, ranks, 0);
  if (rank && rank->number >= nodes.number) {
    refuse(OptionId::kNodeRank, contradiction(rank->from, nodes.from, "nodes are counted from 0"));
  } else if (rank) {
    set(OptionId::kNodeRank, rank->from.text, rank->from.name);
  } else if (!is_refused(OptionId::kNodeRank) && nodes.number > 1) {
    refuse(OptionId::kNodeRank,
           nodes.from.said() + ", but " + std::string(*ranks.begin()) +
               " is not set, so the rank of this node is not known; say --node-rank");
  }
}

std::optional<Count> SiteMaker::read_processes(const std::string& launcher, VariableNames counts,
                                               VariableNames ranks, VariableNames counts_here) {
  const auto processes = read_nodes(counts, ranks);
  const auto here = count(OptionId::kNnodes, counts_here, 1);
  if (here && here->number > 1) {
    refuse_too_many(launcher, processes.value_or(*here), here->from,
                    std::to_string(here->number) + " times on this node");
  }
  return processes;
}

void SiteMaker::refuse_too_many(const std::string& launcher, const Count& processes,
                                const Variable& by, const std::string& where) {
  Error error{ErrorCode::kInvalidArgument,
              launcher + " started ddprun " + where + " (" + by.said() +
                  "), but it is needed once on each, because it starts the workers itself; " +
                  launch_,
              {}};
  site_.too_many = {processes.number, std::move(error)};
}

void SiteMaker::read_address(VariableNames addresses) {
  const auto variable = first_of(addresses);
  const auto words = words_of(variable ? variable->text : "");
  if (!words.empty()) {
    return propose(OptionId::kMasterAddr, words.front(),
                   (words.size() > 1 ? "the first of " : "") + variable->name);
  }
  refuse_address(std::string(*addresses.begin()) +
                 " is not set, so it is not known where node 0 is");
}

void SiteMaker::propose_run_id(VariableNames names) {
  if (const auto job = first_of(names)) propose(OptionId::kRdzvId, job->text, job->name);
}

void SiteMaker::propose_gpus(VariableNames counts) {
  const auto gpus = count(OptionId::kNprocPerNode, counts, 0);
  if (gpus && gpus->number > 0) {
    propose(OptionId::kNprocPerNode, std::to_string(gpus->number), gpus->from.name);
  }
}

void SiteMaker::propose_first_host(const std::string& launcher,
                                   const std::optional<Allocation>& allocation,
                                   const Count& nodes) {
  if (!allocation) return refuse_address(launcher + " does not say where node 0 is");
  if (!allocation->why_unknown.empty()) return refuse_address(allocation->why_unknown);
  const auto hosts = static_cast<std::int64_t>(allocation->hosts.size());
  if (hosts != nodes.number) {
    return refuse_address(nodes.from.said() + ", but " + allocation->from + " names " +
                          counted(hosts, "node") + ", so it is not known where node 0 is");
  }
  propose(OptionId::kMasterAddr, allocation->hosts.front(), "the first of " + allocation->from);
}

void SiteMaker::read_shell(const std::optional<Allocation>& allocation) {
  if (!allocation) return;
  const std::string& why_unknown = allocation->why_unknown;
  if (allocation->may_be_elsewhere) {
    return warn(why_unknown + "; this ddprun runs alone, --nnodes=1 silences this");
  }
  if (!why_unknown.empty()) {
    return refuse(OptionId::kNnodes, why_unknown + "; say --nnodes=1 to run on this node alone");
  }
  if (allocation->hosts.size() == 1) return set(OptionId::kNnodes, "1", allocation->from);
  refuse(OptionId::kNnodes,
         "this job has " + counted(static_cast<std::int64_t>(allocation->hosts.size()), "node") +
             " (" + allocation->from + "), and nothing says which of them this ddprun is; " +
             launch_ + ", or --nnodes=1 to run on this node alone");
}

}  // namespace ddprun::cli
