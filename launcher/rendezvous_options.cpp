#include "launcher/rendezvous_options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "launcher/spelling.h"
#include "launcher/text.h"
#include "launcher/values.h"

namespace ddprun::cli {
namespace {

constexpr int kHighestPort = 65535;
constexpr std::uint16_t kC10dPort = 29400;
constexpr std::uint16_t kEtcdPort = 2379;

constexpr std::array<std::pair<std::string_view, Backend>, 4> kBackends{
    {{"static", Backend::kStatic},
     {"c10d", Backend::kC10d},
     {"etcd-v2", Backend::kEtcdV2},
     {"etcd", Backend::kEtcd}}};

// Keys of --rdzv-conf that hold whole seconds (or, for the attempts, a count), all more than 0.
constexpr std::array<std::string_view, 8> kNumberKeys{
    "timeout",           "join_timeout",        "last_call_timeout",      "close_timeout",
    "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt", "read_timeout"};

// Keys known to some backend, for torchrun's sake; what is in neither list gets a warning.
constexpr std::array<std::string_view, 12> kOtherKeys{
    "is_host", "store_type", "rank", "protocol", "ssl_cert",    "ssl_cert_key",
    "ca_cert", "cert",       "key",  "cacert",   "etcd_prefix", "use_libuv"};

// Options of their own; torchrun fails on them with a TypeError.
constexpr std::array<std::string_view, 6> kReservedKeys{"backend",   "endpoint",  "run_id",
                                                        "min_nodes", "max_nodes", "local_addr"};

bool contains(const auto& keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

Result<Backend> read_backend(const Given& given) {
  std::vector<std::string_view> names;
  for (const auto& [name, backend] : kBackends) {
    if (given.text() == name) return backend;
    names.push_back(name);
  }
  std::string sentence = "give static, c10d, etcd-v2 or etcd";
  if (const std::string_view meant = nearest(given.text(), names); !meant.empty()) {
    sentence += "; did you mean " + std::string(meant) + "?";
  }
  return fail(wrong(given, sentence));
}

struct NodeCount {
  int least;
  int most;
};

Result<NodeCount> read_nodes(const Given& given) {
  const std::vector<std::string_view> parts = split(given.text(), ':');
  const auto least = whole_number(parts.front());
  const auto most = whole_number(parts.back());
  if (parts.size() > 2 || !least || !most) {
    return fail(wrong(given, "give a number of nodes, or MIN:MAX as in 2:4"));
  }
  if (*least < 1 || *most < *least || *most > std::numeric_limits<int>::max()) {
    return fail(wrong(given, "MIN must be at least 1, and MAX at least MIN; here MIN is " +
                                 std::to_string(*least) + " and MAX is " + std::to_string(*most)));
  }
  return NodeCount{static_cast<int>(*least), static_cast<int>(*most)};
}

std::optional<bool> truth(std::string_view text) {
  constexpr std::array<std::string_view, 5> kYes{"1", "true", "t", "yes", "y"};
  constexpr std::array<std::string_view, 5> kNo{"0", "false", "f", "no", "n"};
  std::string lower;
  for (const char c : text) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (contains(kYes, lower)) return true;
  if (contains(kNo, lower)) return false;
  return std::nullopt;
}

std::string unknown_key(std::string_view key) {
  std::vector<std::string_view> known(kNumberKeys.begin(), kNumberKeys.end());
  known.insert(known.end(), kOtherKeys.begin(), kOtherKeys.end());
  std::string sentence = "nothing uses the key '" + std::string(key) + "'";
  if (const std::string_view meant = nearest(key, known); !meant.empty()) {
    sentence += "; did you mean " + std::string(meant) + "?";
  }
  return sentence;
}

Result<void> check_pair(const Given& given, std::string_view key, std::string_view value) {
  if (key.empty() || value.empty()) {
    return fail(wrong(given, "give KEY=VALUE pairs, such as join_timeout=600,is_host=1"));
  }
  if (contains(kReservedKeys, key)) {
    return fail(wrong(given, "'" + std::string(key) + "' has an option of its own"));
  }
  if (contains(kNumberKeys, key)) {
    const auto number = whole_number(value);
    if (!number || *number < 1) {
      return fail(wrong(given, std::string(key) + " must be a whole number of 1 or more"));
    }
  }
  if (key == "is_host" && !truth(value)) {
    return fail(wrong(given, "is_host must be 1 or 0 (or true, false, yes, no)"));
  }
  if (key == "store_type" && value == "file") {
    return fail(wrong(given, "a store in a file is not supported; leave store_type out"));
  }
  if (key == "store_type" && value != "tcp") {
    return fail(wrong(given, "store_type must be tcp"));
  }
  return {};
}

Result<std::map<std::string, std::string>> read_conf(const Given& given,
                                                     std::vector<std::string>& warnings) {
  std::map<std::string, std::string> conf;
  if (trimmed(given.text()).empty()) return conf;
  for (const std::string_view pair : split(given.text(), ',')) {
    const std::size_t equals = pair.find('=');
    const std::string_view key = trimmed(pair.substr(0, equals));
    const std::string_view value =
        equals == std::string_view::npos ? "" : trimmed(pair.substr(equals + 1));
    if (const auto good = check_pair(given, key, value); !good) return fail(good.error());
    if (!contains(kNumberKeys, key) && !contains(kOtherKeys, key)) {
      warnings.push_back(wrong(given, unknown_key(key)).to_string());
    }
    conf[std::string(key)] = value;
  }
  return conf;
}

std::optional<std::uint16_t> default_port_of(Backend backend) {
  switch (backend) {
    case Backend::kStatic:
      return std::nullopt;
    case Backend::kC10d:
      return kC10dPort;
    case Backend::kEtcdV2:
    case Backend::kEtcd:
      return kEtcdPort;
  }
  return std::nullopt;
}

Result<HostAndPort> read_endpoint(const Settings& settings, Backend backend) {
  const Given endpoint = given(settings, OptionId::kRdzvEndpoint);
  if (backend == Backend::kStatic && trimmed(endpoint.text()).empty()) {
    const auto port = read_integer(given(settings, OptionId::kMasterPort), 0, kHighestPort);
    if (!port) return fail(port.error());
    const Given address = given(settings, OptionId::kMasterAddr);
    if (trimmed(address.text()).empty()) {
      return fail(wrong(address, "give the host name or address of node 0"));
    }
    return HostAndPort{std::string(trimmed(address.text())), static_cast<std::uint16_t>(*port)};
  }
  const auto parsed = parse_host_and_port(endpoint.text(), default_port_of(backend));
  if (!parsed) {
    return fail(wrong(endpoint, "give HOST:PORT, such as node0:29400 or [fe80::1]:29400"));
  }
  if (!parsed->port) {
    return fail(wrong(endpoint, "the port is missing; static has no default, give HOST:PORT"));
  }
  return *parsed;
}

void warn_of_ignored(const Settings& settings, const Rendezvous& rendezvous,
                     std::vector<std::string>& warnings) {
  const auto warn_if_given = [&](OptionId id, const std::string& why) {
    const Given option = given(settings, id);
    if (!option.is_default())
      warnings.push_back(option.setting.origin.name + " is ignored: " + why);
  };
  if (rendezvous.is_standalone) return;  // torchrun overrides them silently: that is its purpose
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
    const auto port = whole_number(digits);
    if (!port || digits.size() > kPortDigits || *port < 0 || *port > kHighestPort) {
      return std::nullopt;
    }
    result.port = static_cast<std::uint16_t>(*port);
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
  Rendezvous rendezvous;
  const auto standalone = read_flag(given(settings, OptionId::kStandalone));
  if (!standalone) return fail(standalone.error());
  const auto nodes = read_nodes(given(settings, OptionId::kNnodes));
  if (!nodes) return fail(nodes.error());
  rendezvous.min_nodes = nodes->least;
  rendezvous.max_nodes = nodes->most;
  auto conf = read_conf(given(settings, OptionId::kRdzvConf), warnings);
  if (!conf) return fail(conf.error());
  rendezvous.conf = *std::move(conf);
  if (const auto found = rendezvous.conf.find("is_host"); found != rendezvous.conf.end()) {
    rendezvous.is_host = truth(found->second);
  }
  rendezvous.local_addr = trimmed(settings[OptionId::kLocalAddr].text);
  if (*standalone) {
    rendezvous.is_standalone = true;
    rendezvous.backend = Backend::kC10d;
    rendezvous.host = "localhost";
    return rendezvous;
  }

  const auto backend = read_backend(given(settings, OptionId::kRdzvBackend));
  if (!backend) return fail(backend.error());
  rendezvous.backend = *backend;
  const auto endpoint = read_endpoint(settings, *backend);
  if (!endpoint) return fail(endpoint.error());
  rendezvous.host = endpoint->host;
  rendezvous.port = *endpoint->port;

  const Given node_rank = given(settings, OptionId::kNodeRank);
  const auto rank = read_integer(node_rank, 0);
  if (!rank) return fail(rank.error());
  if (*rank >= rendezvous.max_nodes) {
    return fail(wrong(node_rank, "with --nnodes=" + settings[OptionId::kNnodes].text +
                                     " node ranks go from 0 to " +
                                     std::to_string(rendezvous.max_nodes - 1)));
  }
  if (!node_rank.is_default() || *backend == Backend::kStatic) rendezvous.node_rank = *rank;
  warn_of_ignored(settings, rendezvous, warnings);
  return rendezvous;
}

Result<agent::MeetingPlace> single_node_meeting_place(const Settings& settings,
                                                      const Rendezvous& rendezvous) {
  agent::MeetingPlace place;
  const bool port_is_given = !settings[OptionId::kMasterPort].is_default() ||
                             !trimmed(settings[OptionId::kRdzvEndpoint].text).empty();
  if (rendezvous.backend == Backend::kStatic) {
    place.address = rendezvous.host;
    if (port_is_given) place.first_port = place.last_port = rendezvous.port;
  } else if (!rendezvous.local_addr.empty()) {
    place.address = rendezvous.local_addr;
  }

  const Given range = given(settings, OptionId::kMasterPortRange);
  if (range.text().empty()) return place;
  const std::vector<std::string_view> parts = split(range.text(), ':');
  const auto first = whole_number(parts.front());
  const auto last = whole_number(parts.back());
  if (parts.size() != 2 || !first || !last || *first < 1 || *last > kHighestPort ||
      *first > *last) {
    return fail(wrong(range, "give the first and the last port, such as 29500:29599"));
  }
  if (place.first_port != 0) {
    return fail(wrong(
        range, "the port is fixed already by " +
                   settings[settings[OptionId::kMasterPort].is_default() ? OptionId::kRdzvEndpoint
                                                                         : OptionId::kMasterPort]
                       .origin.name));
  }
  place.first_port = static_cast<std::uint16_t>(*first);
  place.last_port = static_cast<std::uint16_t>(*last);
  return place;
}

}  // namespace ddprun::cli
