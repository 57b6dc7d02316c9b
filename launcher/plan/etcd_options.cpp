#include "launcher/plan/etcd_options.h"

#include <initializer_list>
#include <utility>

#include "launcher/cli/text.h"
#include "launcher/settings/values.h"
#include "rendezvous/leader/token.h"

namespace ddprun::cli {
namespace {

constexpr std::uint16_t kEtcdPort = 2379;

// The value of the first of these keys that is given.
std::string first_of(const RdzvConf& conf, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string text = text_of(conf, name); !text.empty()) return text;
  }
  return "";
}

}  // namespace

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

Result<rdzv::EtcdSpec> read_etcd(const Settings& settings, const Rendezvous& rendezvous) {
  const ResolvedOption given_conf = resolved(settings, OptionId::kRdzvConf);
  const RdzvConf& conf = rendezvous.conf;
  rdzv::EtcdSpec etcd;
  auto endpoints = read_etcd_endpoints(resolved(settings, OptionId::kRdzvEndpoint));
  if (!endpoints) return fail(std::move(endpoints.error()));
  etcd.endpoints = *std::move(endpoints);
  if (std::string prefix = text_of(conf, "etcd_prefix"); !prefix.empty()) {
    etcd.prefix = std::move(prefix);
  }
  if (const auto lease = seconds_of(conf, "lease_time")) etcd.lease = *lease;
  etcd.local_addr = rendezvous.local_addr;

  etcd.tls.ca = first_of(conf, {"ca_cert", "cacert"});
  etcd.tls.certificate = first_of(conf, {"cert", "ssl_cert"});
  etcd.tls.key = first_of(conf, {"key", "ssl_cert_key"});
  const std::string protocol = text_of(conf, "protocol");
  if (!protocol.empty() && protocol != "http" && protocol != "https") {
    return refused(given_conf, "protocol must be http or https");
  }
  const bool has_files = etcd.tls != rdzv::TlsFiles{};
  if (protocol == "http" && has_files) {
    return refused(given_conf,
                   "certificates are of no use with protocol=http; leave it out, or give https");
  }
  etcd.is_tls = protocol == "https" || has_files;

  etcd.user = text_of(conf, "user");
  etcd.password = text_of(conf, "password");
  if (const std::string file = text_of(conf, "password_file"); !file.empty()) {
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
