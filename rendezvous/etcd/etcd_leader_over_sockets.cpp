#include <algorithm>
#include <utility>

#include "rendezvous/etcd/etcd_leader.h"
#include "rendezvous/http/tls_context.h"
#include "rendezvous/leader/leader_address.h"
#include "rendezvous/net/asio_transport.h"

namespace ddprun::rdzv {

using namespace std::chrono_literals;

Result<std::unique_ptr<Leader>> make_etcd_leader(boost::asio::io_context& io,
                                                 EtcdLeaderOptions options, LeaderEvents events) {
  const EtcdSpec& etcd = options.etcd;
  std::shared_ptr<TlsContext> tls;
  if (etcd.is_tls) {
    auto made = make_tls_context(etcd.tls);
    if (!made) return fail(ErrorCode::kInvalidArgument, "--rdzv-conf: " + made.error().to_string());
    tls = std::move(*made);
  }
  EtcdLeaderParts parts;
  parts.transport = asio_transport(io);
  const auto time_limit = std::clamp<std::chrono::milliseconds>(etcd.lease / 3, 500ms, 3000ms);
  parts.http = etcd_http(io, etcd.endpoints, std::move(tls), time_limit);
  parts.open_port = [ports = etcd.ports](const std::string& host,
                                         const std::vector<std::string>& addresses) {
    return open_leader_port({host, 0}, addresses, ports);
  };
  return make_etcd_leader(std::move(parts), std::move(options), std::move(events));
}

}  // namespace ddprun::rdzv
