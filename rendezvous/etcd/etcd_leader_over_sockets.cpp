#include <algorithm>
#include <utility>

#include "rendezvous/etcd/etcd_leader.h"
#include "rendezvous/http/tls_context.h"
#include "rendezvous/leader/leader_address.h"
#include "rendezvous/net/asio_transport.h"

namespace ddprun::rdzv {

namespace {

using namespace std::chrono_literals;

class OverHttp final : public EtcdHttp {
 public:
  OverHttp(boost::asio::io_context& io, const std::vector<Endpoint>& endpoints,
           const std::shared_ptr<TlsContext>& tls, std::chrono::milliseconds time_limit)
      : io_(io) {
    for (const Endpoint& each : endpoints) {
      HttpOptions options;
      options.server = each;
      options.tls = tls;
      options.time_limit = time_limit;
      options.max_reply_bytes = std::size_t{4} << 20;
      clients_.push_back(std::make_unique<HttpClient>(io_, options));
      options_.push_back(std::move(options));
    }
  }

  void send(std::size_t endpoint, HttpRequest request, HttpClient::Done done) override {
    clients_[endpoint]->send(std::move(request), std::move(done));
  }
  std::unique_ptr<Attempt> open_stream(std::size_t endpoint, HttpRequest request,
                                       HttpStream::Events events) override {
    return std::make_unique<HttpStream>(io_, options_[endpoint], request, std::move(events));
  }

 private:
  boost::asio::io_context& io_;
  std::vector<HttpOptions> options_;                  // of each endpoint
  std::vector<std::unique_ptr<HttpClient>> clients_;  // of each endpoint
};

}  // namespace

std::unique_ptr<Leader> make_etcd_leader(boost::asio::io_context& io, EtcdLeaderOptions options,
                                         std::shared_ptr<TlsContext> tls, LeaderEvents events) {
  const EtcdSpec& etcd = options.etcd;
  EtcdLeaderParts parts;
  parts.transport = asio_transport(io);
  const auto time_limit = std::clamp<std::chrono::milliseconds>(etcd.lease / 3, 500ms, 3000ms);
  parts.http = std::make_unique<OverHttp>(io, etcd.endpoints, tls, time_limit);
  parts.open_port = [ports = etcd.ports](const std::string& host,
                                         const std::vector<std::string>& addresses) {
    return open_leader_port({host, 0}, addresses, ports);
  };
  return make_etcd_leader(std::move(parts), std::move(options), std::move(events));
}

}  // namespace ddprun::rdzv
