#include "agent/core/from_job.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "agent/text/substitute.h"

namespace ddprun::agent {
namespace {

// The entry with this index of a comma-separated list; empty: there is none.
std::string entry(std::string_view list, int place) {
  for (; place > 0 && !list.empty(); --place) {
    list.remove_prefix(std::min(list.find(','), list.size() - 1) + 1);
  }
  return std::string(list.substr(0, list.find(',')));
}

// systemd sets these for the agent (systemd_notify.h). A worker that used them would send messages
// in the name of the whole service; systemd accepts those under NotifyAccess=all.
constexpr const char* kServiceVariables[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"};

}  // namespace

rdzv::RoundConfig leader_config(const Job& job) {
  rdzv::RoundConfig config;
  config.run_id = job.run_id;
  config.min_nodes = job.nodes.min_nodes;
  config.max_nodes = job.nodes.max_nodes;
  config.restarts = job.restarts;
  config.has_exact_ranks = job.nodes.has_exact_ranks;
  config.join_timeout = job.nodes.leader.join_timeout;
  config.last_call_timeout = job.nodes.last_call_timeout;
  config.reconnect_grace = job.nodes.leader.keep_alive.reconnect_grace;
  return config;
}

NodeConfig node_config(const Job& job) {
  const rdzv::KeepAlive& keep_alive = job.nodes.leader.keep_alive;
  return {.local_world_size = job.local_world_size,
          .shutdown_timeout = job.shutdown_timeout,
          .hosts_leader = false,
          .failure_shutdown_timeout = job.failure_shutdown_timeout,
          // A node that is silent for longer counts as lost, so the leader need not wait for it.
          .leader_leave_timeout = keep_alive.timeout() + 2 * keep_alive.interval};
}

rdzv::NodeHello hello_of(const Job& job, const std::string& host, bool leads_at_endpoint) {
  const Nodes& nodes = job.nodes;
  rdzv::NodeHello hello;
  hello.local_world_size = job.local_world_size;
  hello.role = job.role;
  hello.host = host;
  hello.node_rank = nodes.node_rank;
  hello.run_id = job.run_id;
  hello.program = std::filesystem::path(job.program.name).filename();
  hello.user = std::to_string(::getuid());
  hello.min_nodes = nodes.min_nodes;
  hello.max_nodes = nodes.max_nodes;
  hello.max_restarts = job.restarts.max_restarts;
  hello.shutdown_timeout = std::chrono::ceil<std::chrono::seconds>(job.shutdown_timeout);
  if (nodes.is_alone()) {
    hello.address = job.store_endpoint.address;
  } else if (!nodes.local_addr.empty()) {
    hello.address = nodes.local_addr;
  } else if (leads_at_endpoint) {
    hello.address = nodes.leader.endpoint.host;
  }
  return hello;
}

std::string key_of(const Job& job, const std::string& agent_id) {
  const rdzv::LeaderSpec& leader = job.nodes.leader;
  if (job.nodes.is_alone()) return agent_id;
  if (leader.etcd) return leader.etcd->prefix + "/" + job.run_id;
  return leader.endpoint.to_string() + "/" + job.run_id;
}

std::string device_of(const Job& job, int local_rank) {
  const auto place = static_cast<std::size_t>(local_rank);
  const std::string device =
      place < job.visible_devices_of.size()
          ? job.visible_devices_of[place]
          : entry(value_or_empty(job.environment, "CUDA_VISIBLE_DEVICES"), local_rank);
  return device.empty() ? "" : "cuda:" + device;
}

// ---- a worker

Environment worker_environment(const Job& job, const rdzv::RoundStart& start, int local_rank,
                               const std::string& error_file) {
  Environment env = job.environment;
  env["LOCAL_RANK"] = std::to_string(local_rank);
  env["RANK"] = std::to_string(start.rank_offset + local_rank);
  env["WORLD_SIZE"] = std::to_string(start.world_size);
  env["LOCAL_WORLD_SIZE"] = std::to_string(job.local_world_size);
  env["GROUP_RANK"] = std::to_string(start.node_rank);
  env["GROUP_WORLD_SIZE"] = std::to_string(start.node_count);
  env["ROLE_NAME"] = job.role;
  env["ROLE_RANK"] = std::to_string(start.role_rank_offset + local_rank);
  env["ROLE_WORLD_SIZE"] = std::to_string(start.role_world_size);
  env["MASTER_ADDR"] = start.master_addr;
  env["MASTER_PORT"] = std::to_string(start.master_port);
  env["TORCHELASTIC_RESTART_COUNT"] = to_string(start.round);
  env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(job.restarts.max_restarts);
  env["TORCHELASTIC_RUN_ID"] = job.run_id;
  env["TORCHELASTIC_USE_AGENT_STORE"] = job.store_endpoint.agent_hosts_store ? "True" : "False";
  env["TORCHELASTIC_ERROR_FILE"] = error_file;
  for (const char* const name : kServiceVariables) env.erase(name);
  env.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (!job.visible_devices_of.empty()) {
    env["LOCAL_RANK"] = "0";
    env["CUDA_VISIBLE_DEVICES"] = job.visible_devices_of.at(static_cast<std::size_t>(local_rank));
  }
  // As torchrun does: otherwise each of several workers would start a thread for every core.
  if (job.local_world_size > 1) env.try_emplace("OMP_NUM_THREADS", "1");
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
