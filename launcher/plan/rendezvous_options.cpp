#include "launcher/plan/rendezvous_options.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <utility>

#include "launcher/cli/text.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/leader/token.h"
#include "rendezvous/net/socket_address.h"

namespace ddprun::cli {
namespace {

constexpr int kHighestPort = 65535;
constexpr std::uint16_t kC10dPort = 29400;
constexpr std::uint16_t kEtcdPort = 2379;

// The end of a sentence about an endpoint that is a URL.
std::string without_scheme(std::string_view text) {
  const std::size_t end = text.find("://");
  return end == std::string_view::npos ? "" : ", without " + std::string(text.substr(0, end + 3));
}

// "host1:2379,host2,[::1]:2379"
Result<std::vector<rdzv::Endpoint>> read_etcd_endpoints(const ResolvedOption& endpoint) {
  std::vector<rdzv::Endpoint> endpoints;
  for (const std::string_view each : split(endpoint.text(), ',')) {
    const auto parsed = parse_host_and_port(each, kEtcdPort);
    if (!parsed || *parsed->port == 0) {
      return refused(
          endpoint,
          "give etcd's HOST:PORT, or several with commas between them, such "
          "as etcd1:2379,etcd2:2379" +
              without_scheme(each) +
              (each.starts_with("https://") ? "; --rdzv-conf=protocol=https asks for TLS" : ""));
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
    auto host = parse_host(address.text());
    if (!host) {
      return refused(address,
                     "give the host name or address of node 0 alone, such as node0, 10.0.0.1 or "
                     "::1; the port is --master-port");
    }
    return HostAndPort{*std::move(host), static_cast<std::uint16_t>(*port)};
  }
  if (is_etcd(backend)) {
    return read_etcd_endpoints(endpoint).map([](const auto& all) {
      return HostAndPort{all.front().host, all.front().port};
    });
  }
  const auto parsed = parse_host_and_port(
      endpoint.text(), backend == Backend::kC10d ? std::optional(kC10dPort) : std::nullopt);
  if (!parsed) {
    return refused(endpoint, "give HOST:PORT, such as node0:29400 or [fe80::1]:29400" +
                                 without_scheme(endpoint.text()));
  }
  if (!parsed->port) {
    return refused(endpoint, "the port is missing; static has no default, give HOST:PORT");
  }
  return *parsed;
}

Result<std::string> read_local_addr(const ResolvedOption& address) {
  if (trimmed(address.text()).empty()) return std::string();
  auto host = parse_host(address.text());
  if (host) return *std::move(host);
  return refused(address,
                 "give a host name or address of this node alone, such as node1, 10.0.0.2 or ::1, "
                 "without a port");
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

std::optional<std::string> parse_host(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::string host(text);
  const bool is_name = !host.empty() && std::ranges::all_of(host, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
  });
  const bool is_address = rdzv::parse_numeric(host.substr(0, host.find('%'))).has_value();
  if (!is_name && !is_address) return std::nullopt;
  return host;
}

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
  auto parsed = parse_host(host);
  if (!parsed) return std::nullopt;
  result.host = *std::move(parsed);
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
  rendezvous.local_addr = take(read_local_addr(resolved(settings, OptionId::kLocalAddr)));
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
