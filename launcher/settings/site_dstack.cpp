// dstack: what the commands of a task have, on every node.
#include "launcher/settings/settings.h"
#include "launcher/settings/site_maker.h"

namespace ddprun::cli {

std::optional<Site> dstack_site(const Environment& environment, const std::string& /*root*/) {
  if (!first_of(environment, {"DSTACK_NODE_RANK"})) return std::nullopt;
  SiteMaker maker(environment, "dstack", "");
  maker.read_nodes({"DSTACK_NODES_NUM"}, {"DSTACK_NODE_RANK"});
  maker.read_address({"DSTACK_MASTER_NODE_IP"});
  maker.propose_run_id({"DSTACK_RUN_NAME"});
  maker.propose_gpus({"DSTACK_GPUS_PER_NODE"});
  return maker.take();
}

}  // namespace ddprun::cli
