#include "agent/core/worker_environment.h"

#include "agent/text/substitute.h"
#include "rendezvous/common/worker_abi/collective_record.h"
#include "rendezvous/common/worker_abi/worker_link.h"

namespace ddprun::agent {
namespace {

// systemd sets these for the agent (systemd_notify.h). A worker that used them would send messages
// in the name of the whole service; systemd accepts those under NotifyAccess=all. The descriptors of LISTEN_FDS
// are closed in a worker.
constexpr const char* kServiceVariables[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
                                             "LISTEN_FDS",    "LISTEN_PID",    "LISTEN_FDNAMES",
                                             "FDSTORE"};

constexpr const char* kVariablesOfAWorker[] = {"LOCAL_RANK",
                                               "RANK",
                                               "WORLD_SIZE",
                                               "LOCAL_WORLD_SIZE",
                                               "GROUP_RANK",
                                               "GROUP_WORLD_SIZE",
                                               "ROLE_NAME",
                                               "ROLE_RANK",
                                               "ROLE_WORLD_SIZE",
                                               "MASTER_ADDR",
                                               "MASTER_PORT",
                                               "TORCHELASTIC_RESTART_COUNT",
                                               "TORCHELASTIC_RUN_ID",
                                               "TORCHELASTIC_MAX_RESTARTS",
                                               "TORCHELASTIC_ERROR_FILE",
                                               "TORCHELASTIC_USE_AGENT_STORE",
                                               link::kSocketVariable,
                                               link::kPageVariable,
                                               record::kVariable};

}  // namespace

ChildEnvironment worker_environment(const Job& job, const rdzv::RoundStart& start, int local_rank,
                                    const std::string& error_file) {
  ChildEnvironment env(job.environment);
  env.set("LOCAL_RANK", std::to_string(local_rank));
  env.set("RANK", std::to_string(start.rank_offset + local_rank));
  env.set("WORLD_SIZE", std::to_string(start.world_size));
  env.set("LOCAL_WORLD_SIZE", std::to_string(job.local_world_size));
  env.set("GROUP_RANK", std::to_string(start.node_rank));
  env.set("GROUP_WORLD_SIZE", std::to_string(start.node_count));
  env.set("ROLE_NAME", job.role);
  env.set("ROLE_RANK", std::to_string(start.role_rank_offset + local_rank));
  env.set("ROLE_WORLD_SIZE", std::to_string(start.role_world_size));
  env.set("MASTER_ADDR", start.master_addr);
  env.set("MASTER_PORT", std::to_string(start.master_port));
  env.set("TORCHELASTIC_RESTART_COUNT", to_string(start.round));
  env.set("TORCHELASTIC_MAX_RESTARTS", std::to_string(job.restarts.max_restarts));
  env.set("TORCHELASTIC_RUN_ID", job.run_id);
  env.set("TORCHELASTIC_USE_AGENT_STORE", job.store_endpoint.agent_hosts_store ? "True" : "False");
  env.set("TORCHELASTIC_ERROR_FILE", error_file);
  for (const char* const name : kServiceVariables) env.unset(name);
  env.set_default("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (!job.visible_devices_of.empty()) {
    env.set("LOCAL_RANK", "0");
    const std::string& device = job.visible_devices_of.at(static_cast<std::size_t>(local_rank));
    env.set("CUDA_VISIBLE_DEVICES", device);
    // As torchrun 2.15: on ROCm this one would go before the other.
    if (!env.value_or_empty("HIP_VISIBLE_DEVICES").empty()) env.set("HIP_VISIBLE_DEVICES", device);
  }
  // As torchrun does: otherwise each of several workers would start a thread for every core.
  if (job.local_world_size > 1) env.set_default("OMP_NUM_THREADS", "1");
  return env;
}

ChildEnvironment zygote_environment(const Job& job) {
  ChildEnvironment env = worker_environment(job, {}, 0, "");
  for (const char* const name : kVariablesOfAWorker) env.unset(name);
  return env;
}

std::vector<std::string> worker_arguments(const Program& program, int local_rank) {
  std::vector<std::string> arguments = program.argv;
  const Environment values{{"local_rank", std::to_string(local_rank)}};
  for (std::size_t i = program.first_user_argument; i < arguments.size(); ++i) {
    arguments[i] = substitute(arguments[i], values);
  }
  return arguments;
}

}  // namespace ddprun::agent
