#include "launcher/plan/rendezvous_options.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <utility>

#include "launcher/cli/text.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/leader/token.h"

namespace ddprun::cli {
namespace {

constexpr int kHighestPort = 65535;
constexpr std::uint16_t kC10dPort = 29400;
constexpr std::uint16_t kEtcdPort = 2379;

// "host1:2379,host2,[::1]:2379"
Result<std::vector<rdzv::Endpoint>> read_etcd_endpoints(const ResolvedOption& endpoint) {
  std::vector<rdzv::Endpoint> endpoints;
  for (const std::string_view each : split(endpoint.text(), ',')) {
    const auto parsed = parse_host_and_port(each, kEtcdPort);
    if (!parsed || *parsed->port == 0) {
      return refused(endpoint,
                     "give etcd's HOST:PORT, or several with commas between them, such "
                     "as etcd1:2379,etcd2:2379");
    }
    endpoints.push_back({parsed->host, *parsed->port});
  }
  return endpoints;
}

Result<HostAndPort> read_endpoint(const Settings& settings, Backend backend) {
  const ResolvedOption endpoint = resolved(settings, OptionId::kRdzvEndpoint);
  if (backend == Backend::kStatic && trimmed(endpoint.text()).empty()) {
    const auto port = read_integer(resolved(settings, OptionId::kMasterPort), 0, kHighestPort);
    if (!port) return fail(port.error());
    const ResolvedOption address = resolved(settings, OptionId::kMasterAddr);
    if (trimmed(address.text()).empty()) {
      return refused(address, "give the host name or address of node 0");
    }
    return HostAndPort{std::string(trimmed(address.text())), static_cast<std::uint16_t>(*port)};
  }
  if (is_etcd(backend)) {
    return read_etcd_endpoints(endpoint).map([](const auto& all) {
      return HostAndPort{all.front().host, all.front().port};
    });
  }
  const auto parsed = parse_host_and_port(
      endpoint.text(), backend == Backend::kC10d ? std::optional(kC10dPort) : std::nullopt);
  if (!parsed) {
    return refused(endpoint, "give HOST:PORT, such as node0:29400 or [fe80::1]:29400");
  }
  if (!parsed->port) {
    return refused(endpoint, "the port is missing; static has no default, give HOST:PORT");
  }
  return *parsed;
}

void warn_of_ignored(const Settings& settings, const Rendezvous& rendezvous,
                     std::vector<std::string>& warnings) {
  const auto warn_if_given = [&](OptionId id, const std::string& why) {
    const ResolvedOption option = resolved(settings, id);
    if (!option.is_default())
      warnings.push_back(option.setting.origin.name + " is ignored: " + why);
  };
  if (rendezvous.is_standalone) return;  // it overrides them, silently as in torchrun
  if (rendezvous.backend == Backend::kStatic) {
    warn_if_given(OptionId::kLocalAddr, "the static rendezvous does not use it");
    if (!trimmed(settings[OptionId::kRdzvEndpoint].text).empty()) {
      warn_if_given(OptionId::kMasterAddr, "--rdzv-endpoint says where node 0 is");
      warn_if_given(OptionId::kMasterPort, "--rdzv-endpoint says where node 0 is");
    }
    return;
  }
  warn_if_given(OptionId::kMasterAddr, "only the static rendezvous uses it");
  warn_if_given(OptionId::kMasterPort, "only the static rendezvous uses it");
}

// The value of the first of these keys that is given.
std::string first_of(const RdzvConf& conf, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string text = value_or_empty(conf, name); !text.empty()) return text;
  }
  return "";
}

}  // namespace

