#include "launcher/plan/system_libraries.h"

#include <optional>
#include <string>

#include "launcher/plan/rendezvous_options.h"
#include "launcher/settings/values.h"
#include "rendezvous/net/name_lookup.h"

namespace ddprun::cli {
namespace {

bool is_a_name(const std::optional<std::string>& host) {
  return host && !rdzv::addresses_without_lookup(*host);
}

}  // namespace

bool counts_gpus(std::string_view workers_per_node) {
  return workers_per_node == "gpu" || workers_per_node == "auto";
}

bool needs_system_libraries(const Settings& settings) {
  if (const auto nodes = read_node_count(resolved(settings, OptionId::kNnodes));
      nodes && nodes->most > 1)
    return true;
  if (counts_gpus(settings[OptionId::kNprocPerNode].text)) return true;
  if (!settings[OptionId::kNumaBinding].is_default()) return true;
  for (const OptionId id : {OptionId::kMasterAddr, OptionId::kLocalAddr}) {
    if (is_a_name(parse_host(settings[id].text))) return true;
  }
  const auto endpoint =
      parse_host_and_port(settings[OptionId::kRdzvEndpoint].text, /*default_port=*/0);
  return endpoint && is_a_name(endpoint->host);
}

}  // namespace ddprun::cli
