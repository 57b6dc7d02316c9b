#include "launcher/plan/job_nodes.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "launcher/cli/text.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/limits.h"
#include "rendezvous/common/parse_number.h"

namespace ddprun::cli {
namespace {

// The option that fixes where a static rendezvous meets.
OptionId port_option(const Settings& settings) {
  return trimmed(settings[OptionId::kRdzvEndpoint].text).empty() ? OptionId::kMasterPort
                                                                 : OptionId::kRdzvEndpoint;
}

Result<void> check_endpoint(const Settings& settings, const Rendezvous& rendezvous) {
  const ResolvedOption nodes = resolved(settings, OptionId::kNnodes);
  if (rendezvous.is_standalone) {
    return refused(nodes, "--standalone is for one node; leave one of the two out");
  }
  const std::string master = std::string(trimmed(settings[OptionId::kMasterAddr].text));
  if (rendezvous.backend == Backend::kC10d && port_option(settings) == OptionId::kMasterPort &&
      !resolved(settings, OptionId::kMasterAddr).is_default()) {
    return refused(resolved(settings, OptionId::kMasterAddr),
                   "with --rdzv-backend=c10d nodes meet at --rdzv-endpoint, and --master-addr is "
                   "not used; give --rdzv-endpoint=" +
                       rdzv::Endpoint{master, rendezvous.port}.to_string() +
                       ", the same on every node");
  }
  if (rendezvous.backend != Backend::kStatic && port_option(settings) == OptionId::kMasterPort) {
    return refused(nodes,
                   is_etcd(rendezvous.backend)
                       ? "several nodes need to know where etcd is; give "
                         "--rdzv-endpoint=HOST:PORT, or several with commas between them"
                       : "several nodes need a place to meet; give --rdzv-endpoint=HOST:PORT, "
                         "the same on every node");
  }
  if (rendezvous.port == 0) {
    return refused(resolved(settings, port_option(settings)),
                   "port 0 is any free one, and the other nodes could not know which; give the "
                   "port, the same on every node");
  }
  return {};
}

rdzv::LeaderSpec::Where leader_for(const Rendezvous& rendezvous) {
  using Leader = rdzv::LeaderSpec::Where;
  if (rendezvous.backend == Backend::kStatic) {
    return rendezvous.node_rank == 0 ? Leader::kHere : Leader::kElsewhere;
  }
  if (is_etcd(rendezvous.backend)) return Leader::kElected;
  if (!rendezvous.is_host) return Leader::kToBeFound;
  return *rendezvous.is_host ? Leader::kHere : Leader::kElsewhere;
}

// The time limit for waiting for nodes has a different key under each backend, as in torchrun.
std::chrono::milliseconds join_timeout(const Settings& settings, const Rendezvous& rendezvous,
                                       std::vector<std::string>& warnings) {
  constexpr std::chrono::seconds kStaticDefault{900};
  constexpr std::chrono::seconds kElasticDefault{600};
  const bool is_static = rendezvous.backend == Backend::kStatic;
  const std::string key = is_static ? "timeout" : "join_timeout";
  const std::string other = is_static ? "join_timeout" : "timeout";
  const auto time = seconds_of(rendezvous.conf, key);
  if (!time && rendezvous.conf.contains(other)) {
    warnings.push_back(usage_error(resolved(settings, OptionId::kRdzvConf),
                                   other + " has no effect with " +
                                       settings[OptionId::kRdzvBackend].text +
                                       ", as under torchrun; give " + key)
                           .to_string());
  }
  return time.value_or(is_static ? kStaticDefault : kElasticDefault);
}

Result<void> read_port_range(const Settings& settings, const Rendezvous& rendezvous,
                             agent::StoreEndpoint& place) {
  const ResolvedOption range = resolved(settings, OptionId::kMasterPortRange);
  if (range.text().empty()) return {};
  const std::vector<std::string_view> parts = split(range.text(), ':');
  const auto first = parse_number<std::uint16_t>(parts.front());
  const auto last = parse_number<std::uint16_t>(parts.back());
  if (parts.size() != 2 || !first || !last || *first < 1 || *first > *last) {
    return refused(range, "give the first and the last port, such as 29500:29599");
  }
  if (place.first_port != 0) {
    return refused(
        range, rendezvous.max_nodes == 1
                   ? "the port is fixed already by " + settings[port_option(settings)].origin.name
                   : "with static, several nodes meet at node 0's one port, --master-port; leave "
                     "the range out, or give --rdzv-backend=c10d");
  }
  place.first_port = *first;
  place.last_port = *last;
  return {};
}

}  // namespace

Result<agent::Nodes> job_nodes(const Settings& settings, const Rendezvous& rendezvous,
                               std::vector<std::string>& warnings) {
  agent::Nodes nodes;
  nodes.replace_timeout =
      seconds_of(rendezvous.conf, "replace_timeout").value_or(nodes.replace_timeout);
  if (rendezvous.max_nodes == 1) return nodes;
  if (auto good = check_endpoint(settings, rendezvous); !good) return fail(std::move(good.error()));
  const bool is_static = rendezvous.backend == Backend::kStatic;
  nodes.leader.where = leader_for(rendezvous);
  nodes.leader.leads_by_default = is_static && rendezvous.node_rank == 0 &&
                                  resolved(settings, OptionId::kNodeRank).is_default();
  nodes.leader.endpoint = {rendezvous.host, rendezvous.port};
  if (is_etcd(rendezvous.backend)) {
    auto etcd = read_etcd(settings, rendezvous);
    if (!etcd) return fail(std::move(etcd.error()));
    nodes.leader.etcd = *std::move(etcd);
  }
  nodes.min_nodes = is_static ? rendezvous.max_nodes : rendezvous.min_nodes;
  nodes.max_nodes = rendezvous.max_nodes;
  if (nodes.min_nodes != rendezvous.min_nodes) {
    warnings.push_back(usage_error(resolved(settings, OptionId::kNnodes),
                                   "static takes no fewer than MAX nodes, so MIN is ignored; "
                                   "--rdzv-backend=c10d goes on with fewer")
                           .to_string());
  }
  nodes.node_rank = rendezvous.node_rank;
  nodes.has_exact_ranks = is_static;
  nodes.shares_store_port = is_static;
  if (!is_static) nodes.local_addr = rendezvous.local_addr;
  nodes.leader.keep_alive = keep_alive_of(rendezvous.conf);
  nodes.leader.join_timeout = join_timeout(settings, rendezvous, warnings);
  nodes.last_call_timeout =
      seconds_of(rendezvous.conf, "last_call_timeout").value_or(nodes.last_call_timeout);
  return nodes;
}

Result<agent::StoreEndpoint> store_endpoint(const Settings& settings,
                                            const Rendezvous& rendezvous) {
  agent::StoreEndpoint place;
  const bool is_one_node = rendezvous.max_nodes == 1;
  if (rendezvous.backend == Backend::kStatic) {
    const bool port_is_given = !settings[port_option(settings)].is_default();
    place.address = rendezvous.host;
    if (!is_one_node || port_is_given) place.first_port = place.last_port = rendezvous.port;
  } else if (!is_one_node || !rendezvous.local_addr.empty()) {
    place.address = rendezvous.local_addr;
  }
  if (auto read = read_port_range(settings, rendezvous, place); !read) {
    return fail(std::move(read.error()));
  }
  return place;
}

Result<void> check_names(const Settings& settings, const agent::Job& job) {
  if (job.nodes.is_alone()) return {};
  using rdzv::limits::kMaxHostBytes, rdzv::limits::kMaxNameBytes;
  struct Name {
    OptionId id;
    const std::string& text;
    std::size_t bytes_max;
  };
  const Name names[] = {{OptionId::kRdzvId, job.run_id, kMaxNameBytes},
                        {OptionId::kRole, job.role, kMaxNameBytes},
                        {OptionId::kLocalAddr, job.nodes.local_addr, kMaxHostBytes},
                        {port_option(settings) == OptionId::kMasterPort ? OptionId::kMasterAddr
                                                                        : OptionId::kRdzvEndpoint,
                         job.nodes.leader.endpoint.host, kMaxHostBytes}};
  const auto too_long = [](const std::string& what, std::size_t bytes_max) {
    return fail(ErrorCode::kInvalidArgument, what + " is longer than " + std::to_string(bytes_max) +
                                                 " bytes, and every other node has to be told it");
  };
  for (const auto& [id, text, bytes_max] : names) {
    if (text.size() > bytes_max)
      return too_long(settings[id].origin.name + ": this text", bytes_max);
  }
  const std::string& program = job.program.name;
  if (program.size() > program.rfind('/') + 1 + kMaxNameBytes) {  // npos + 1 is 0
    return too_long("the program's name", kMaxNameBytes);
  }
  return {};
}

}  // namespace ddprun::cli
