// Flux: each task of flux run is a node, if there is one on each. The script of flux batch has none of these variables.
#include "launcher/settings/settings.h"
#include "launcher/settings/site_maker.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::cli {

std::optional<Site> flux_site(const Environment& environment, const std::string& /*root*/) {
  if (!first_of(environment, {"FLUX_TASK_RANK"})) return std::nullopt;
  SiteMaker maker(environment, "Flux",
                  "write flux run -N NODES --tasks-per-node=1 --exclusive ddprun ...");
  const auto nodes = maker.read_nodes({"FLUX_JOB_NNODES"}, {"FLUX_TASK_RANK"});
  const auto tasks = maker.count(OptionId::kNnodes, {"FLUX_JOB_SIZE"}, 1);
  if (nodes && tasks && tasks->number > nodes->number) {
    maker.refuse_too_many(
        "flux", *tasks, tasks->from,
        std::to_string(tasks->number) + " times on " + counted(nodes->number, "node"));
  }
  maker.refuse(OptionId::kMasterAddr,
               "Flux does not say where node 0 is; say --master-addr, on every node what this "
               "prints in a task: flux hostlist -n 0 local");
  maker.propose_run_id({"FLUX_JOB_ID"});
  return maker.take();
}

}  // namespace ddprun::cli
