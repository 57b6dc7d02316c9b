// SkyPilot: what the run commands of a task have, on every node.
#include "launcher/settings/settings.h"
#include "launcher/settings/site_maker.h"

namespace ddprun::cli {

std::optional<Site> skypilot_site(const Environment& environment, const std::string& /*root*/) {
  if (!first_of(environment, {"SKYPILOT_NODE_RANK"})) return std::nullopt;
  SiteMaker maker(environment, "SkyPilot", "");
  maker.read_nodes({"SKYPILOT_NUM_NODES"}, {"SKYPILOT_NODE_RANK"});
  maker.read_address({"SKYPILOT_NODE_IPS"});
  maker.propose_run_id({"SKYPILOT_TASK_ID"});
  maker.propose_gpus({"SKYPILOT_NUM_GPUS_PER_NODE"});
  return maker.take();
}

}  // namespace ddprun::cli
