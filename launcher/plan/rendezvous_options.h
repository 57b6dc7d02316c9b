// How this node meets the others: the options under "Nodes", read and checked by torchrun's rules.
// Nothing is connected here. Pure, but for the file with etcd's password that read_etcd() reads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/plan/rdzv_conf.h"
#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"
#include "rendezvous/etcd/etcd_spec.h"

namespace ddprun::cli {

enum class Backend { kStatic, kC10d, kEtcdV2, kEtcd };
inline constexpr std::array<std::string_view, 4> kBackendNames{"static", "c10d", "etcd-v2", "etcd"};

// Both are the same, because etcd's v2 API no longer exists.
inline bool is_etcd(Backend backend) {
  return backend == Backend::kEtcdV2 || backend == Backend::kEtcd;
}

struct Rendezvous {
  Backend backend = Backend::kStatic;
  bool is_standalone = false;
  int min_nodes = 1;
  int max_nodes = 1;
  std::optional<int> node_rank;  // none: not given
  std::string host;
  std::uint16_t port = 0;  // 0: any port, only for a job on one node
  std::string local_addr;  // empty: none was given
  RdzvConf conf;
  std::optional<bool> is_host;  // none: decided by the address
  std::string token_file;       // empty: none
};

Result<Rendezvous> read_rendezvous(const Settings& settings, std::vector<std::string>& warnings);

// What --rdzv-endpoint and --rdzv-conf mean under --rdzv-backend=etcd. Keys have the spellings of
// both of torchrun's etcd backends.
Result<rdzv::EtcdSpec> read_etcd(const Settings& settings, const Rendezvous& rendezvous);

// "host", "host:port", "[::1]:port"; empty is localhost. Without a port in the text it is
// `default_port`, which may be none.
struct HostAndPort {
  std::string host;
  std::optional<std::uint16_t> port;

  bool operator==(const HostAndPort&) const = default;
};
// A name or an address as an option takes it, without the brackets of an IPv6 address; std::nullopt: it is neither, as with
// a port or a URL.
std::optional<std::string> parse_host(std::string_view text);

std::optional<HostAndPort> parse_host_and_port(std::string_view text,
                                               std::optional<std::uint16_t> default_port);

}  // namespace ddprun::cli
