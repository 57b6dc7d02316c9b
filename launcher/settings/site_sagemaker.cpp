// SageMaker's training jobs: what its training toolkit, or the ModelTrainer of its SDK, sets in every container.
#include <algorithm>
#include <string_view>

#include "launcher/cli/text.h"
#include "launcher/settings/settings.h"
#include "launcher/settings/site_maker.h"

namespace ddprun::cli {
namespace {

// ["algo-1", "algo-2"]; empty: it is no such list. Names of hosts have no escapes.
std::vector<std::string> names_in(std::string_view json) {
  json = trimmed(json);
  if (!json.starts_with('[') || !json.ends_with(']')) return {};
  std::vector<std::string> names;
  for (const std::string_view part : split(json.substr(1, json.size() - 2), ',')) {
    const std::string_view name = trimmed(part);
    if (name.size() < 3 || !name.starts_with('"') || !name.ends_with('"')) return {};
    names.emplace_back(name.substr(1, name.size() - 2));
  }
  return names;
}

}  // namespace

std::optional<Site> sagemaker_site(const Environment& environment, const std::string& /*root*/) {
  const auto list = first_of(environment, {"SM_HOSTS"});
  const auto host = first_of(environment, {"SM_CURRENT_HOST"});
  if (!list || !host) return std::nullopt;
  SiteMaker maker(environment, "SageMaker", "");
  maker.propose_gpus({"SM_NUM_GPUS"});
  const auto hosts = names_in(list->text);
  if (hosts.empty()) {
    maker.refuse(OptionId::kNnodes,
                 list->said() +
                     ": it should be a list such as [\"algo-1\",\"algo-2\"]; say "
                     "--nnodes, --node-rank and --master-addr yourself");
    return maker.take();
  }
  maker.set(OptionId::kNnodes, std::to_string(hosts.size()), list->name);
  maker.propose(OptionId::kMasterAddr, hosts.front(), "the first of " + list->name);
  if (const auto found = std::ranges::find(hosts, host->text); found != hosts.end()) {
    maker.set(OptionId::kNodeRank, std::to_string(found - hosts.begin()),
              host->name + " in " + list->name);
  } else {
    maker.refuse(OptionId::kNodeRank, maker.contradiction(*host, *list, "it is not in the list"));
  }
  return maker.take();
}

}  // namespace ddprun::cli
