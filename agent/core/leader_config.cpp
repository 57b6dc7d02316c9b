#include "agent/core/leader_config.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace ddprun::agent {
namespace {

// The entry with this index of a comma-separated list; empty: there is none.
std::string entry(std::string_view list, int place) {
  for (; place > 0 && !list.empty(); --place) {
    list.remove_prefix(std::min(list.find(','), list.size() - 1) + 1);
  }
  return std::string(list.substr(0, list.find(',')));
}

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
  config.replace_timeout = job.nodes.replace_timeout;
  config.reconnect_grace = job.nodes.leader.keep_alive.reconnect_grace;
  config.silence_limit = job.nodes.leader.keep_alive.timeout();
  return config;
}

NodeConfig node_config(const Job& job) {
  const rdzv::KeepAlive& keep_alive = job.nodes.leader.keep_alive;
  return {.local_world_size = job.local_world_size,
          .shutdown_timeout = job.shutdown_timeout,
          .hosts_leader = false,
          .failure_shutdown_timeout = job.failure_shutdown_timeout,
          // A node that is silent for longer counts as lost, so the leader need not wait for it.
          .leader_leave_timeout = keep_alive.timeout() + 2 * keep_alive.interval,
          .kills_orphans = job.kills_orphans};
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
  hello.restart_window = std::chrono::duration_cast<std::chrono::seconds>(job.restarts.window);
  hello.no_progress_restarts = job.restarts.no_progress_restarts;
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

}  // namespace ddprun::agent
