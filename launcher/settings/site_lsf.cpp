// LSF: what jsrun sets, the launcher of IBM's job step manager, and what a batch script or interactive shell has.
#include <algorithm>

#include "launcher/settings/settings.h"
#include "launcher/settings/site_maker.h"

namespace ddprun::cli {
namespace {

SiteMaker in_lsf(const Environment& environment, const char* launch) {
  SiteMaker maker(environment, "LSF", launch);
  maker.propose_run_id({"LSB_JOBID"});
  return maker;
}

// Where jsrun is, the first host may be the launch node, which has one slot and runs only the script.
void leave_out_launch_node(Allocation& allocation) {
  const auto& slots = allocation.slots;
  if (slots.size() < 2 || slots.front() != 1) return;
  if (std::all_of(slots.begin() + 1, slots.end(), [](int number) { return number > 1; })) {
    allocation.hosts.erase(allocation.hosts.begin());
    allocation.from += " without the launch node";
  }
}

}  // namespace

std::optional<Site> jsrun_site(const Environment& environment, const std::string& root) {
  if (!first_of(environment, {"JSM_NAMESPACE_RANK"})) return std::nullopt;
  SiteMaker maker = in_lsf(environment, "write jsrun -r 1 -a 1 -c ALL_CPUS -g ALL_GPUS ddprun ...");
  const auto nodes = maker.read_processes("jsrun", {"JSM_NAMESPACE_SIZE"}, {"JSM_NAMESPACE_RANK"},
                                          {"JSM_NAMESPACE_LOCAL_SIZE"});
  auto allocation = find_allocation(environment, root);
  if (allocation) leave_out_launch_node(*allocation);
  if (nodes) maker.propose_first_host("jsrun", allocation, *nodes);
  return maker.take();
}

std::optional<Site> lsf_shell_site(const Environment& environment, const std::string& root) {
  if (!first_of(environment, {"LSB_JOBID"})) return std::nullopt;
  SiteMaker maker = in_lsf(environment, "write mpirun -N 1 --bind-to none ddprun ...");
  maker.read_shell(find_allocation(environment, root));
  return maker.take();
}

}  // namespace ddprun::cli