std::optional<HostAndPort> parse_host_and_port(std::string_view text,
                                               std::optional<std::uint16_t> default_port) {
  constexpr std::size_t kPortDigits = 5;
  text = trimmed(text);
  if (text.empty()) return HostAndPort{"localhost", default_port};
  HostAndPort result{"", default_port};
  std::string_view host = text;
  const std::size_t colon = text.rfind(':');
  const bool is_bare_ipv6 = text.front() == '[' && text.back() == ']';
  if (colon != std::string_view::npos && !is_bare_ipv6) {
    const std::string_view digits = text.substr(colon + 1);
    result.port = parse_number<std::uint16_t>(digits);
    if (!result.port || digits.size() > kPortDigits) return std::nullopt;
    host = text.substr(0, colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const bool is_host = std::ranges::all_of(host, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == ':' ||
           c == '-';
  });
  if (host.empty() || !is_host) return std::nullopt;
  result.host = host;
  return result;
}

Result<Rendezvous> read_rendezvous(const Settings& settings, std::vector<std::string>& warnings) {
  Taking take;
  Rendezvous rendezvous;
  rendezvous.is_standalone = take(read_flag(resolved(settings, OptionId::kStandalone)));
  const NodeCount nodes = take(read_node_count(resolved(settings, OptionId::kNnodes)));
  rendezvous.min_nodes = nodes.least;
  rendezvous.max_nodes = nodes.most;
  rendezvous.conf = take(read_conf(resolved(settings, OptionId::kRdzvConf), warnings));
  rendezvous.is_host = truth_of(rendezvous.conf, "is_host");
  rendezvous.token_file = token_file(settings, rendezvous.conf).path;
  rendezvous.local_addr = trimmed(settings[OptionId::kLocalAddr].text);
  if (take.error) return fail(*std::move(take.error));
  if (rendezvous.is_standalone) {
    rendezvous.backend = Backend::kC10d;
    rendezvous.host = "localhost";
    return rendezvous;
  }

  rendezvous.backend = static_cast<Backend>(take(read_one_of(
      resolved(settings, OptionId::kRdzvBackend), {kBackendNames.begin(), kBackendNames.end()})));
  const HostAndPort endpoint = take(read_endpoint(settings, rendezvous.backend));
  rendezvous.host = endpoint.host;
  rendezvous.port = endpoint.port.value_or(0);
  const ResolvedOption node_rank = resolved(settings, OptionId::kNodeRank);
  const int rank = take(read_integer(node_rank, 0));
  if (take.error) return fail(*std::move(take.error));
  if (rank >= rendezvous.max_nodes) {
    return refused(node_rank, "with --nnodes=" + settings[OptionId::kNnodes].text +
                                  " node ranks go from 0 to " +
                                  std::to_string(rendezvous.max_nodes - 1));
  }
  if (!node_rank.is_default() || rendezvous.backend == Backend::kStatic) {
    rendezvous.node_rank = rank;
  }
  warn_of_ignored(settings, rendezvous, warnings);
  return rendezvous;
}

Result<rdzv::EtcdSpec> read_etcd(const Settings& settings, const Rendezvous& rendezvous) {
  const ResolvedOption given_conf = resolved(settings, OptionId::kRdzvConf);
  const RdzvConf& conf = rendezvous.conf;
  rdzv::EtcdSpec etcd;
  auto endpoints = read_etcd_endpoints(resolved(settings, OptionId::kRdzvEndpoint));
  if (!endpoints) return fail(std::move(endpoints.error()));
  etcd.endpoints = *std::move(endpoints);
  if (std::string prefix = value_or_empty(conf, "etcd_prefix"); !prefix.empty()) {
    etcd.prefix = std::move(prefix);
  }
  if (const auto lease = seconds_of(conf, "lease_time")) etcd.lease = *lease;
  etcd.local_addr = rendezvous.local_addr;

  etcd.tls.ca = first_of(conf, {"ca_cert", "cacert"});
  etcd.tls.certificate = first_of(conf, {"cert", "ssl_cert"});
  etcd.tls.key = first_of(conf, {"key", "ssl_cert_key"});
  const std::string protocol = value_or_empty(conf, "protocol");
  if (!protocol.empty() && protocol != "http" && protocol != "https") {
    return refused(given_conf, "protocol must be http or https");
  }
  const bool has_files = etcd.tls != rdzv::TlsFiles{};
  if (protocol == "http" && has_files) {
    return refused(given_conf,
                   "certificates are of no use with protocol=http; leave it out, or give https");
  }
  etcd.is_tls = protocol == "https" || has_files;

  etcd.user = value_or_empty(conf, "user");
  etcd.password = value_or_empty(conf, "password");
  if (const std::string file = value_or_empty(conf, "password_file"); !file.empty()) {
    if (!etcd.password.empty())
      return refused(given_conf, "give password or password_file, not both");
    auto password = rdzv::read_secret("password", file);
    if (!password) return refused(given_conf, password.error().to_string());
    etcd.password = *std::move(password);
  }
  if (etcd.user.empty() != etcd.password.empty()) {
    return refused(given_conf, etcd.user.empty() ? "a password needs its user"
                                                 : "user=" + etcd.user + " needs a password_file");
  }
  return etcd;
}

}  // namespace ddprun::cli
