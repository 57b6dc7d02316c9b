#include "worker_lib/process/slurm.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "ddprun/error.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/slurm.h"

namespace ddprun {
namespace {

constexpr const char* kHowToStartWithSlurm =
    "start the program with srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT yourself";

// The first of the step's nodes, which runs rank 0; empty where nothing names them.
std::string first_host(const VariableLookup& lookup) {
  for (const char* const name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    const auto list = lookup(name);
    if (!list) continue;
    auto hosts = expand_host_list(*list);
    if (hosts) return std::move(hosts->front());
    throw UsageError(std::string(name) + " is '" + *list + "', which cannot be read: " +
                     hosts.error().message + "; set MASTER_ADDR and MASTER_PORT yourself");
  }
  return {};
}

}  // namespace

std::optional<int> tasks_on_node(std::string_view tasks_per_node, int index) {
  while (!tasks_per_node.empty()) {
    const std::string_view part = tasks_per_node.substr(0, tasks_per_node.find(','));
    tasks_per_node.remove_prefix(std::min(part.size() + 1, tasks_per_node.size()));
    const std::size_t open = part.find("(x");
    const auto tasks = parse_number<int>(part.substr(0, open));
    int nodes = 1;
    if (open != std::string_view::npos) {
      if (!part.ends_with(')')) return std::nullopt;
      nodes = parse_number<int>(part.substr(open + 2, part.size() - open - 3)).value_or(0);
    }
    if (!tasks || *tasks < 1 || nodes < 1) return std::nullopt;
    if (index < nodes) return tasks;
    index -= nodes;
  }
  return std::nullopt;
}

std::optional<Environment> slurm_environment(const VariableLookup& lookup) {
  const auto step = slurm_step(lookup("SLURM_STEP_ID").value_or(""));
  if (!step || !lookup("SLURM_PROCID")) return std::nullopt;
  const auto number = [&](const char* name, int least) {
    return number_variable(lookup, name, least, std::numeric_limits<int>::max(),
                           kHowToStartWithSlurm);
  };
  Environment environment;
  environment.is_slurm_step = true;
  environment.rank = *number("SLURM_PROCID", 0);
  auto world = number("SLURM_STEP_NUM_TASKS", 1);
  if (!world) world = number("SLURM_NTASKS", 1);
  if (!world) {
    throw UsageError(
        "SLURM_PROCID is set and neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is: start the "
        "program with srun, or with ddprun");
  }
  environment.world_size = *world;
  if (environment.rank >= environment.world_size) {
    throw UsageError("SLURM_PROCID=" + std::to_string(environment.rank) +
                     " contradicts the number of tasks, which is " + std::to_string(*world));
  }
  environment.local_rank = number("SLURM_LOCALID", 0).value_or(0);
  std::optional<int> local_world;
  const auto per_node = lookup("SLURM_STEP_TASKS_PER_NODE");
  const auto node = parse_number<int>(lookup("SLURM_NODEID").value_or("0"));
  if (per_node && node && *node >= 0) local_world = tasks_on_node(*per_node, *node);
  if (!local_world) local_world = parse_number<int>(lookup("SLURM_NTASKS_PER_NODE").value_or(""));
  environment.local_world_size = local_world.value_or(environment.local_rank + 1);
  if (environment.local_world_size <= environment.local_rank ||
      environment.local_world_size > environment.world_size) {
    environment.local_world_size = environment.local_rank + 1;  // what is known for sure
  }

  if (environment.world_size > 1 && !lookup("MASTER_ADDR")) {
    environment.master_addr = first_host(lookup);
  }
  environment.master_port = slurm_port(
      parse_number<std::uint64_t>(lookup("SLURM_JOB_ID").value_or("")).value_or(0), *step);
  return environment;
}

}  // namespace ddprun
